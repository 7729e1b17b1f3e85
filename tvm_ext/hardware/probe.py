"""Measures this host with micro-kernels; `python -m tvm_ext.hardware.probe` prints it as JSON.

TVM's thread pool is made once per thread and keeps its size, so the probe runs in a child
process: the caller's pool stays as it was.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from tvm_ext.hardware import catalog, system
from tvm_ext.hardware.model import HardwareModel, MemoryLevel

VERSION = 3
"""Changes when the same machine would be measured differently."""

_TRUST = 16.0
"""A reading further than this from the catalog's figure is a machine too busy to be read."""
# Passes lie apart in time, so that what disturbs one of them spares another.
_PASSES = 3
_BUDGET_S = 0.012
_RUN_S = 3e-4
_STALLED_S = 0.1
"""A run that took so long waited for other programs, at each launch: no more runs, and shorter
ones in the next pass."""
_MIN_RUNS = 3
_CLOCK_STEPS = 64
_WALK_STEPS = 16
_VECTORS = 8
_MAX_DATA_BYTES = 512 << 20


def run(timeout_s: float = 60.0) -> HardwareModel:
    """Measures this host in a child process, on one thread per physical core.

    RuntimeError with the child's last line if it fails.
    """
    cpus = ",".join(map(str, system.core_cpus()))
    # The child sees the packages its parent sees, wherever they were put on the path.
    code = (
        "import sys; sys.path[:] = sys.argv[2:]; "
        "from tvm_ext.hardware.probe import main; main(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, cpus, *sys.path]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=True)
        return msgspec.json.decode(done.stdout, type=HardwareModel)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(last[0] if last else f"exit code {error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise RuntimeError(str(error)) from error


def main(cpus: str = "") -> None:
    """Prints this host, measured, as JSON; `cpus` (`0,2`) limits it to these logical CPUs."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    os.environ["TVM_BIND_THREADS"] = "1"  # whatever the caller's own pool does
    measured = measure(system.static_model())
    print(msgspec.json.format(msgspec.json.encode(measured)).decode())


def measure(model: HardwareModel) -> HardwareModel:
    """`model`, which must be this host, with measured speeds in place of the catalog's.

    Sizes TVM's thread pool for the calling thread: meant for a process of its own.
    Peaks and totals are taken with all cores at work, because clocks fall and hidden siblings
    share a core then. Bandwidths never rise from one level to the next: noise is cut.
    """
    bench = _Bench(model)
    passes = [bench.seconds() for _ in range(_PASSES)]
    best = {name: min(times[name] for times in passes) for name in passes[0]}
    # These follow how far apart a hypervisor puts the cores, so the best is not the typical.
    launch, barrier = (
        1e6 * statistics.median(times[name] for times in passes) for name in ("launch", "barrier")
    )
    cycle = best["clock"] / _CLOCK_STEPS
    # A core does no more in a cycle among others than alone: the shorter reading is the calmer.
    round_s = min(best["float32"], best["float32 alone"])
    peaks = {
        dtype: _near(operations / best[dtype] / 1e9, model.peak_gflops.get(dtype, 0.0))
        for dtype, operations in bench.operations.items()
    }
    register = msgspec.structs.replace(
        model.level("register"), gbps=catalog.register_gbps(peaks["float32"])
    )
    measured = (
        msgspec.structs.replace(
            level,
            gbps=_near(
                bench.bytes[f"{level.name} alone"] / best[f"{level.name} alone"] / 1e9, level.gbps
            ),
            total_gbps=_near(
                bench.bytes[f"{level.name} total"] / best[f"{level.name} total"] / 1e9,
                level.total_gbps or level.gbps * model.cores,
            ),
        )
        for level in model.levels[1:]
    )
    return msgspec.structs.replace(
        model,
        fma_latency_cycles=_plausible(best["latency"], cycle, 2, 16, model.fma_latency_cycles),
        fma_per_cycle=_plausible(bench.chains * cycle, round_s, 1, 8, model.fma_per_cycle),
        peak_gflops=peaks,
        levels=(register, *_falling(measured)),
        launch_us=_near(launch, model.launch_us),
        barrier_us=_near(barrier, model.barrier_us),
        shared_cache_cycles=_plausible(best.get("walk", 0.0), _WALK_STEPS * cycle, 4, 2000, 0),
    )


def _plausible(numerator: float, denominator: float, low: int, high: int, expected: int) -> int:
    """The rounded ratio if a processor can have it; else what is expected of this one.

    On a busy machine a single timing can be off by orders of magnitude, and plans would follow it.
    """
    ratio = round(numerator / denominator) if denominator > 0 else 0
    return ratio if low <= ratio <= high else expected


def _near(measured: float, expected: float) -> float:
    """The measured figure, if it is within a factor of `_TRUST` of what the catalog expects."""
    believable = expected / _TRUST <= measured <= expected * _TRUST
    return measured if believable or expected <= 0 else expected


class _Bench:
    """The micro-kernels, compiled, with their buffers and what one round of each of them does."""

    def __init__(self, model: HardwareModel) -> None:
        import numpy as np
        import tvm

        from tvm_ext.hardware import kernels

        cores, lanes = model.cores, model.lanes(4)
        self.chains = kernels.chain_count(model.vector_registers)
        best = kernels.instructions(model.isa)
        # -2: one worker per listed CPU, bound to it, whatever TVM_NUM_THREADS says.
        pool = tvm.get_global_func("runtime.config_threadpool")
        pool(-2, 0, [str(cpu) for cpu in system.core_cpus()])
        functions = {
            "clock": kernels.cycles(_CLOCK_STEPS),
            "latency": kernels.chains(best["float32"], 1, alone=True),
            "peak_alone": kernels.chains(best["float32"], self.chains, alone=True),
            "fill": kernels.fill(),
            "stream_alone": kernels.stream(lanes, _VECTORS, alone=True),
            "stream_total": kernels.stream(lanes, _VECTORS),
            "walk": kernels.walk(_WALK_STEPS),
            "launch": kernels.launches(barrier=False),
            "barrier": kernels.launches(barrier=True),
            **{dtype: kernels.chains(used, self.chains) for dtype, used in best.items()},
        }
        module = tvm.IRModule(
            {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
        )
        compiled = tvm.compile(module, target=tvm.target.Target(model.target)).jit()
        kernel = {name: compiled[name] for name in functions}

        words = cores * lanes * max(self.chains, _VECTORS)
        out = {dtype: tvm.runtime.empty((words,), dtype) for dtype in ("float32", "int32")}
        seed = tvm.runtime.tensor(np.array(kernels.SEED, "int32"))
        sets = _working_sets(model)
        words = max(max(alone, each * cores) for alone, each in sets.values()) // 4
        data = tvm.runtime.empty((words,), "int32")
        kernel["fill"](data, cores, words // cores)

        self.operations = {
            dtype: 2.0 * self.chains * used.lanes * used.macs_per_lane
            for dtype, used in best.items()
        }
        """Of one core in one round, by element type."""
        self.bytes: dict[str, float] = {}
        """Read by all cores at work in one round, by name of the call."""
        self._rounds: dict[str, int] = {}
        self._calls: dict[str, Callable[[int], object]] = {
            "clock": partial(kernel["clock"], seed, out["int32"], 1),
            "latency": partial(kernel["latency"], seed, out["float32"], 1),
            "float32 alone": partial(kernel["peak_alone"], seed, out["float32"], 1),
            "launch": partial(kernel["launch"], out["int32"], cores),
            "barrier": partial(kernel["barrier"], out["int32"], cores),
        }
        for dtype, used in best.items():
            self._calls[dtype] = partial(kernel[dtype], seed, out[used.accumulator], cores)
        if (walked := _walked_bytes(model)) > 0:
            places = tvm.runtime.tensor(_round_trip(walked, model.levels[1].line_bytes))
            at = tvm.runtime.tensor(np.zeros(1, "int32"))
            self._calls["walk"] = partial(kernel["walk"], places, at, 1)
        block = model.vector_bytes * _VECTORS
        for level, (alone, each) in sets.items():
            for name, tasks, size in (("alone", 1, alone), ("total", cores, each)):
                blocks = max(1, size // block)
                self.bytes[f"{level} {name}"] = float(tasks * blocks * block)
                self._calls[f"{level} {name}"] = partial(
                    kernel[f"stream_{name}"], data, out["int32"], tasks, blocks
                )

    def seconds(self) -> dict[str, float]:
        """Best seconds per round of every call."""
        return {name: self._best_s(name, call) for name, call in self._calls.items()}

    def _best_s(self, name: str, call: Callable[[int], object]) -> float:
        """The best of several runs, each long against a launch and short against the scheduler's
        time slice; how many rounds that takes is found once."""
        rounds, best = self._rounds.get(name, 1), math.inf
        # Beside other programs each launch and each barrier waits a time slice: few in a run.
        enough_s = _RUN_S / 16 if name in ("launch", "barrier") else _RUN_S / 2
        runs, end = 0, time.perf_counter() + _BUDGET_S
        while runs < _MIN_RUNS or time.perf_counter() < end:
            start = time.perf_counter()
            call(rounds)
            taken = time.perf_counter() - start
            if taken < enough_s:
                rounds *= 2
            else:
                best = min(best, taken / rounds)
                runs += 1
                if taken > _STALLED_S:
                    rounds = max(1, rounds // 8)
                    break
        self._rounds[name] = rounds
        return best


def _working_sets(model: HardwareModel) -> dict[str, tuple[int, int]]:
    """For each level beyond the registers: bytes one core alone reads over and over, and bytes
    each core reads when all do. They miss the level inside and fit this one."""
    sharers = {f"l{cache.level}": cache.sharers for cache in system.caches()}
    sets: dict[str, tuple[int, int]] = {}
    inner = inner_share = 0
    caches = [level for level in model.levels if level.name in ("l1", "l2", "l3")]
    for level in caches:
        share = level.size_bytes
        if level.shared:
            share //= sharers.get(level.name, model.cores)
        sets[level.name] = (
            _between(inner, level.size_bytes),
            _between(inner_share, share),
        )
        inner, inner_share = level.size_bytes, share
    available = max(64 << 20, min(_MAX_DATA_BYTES, system.memory_bytes() // 8))
    sets["dram"] = (min(available, 4 * inner), min(available // model.cores, 4 * inner_share))
    return sets


def _walked_bytes(model: HardwareModel) -> int:
    """Twice what a core's own caches hold, so that the cache that cores share has to answer, and
    little enough for page tables not to be asked; 0 where no cache is shared."""
    shared = next((level for level in model.levels[:-1] if level.shared), None)
    return min(2 * model.own_cache_bytes, shared.size_bytes) if shared else 0


def _round_trip(size_bytes: int, line_bytes: int) -> Any:
    """Elements that each say where the next is: through all lines of so many bytes, in an order
    that no prefetcher knows."""
    import numpy as np

    lines = np.random.default_rng(0).permutation(size_bytes // line_bytes)
    places = lines.astype("int32") * (line_bytes // 4)
    data = np.zeros(size_bytes // 4, "int32")
    data[places] = np.roll(places, -1)
    return data


def _between(inner_bytes: int, bytes_here: int) -> int:
    """A working set between two capacities: half of the outer, far smaller if the inner allows,
    because the outer one may be shared with others."""
    if not inner_bytes:
        return bytes_here // 2
    return max(inner_bytes * 3 // 2, min(bytes_here // 2, 8 * inner_bytes))


def _falling(levels: Iterable[MemoryLevel]) -> Iterator[MemoryLevel]:
    gbps = total = math.inf
    for level in levels:
        gbps, total = min(gbps, level.gbps), min(total, level.total_gbps)
        yield msgspec.structs.replace(level, gbps=gbps, total_gbps=max(gbps, total))


if __name__ == "__main__":
    main()
