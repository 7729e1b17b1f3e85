"""Inference engines to compare with, each run in a process of its own.

A child process loads one model in one engine, then sits blocked on stdin until it is told to run a
burst; so one engine is measured while the others neither compute nor spin.

    with (
        Worker("onnxruntime", path, inputs, threads=2) as ort,
        Worker("tvm_ext", path, inputs, threads=2) as ours,
    ):
        seconds = interleave([ort, ours], rounds=5)  # {"onnxruntime": [...], "tvm_ext": [...]}

Run as a script this file is the child: `peers.py ENGINE MODEL THREADS INPUTS OUTPUTS`.
"""

from __future__ import annotations

import contextlib
import importlib.util
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

Inputs = Mapping[str, np.ndarray]
Run = Callable[[], list[np.ndarray]]

BURST_S = 0.3  # a burst lasts at least this long
BURST_RUNS = 5  # and has at least this many runs
QUIET_S = 0.02  # threads that use no CPU for this long have stopped spinning
SETTLE_S = 2.0  # how long spinning threads are waited for
TOKENS = 1000  # random token ids are below this


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


def _load_onnxruntime(optimise: bool) -> Callable[[str, Inputs, int], Run]:
    def load(path: str, inputs: Inputs, threads: int) -> Run:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        )
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, dict(inputs))

    return load


def _load_openvino(path: str, inputs: Inputs, threads: int) -> Run:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # it would take bf16 where the CPU has it
    }
    request = openvino.compile_model(path, "CPU", settings).create_infer_request()

    def run() -> list[np.ndarray]:
        request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [output.data for output in request.output_tensors]

    return run


def _load_tvm_ext(path: str, inputs: Inputs, threads: int) -> Run:
    import tvm_ext

    if path.endswith(".so"):
        compiled = tvm_ext.load(path, num_threads=threads)
    else:
        shapes = {name: tuple(value.shape) for name, value in inputs.items()}
        compiled = tvm_ext.compile(path, shapes=shapes, num_threads=threads)
    return lambda: list(compiled(dict(inputs)))


LOADERS: dict[str, Callable[[str, Inputs, int], Run]] = {
    "tvm_ext": _load_tvm_ext,
    "onnxruntime": _load_onnxruntime(optimise=True),
    "onnxruntime-noopt": _load_onnxruntime(optimise=False),
    "openvino": _load_openvino,
}


def installed(engine: str) -> bool:
    """Whether the engine's package can be imported here."""
    return importlib.util.find_spec(engine.split("-")[0]) is not None


class Worker:
    """One model loaded in one engine, in a child process; close it, or use it in a `with`.

    `label`: what the worker is called in results, the engine's name by default.
    `load_s`: from path to runnable, with the imports: what a user waits for.
    `outputs`: of the first run, in model order.
    `peak_rss_bytes`: of the child so far.
    `others_cores`: cores that other processes kept busy during its bursts, at most; a figure taken
    with more than a tenth of a core gone is not to be trusted.
    Raises EngineError where the engine fails.
    """

    def __init__(
        self, engine: str, path: str | Path, inputs: Inputs, threads: int, label: str | None = None
    ) -> None:
        self.engine = label or engine
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        folder = Path(self._folder.name)
        given, results, self._stderr = folder / "inputs", folder / "outputs", folder / "stderr"
        given.write_bytes(pickle.dumps(dict(inputs)))
        pools = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, __file__, engine, path, str(threads), given, results],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | pools,
                text=True,
            )
        self.peak_rss_bytes = 0
        self.others_cores = 0.0
        try:
            self.load_s: float = self._reply()["load_s"]
            self.outputs: list[np.ndarray] = pickle.loads(results.read_bytes())
        except BaseException:
            self.close()
            raise

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


def _busy_s() -> float:
    """CPU seconds the whole machine has been busy, time stolen by a hypervisor included."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def _timed_burst(run: Run) -> dict[str, float]:
    run()  # brings code and weights back into the caches
    times: list[float] = []
    others_s = -(_busy_s() - time.process_time())
    start = time.perf_counter()
    while len(times) < BURST_RUNS or time.perf_counter() - start < BURST_S:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    others_s += _busy_s() - time.process_time()
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


def _child(engine: str, path: str, threads: str, given: str, results: str) -> None:
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints must not mix with our replies

    def reply(**fields: float) -> None:
        pipe.write(json.dumps(fields | {"peak_rss_bytes": _peak_rss_bytes()}) + "\n")
        pipe.flush()

    inputs = pickle.loads(Path(given).read_bytes())
    start = time.perf_counter()
    run = LOADERS[engine](path, inputs, int(threads))
    load_s = time.perf_counter() - start
    Path(results).write_bytes(pickle.dumps([np.asarray(y) for y in run()]))
    run()
    _settle()
    reply(load_s=load_s)
    for _ in sys.stdin:
        figures = _timed_burst(run)
        _settle()
        reply(**figures)


if __name__ == "__main__":
    _child(*sys.argv[1:])
