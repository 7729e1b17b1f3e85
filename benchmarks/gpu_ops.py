"""Single operators on a CUDA device: the picker's first plan beside torch (cuBLAS, cuDNN).

    python benchmarks/gpu_ops.py                         # all that torch has too, batch 1 and 16
    python benchmarks/gpu_ops.py --only C2D GMM/3        # some of them
    python benchmarks/gpu_ops.py --plans 24 --json out   # the model's first plans and others of its

The functions are those of `te_workload`; torch gets weights in the layout it wants and no TF32.
Results are compared with torch's. Both sides are timed as replays of CUDA graphs, so that no launch
is waited for. `ratio` is torch's latency over ours: above 1 is in our favour. `best` is the fastest
of the plans measured, `rank` its place by prediction. Exits with 1 if a first plan does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"  # tensors are handed over once

import torch
import torch_operators
import tvm_ffi
from workloads import Workload, workloads

from tvm_ext.cuda_libraries import use_nvcc
from tvm_ext.errors import PlanError
from tvm_ext.hardware import resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, Written, write_and_build
from tvm_ext.picker import pick
from tvm_ext.picker.perf import Candidate
from tvm_ext.planner import Task
from tvm_ext.tile import show_plan
from tvm_ext.tir import write
from tvm_ext.tvm_api import target_of, tvm

LAUNCHES = 20  # in one graph
REPLAYS = 15
BUILDERS = os.cpu_count() or 1
CLOSE = 2e-3  # of the largest value; a product of unlike signs loses more than one of like signs


@dataclass
class Measured:
    """One plan of ours: what the model said, and the time or what went wrong."""

    plan: str
    predicted_us: float
    latency_us: float | None = None
    failure: str = ""


@dataclass
class Row:
    """One operator."""

    name: str
    gflop: float
    torch_us: float
    plans: list[Measured] = field(default_factory=list)

    @property
    def ours_us(self) -> float | None:
        """Latency of the picker's first plan."""
        return self.plans[0].latency_us

    @property
    def best(self) -> tuple[int, float] | None:
        """Place and latency of the fastest plan."""
        timed = [(p.latency_us, place) for place, p in enumerate(self.plans) if p.latency_us]
        return (min(timed)[1], min(timed)[0]) if timed else None

    @property
    def ratio(self) -> float | None:
        """Torch's latency over ours."""
        return self.torch_us / self.ours_us if self.ours_us else None


def replayed_us(run: Callable[[], object]) -> float:
    """Median latency of one call among many in a CUDA graph."""
    stream = torch.cuda.Stream()
    with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph, stream=stream)):
        for _ in range(LAUNCHES):
            run()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / LAUNCHES)
    return statistics.median(times)


class Bench:
    """Measures operators one after the other on the first CUDA device."""

    def __init__(self, plans: int, seed: int) -> None:
        self.hardware: HardwareModel = resolve("cuda")
        self.target = target_of(self.hardware.target)
        self.plans = plans
        self.seed = seed

    def chosen(self, task: Task) -> list[Candidate]:
        """The model's first plans, and about as many of the others by chance. What cannot be
        written is passed over, as in a compile."""
        assert task.graph is not None
        everything = pick(task.graph, self.hardware, 10**6)
        first = list(islice(filter(partial(writable, task), everything), self.plans))
        others = everything[everything.index(first[-1]) + 1 :]
        chance = random.Random(self.seed).sample(others, min(self.plans - 1, len(others)))
        return first + sorted(chance, key=lambda c: c.estimate.latency_us)

    def build(self, tasks: Sequence[Task]) -> list[list[tuple[Candidate, Written]]]:
        """Plans and compiles them all, on every core: nothing is timed meanwhile."""
        chosen = [self.chosen(task) for task in tasks]
        with ThreadPoolExecutor(BUILDERS) as pool:
            pending = [
                [pool.submit(write_and_build, task.func, c.plan, self.target) for c in plans]
                for task, plans in zip(tasks, chosen, strict=True)
            ]
            return [
                [(c, future.result()) for c, future in zip(plans, futures, strict=True)]
                for plans, futures in zip(chosen, pending, strict=True)
            ]

    def measure(
        self, workload: Workload, task: Task, kernels: Sequence[tuple[Candidate, Written]]
    ) -> Row:
        """Torch, then every plan, right or not."""
        generator = torch.Generator("cuda").manual_seed(self.seed)
        given = [
            torch.rand(shape, generator=generator, device="cuda")
            for shape in torch_operators.shapes(task.func)
        ]
        *inputs, out = given
        peer = torch_operators.twin(workload, inputs)
        with torch.inference_mode():
            expected = peer()
            row = Row(workload.name, task.flops / 1e9, replayed_us(peer))
        arguments = [tvm.runtime.from_dlpack(tensor) for tensor in given]
        for candidate, written in kernels:
            measured = Measured(show_plan(candidate.plan), candidate.estimate.latency_us)
            row.plans.append(measured)
            if not isinstance(written.kernel, Built):
                measured.failure = f"{written.kernel.kind}: {written.kernel.message}"
                continue
            run = partial(written.kernel.main, *arguments)
            out.fill_(float("nan"))
            try:
                run()
                torch.cuda.synchronize()
                measured.failure = difference(out, expected)
                measured.latency_us = replayed_us(run)
            except RuntimeError as error:
                measured.failure = " ".join(str(error).split())[-300:]
        return row


def writable(task: Task, candidate: Candidate) -> bool:
    """Whether a plan becomes a kernel."""
    with suppress(PlanError):
        return write(task.func, candidate.plan) is not None
    return False


def difference(out: torch.Tensor, expected: torch.Tensor) -> str:
    """What is wrong with a result; nothing if it is right."""
    expected = expected.reshape(out.shape)
    error = float((out - expected).abs().max() / expected.abs().max())
    return "" if error < CLOSE else f"differs by {error:.1e} of the largest value"


def line(row: Row) -> str:
    """A row of the table; what went wrong follows on lines of its own."""
    first, best = row.plans[0], row.best
    cells = (
        f"{row.name:14}{row.torch_us:10.1f}{first.latency_us or 0:10.1f}"
        f"{first.predicted_us:10.1f}{row.ratio or 0:7.2f}"
        f"{best[1] if best else 0:10.1f}{best[0] if best else 0:5d}  {first.plan}"
    )
    failed = [f"    {plan.plan}: {plan.failure}" for plan in row.plans if plan.failure]
    return "\n".join([cells, *failed[:3]])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=torch_operators.KNOWN, metavar="NAME")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--plans", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.plans < 1:
        parser.error("--plans must be at least 1")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    bench = Bench(args.plans, args.seed)
    rows: list[Row] = []
    print(f"{'operator':14}{'torch us':>10}{'ours us':>10}{'model us':>10}{'ratio':>7}", end="")
    print(f"{'best us':>10}{'rank':>5}  plan", flush=True)
    use_nvcc()  # which compiles in processes of its own, and exactly
    chosen = list(workloads(args.only, args.batch))
    tasks = [workload.task() for workload in chosen]
    built = bench.build(tasks)
    for workload, task, kernels in zip(chosen, tasks, built, strict=True):
        rows.append(bench.measure(workload, task, kernels))
        print(line(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    ratios = [row.ratio for row in rows if row.ratio]
    print(f"{torch.cuda.get_device_name()}: geomean ratio {statistics.geometric_mean(ratios):.3f}")
    return 1 if any(row.plans[0].failure for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
