"""Whole models on a CUDA device: the picker's plans beside torch.compile.

    python benchmarks/gpu_models.py bench_models/resnet18.onnx bench_models/bert_base_128.onnx
    python benchmarks/gpu_models.py bench_models/*.onnx --engines tvm_ext --json out.json

Latency is that of one run after another, each waited for, inputs and outputs on the device; float32
without TF32. torch's graph is captured (`reduce-overhead`), ours is launched kernel by kernel.
`kernels` is what ours take by themselves in place. `ratio` is torch's latency over ours: above 1 is
in our favour. Needs onnx2torch for torch (`make bench` installs it).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import tvm_ext
from tvm_ext.runtime.profile import random_inputs

WARM_UPS = 3  # torch captures its graph in the second
ROUNDS = 5
REPEATS = 20


@dataclass
class Row:
    """One model."""

    name: str
    ready_s: float
    kernels: int
    verified: int
    predicted_us: float
    kernels_us: float
    ours_us: float
    torch_us: float | None = None
    error: float | None = None

    @property
    def ratio(self) -> float | None:
        """Torch's latency over ours."""
        return self.torch_us / self.ours_us if self.torch_us else None


class Peer:
    """The model in torch."""

    def __init__(self, path: Path, inputs: dict[str, np.ndarray]) -> None:
        import torch
        import torch_engine

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self._wait = torch.cuda.synchronize
        self._call = torch_engine.compiled(str(path), inputs, "cuda")
        for _ in range(WARM_UPS):
            self._call()

    def outputs(self) -> list[np.ndarray]:
        """What it returns."""
        return [output.cpu().numpy() for output in self._call()]

    def seconds(self) -> float:
        """Median latency of one run."""
        times = []
        for _ in range(REPEATS):
            self._wait()
            start = time.perf_counter()
            self._call()
            self._wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def measure(path: Path, engines: list[str]) -> Row:
    """Both engines in turn, in one process: the device is asked by one of them at a time."""
    start = time.perf_counter()
    compiled = tvm_ext.compile(str(path), "cuda")
    ready_s = time.perf_counter() - start
    inputs = random_inputs(compiled.inputs)
    theirs, error = None, None
    if "torch" in engines:
        theirs = Peer(path, {info.name: x for info, x in zip(compiled.inputs, inputs, strict=True)})
        pairs = zip(compiled(*inputs), theirs.outputs(), strict=True)
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        own = statistics.median(compiled.seconds(*inputs, repeats=REPEATS))
        times.append((own, theirs.seconds() if theirs else 0.0))
    groups = compiled.manifest.groups
    profile = compiled.profile(*inputs, runs=5)
    return Row(
        path.stem,
        ready_s,
        len(groups),
        sum(group.verified for group in groups),
        sum(group.calls * group.predicted_us for group in groups),
        sum(profile.measured_us[name] * profile.calls[name] for name in profile.measured_us),
        1e6 * statistics.median(each[0] for each in times),
        1e6 * statistics.median(each[1] for each in times) if theirs else None,
        error,
    )


def line(row: Row) -> str:
    """A row of the table."""
    peer = f"{row.torch_us:10.0f}{row.ratio:7.2f}{row.error:9.1e}" if row.torch_us else ""
    return (
        f"{row.name:24}{row.ready_s:8.1f}{row.verified:5d}/{row.kernels:<4d}{row.predicted_us:10.0f}"
        f"{row.kernels_us:10.0f}{row.ours_us:10.0f}{peer}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="model.onnx")
    parser.add_argument("--engines", default="tvm_ext,torch")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    engines = args.engines.split(",")
    print(f"{'model':24}{'ready s':>8}{'verified':>10}", end="")
    for column in ("model us", "kernels", "ours us", *(["torch us"] if "torch" in engines else [])):
        print(f"{column:>10}", end="")
    print(f"{'ratio':>7}{'error':>9}" if "torch" in engines else "", flush=True)
    rows: list[Row] = []
    for path in args.models:
        rows.append(measure(path, engines))
        print(line(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    ratios = [row.ratio for row in rows if row.ratio]
    if ratios:
        print(f"geometric mean {statistics.geometric_mean(ratios):.3f}")
    return 0 if all(row.verified == row.kernels for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
