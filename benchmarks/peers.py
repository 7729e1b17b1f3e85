"""Inference engines to compare with, each run in a process of its own.

A child process loads one model in one engine, then sits blocked on stdin until it is told to run a
burst; so one engine is measured while the others neither compute nor spin.

    with (
        Worker("onnxruntime", path, inputs, threads=2) as ort,
        Worker("tvm_ext", path, inputs, threads=2) as ours,
    ):
        seconds = interleave([ort, ours], rounds=5)  # {"onnxruntime": [...], "tvm_ext": [...]}

Run as a script this file is the child: `peers.py ENGINE MODEL THREADS FOLDER PAUSE_S [save]`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from engines import LOADERS, Inputs

BURST_S = 0.3  # a burst lasts at least this long
BURST_RUNS = 5  # and has at least this many runs
QUIET_S = 0.02  # threads that use no CPU for this long have stopped spinning
SETTLE_S = 2.0  # how long spinning threads are waited for
TOKENS = 1000  # random token ids are below this
ARTIFACT = "model.so"


class EngineError(Exception):
    """An engine could not load or run the model; the message is the engine's own last line."""


def random_inputs(
    model: Any, shapes: Mapping[str, Sequence[int]] | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Inputs for an onnx.ModelProto: floats standard normal, masks one, token types 0 or 1,
    other integers token ids. Symbolic axes are 1 unless `shapes` gives the whole shape."""
    from onnx import helper

    rng = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = (shapes or {}).get(value.name) or [dim.dim_value or 1 for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.floating):
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
        elif "mask" in value.name or dtype == np.bool_:
            inputs[value.name] = np.ones(shape, dtype)
        else:
            limit = 2 if "token_type" in value.name else TOKENS
            inputs[value.name] = rng.integers(0, limit, shape).astype(dtype)
    return inputs


class Worker:
    """One model loaded in one engine, in a child process; close it, or use it in a `with`.

    `pause_s`: what the child waits before each run, as a program that calls now and then.
    `label`: what the worker is called in results, the engine's name by default.
    `load_s`: from path to runnable, with the imports: what a user waits for.
    `outputs`: of the first run, in model order.
    `facts`: what the engine knows of its own code.
    `artifact`: with `save`, what the engine compiled as a file; None if it saves none.
    `load_rss_bytes`, `peak_rss_bytes`: peak memory of the child until it was loaded, and so far.
    `others_cores`: cores that other processes kept busy during its bursts, at most; a figure taken
    with more than a tenth of a core gone is not to be trusted.
    Raises EngineError where the engine fails.
    """

    def __init__(
        self,
        engine: str,
        path: str | Path,
        inputs: Inputs,
        threads: int,
        label: str | None = None,
        *,
        pause_s: float = 0.0,
        save: bool = False,
    ) -> None:
        self.engine = label or engine
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        folder = Path(self._folder.name)
        self._stderr = folder / "stderr"
        (folder / "inputs").write_bytes(pickle.dumps(dict(inputs)))
        pools = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, __file__, engine, path, str(threads), folder, str(pause_s)),
                    *["save"][:save],
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | pools,
                text=True,
            )
        self.peak_rss_bytes = 0
        self.others_cores = 0.0
        try:
            loaded = self._reply()
            self.load_s: float = loaded["load_s"]
            self.load_rss_bytes: int = loaded["load_rss_bytes"]
            self.facts: dict[str, Any] = loaded["facts"]
            self.outputs: list[np.ndarray] = pickle.loads((folder / "outputs").read_bytes())
        except BaseException:
            self.close()
            raise
        self.artifact = folder / ARTIFACT if (folder / ARTIFACT).exists() else None

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._process.poll() is None

    def burst(self) -> float:
        """Runs one burst; the median seconds of a run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead child: _reply says why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        reply = self._reply()
        self.others_cores = max(self.others_cores, reply["others_cores"])
        return float(reply["median_s"])

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            said = self._stderr.read_text(errors="replace").split("\n")
            last = next((text.strip() for text in reversed(said) if text.strip()), "no message")
            raise EngineError(f"{self.engine}: {last} (exit code {code})")
        reply: dict[str, Any] = json.loads(line)
        self.peak_rss_bytes = reply["peak_rss_bytes"]
        return reply

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def interleave(workers: Sequence[Worker], rounds: int) -> dict[str, list[float]]:
    """Bursts in turn, A B A B ..., so that a slow spell of the machine meets every engine alike.
    The median seconds of each engine's burst, per round."""
    seconds: dict[str, list[float]] = {worker.engine: [] for worker in workers}
    for _ in range(rounds):
        for worker in workers:
            seconds[worker.engine].append(worker.burst())
    return seconds


def onnxruntime_latency(path: str | Path, inputs: Inputs, threads: int, rounds: int) -> list[float]:
    """ONNX Runtime's median seconds of each of `rounds` bursts, alone in a process of its own."""
    with Worker("onnxruntime", path, inputs, threads) as worker:
        return interleave([worker], rounds)["onnxruntime"]


def _peak_rss_bytes() -> int:
    # Not getrusage: its maximum survives exec, so a child would report its parent's.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise EngineError("/proc/self/status has no VmHWM; peak memory is read on Linux only")


def busy_s() -> float:
    """CPU seconds the whole machine has been busy, time stolen by a hypervisor included."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def _timed_burst(run: Callable[[], object], pause_s: float) -> dict[str, float]:
    run()  # brings code and weights back into the caches
    times: list[float] = []
    others_s = -(busy_s() - time.process_time())
    start = time.perf_counter()
    while len(times) < BURST_RUNS or time.perf_counter() - start < BURST_S + 10 * pause_s:
        if pause_s:
            time.sleep(pause_s)
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    others_s += busy_s() - time.process_time()
    others_cores = max(0.0, others_s / (time.perf_counter() - start))
    return {"median_s": statistics.median(times), "others_cores": others_cores}


def _settle() -> None:
    """Waits until this process's thread pools have stopped spinning: the next engine's turn."""
    deadline = time.perf_counter() + SETTLE_S
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(QUIET_S)
        if time.process_time() - used < QUIET_S / 10:
            return


def _child(engine: str, path: str, threads: str, where: str, pause_s: str, save: str = "") -> None:
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints must not mix with our replies
    folder = Path(where)

    def reply(**fields: Any) -> None:
        pipe.write(json.dumps(fields | {"peak_rss_bytes": _peak_rss_bytes()}) + "\n")
        pipe.flush()

    inputs = pickle.loads((folder / "inputs").read_bytes())
    start = time.perf_counter()
    loaded = LOADERS[engine](path, inputs, int(threads))
    load_s = time.perf_counter() - start
    (folder / "outputs").write_bytes(pickle.dumps([np.asarray(y) for y in loaded.run()]))
    loaded.run()
    load_rss_bytes = _peak_rss_bytes()
    if save and loaded.save is not None:
        loaded.save(folder / ARTIFACT)
    _settle()
    reply(load_s=load_s, load_rss_bytes=load_rss_bytes, facts=loaded.facts)
    for _ in sys.stdin:
        figures = _timed_burst(loaded.run, float(pause_s))
        _settle()
        reply(**figures)


if __name__ == "__main__":
    _child(*sys.argv[1:])
