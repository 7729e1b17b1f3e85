"""The main job on a real model: compile, tune, verify, ship, and compare with ONNX Runtime.

    python examples/demo.py [--trials 64] [--rounds 5]

The model is ResNet-50 from the onnx wheel with random weights (the wheel's own are constants,
which would hide errors). Tuning resumes from the log in `build/demo_logs`, if there was a demo
before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import tvm_ext
from tvm_ext.cli.common import positive
from tvm_ext.frontend.randomise import randomise

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from peers import Worker, interleave, random_inputs  # noqa: E402

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
BOUND = 1e-4


def error_of(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest difference over the largest magnitude."""
    pairs = list(zip(outputs, expected, strict=True))
    return float(max(np.abs(y - e).max() / np.abs(e).max() for y, e in pairs))


def main() -> int:
    """Runs the demo; exit code 1 if an output is out of bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=positive, default=64, help="measurements for tuning")
    parser.add_argument("--rounds", type=positive, default=5, help="interleaved timing rounds")
    parser.add_argument("--log", default=str(ROOT / "build" / "demo_logs"), help="tuning log")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "resnet50.onnx"
        onnx.save(randomise(onnx.load(str(MODEL))), str(model))
        inputs = random_inputs(onnx.load(str(model)))

        console.print("[bold]compile[/] (nothing measured)")
        start = time.perf_counter()
        picked = tvm_ext.compile(str(model), notify=lambda phase: console.print(f"  {phase}"))
        compile_s = time.perf_counter() - start
        picked.save(Path(folder) / "picked.so")

        console.print(f"[bold]tune[/] ({options.trials} trials, log {options.log})")
        start = time.perf_counter()
        tuned = tvm_ext.tune(str(model), trials=options.trials, log=options.log)
        tune_s = time.perf_counter() - start
        tuned.save(Path(folder) / "tuned.so")
        for note in tuned.manifest.notes:
            console.print(f"  {note}")

        console.print("[bold]compare[/] (each engine in a process of its own, in turn)")
        threads = picked.manifest.num_threads
        with (
            Worker("onnxruntime", str(model), inputs, threads) as ort,
            Worker("tvm_ext", str(Path(folder) / "picked.so"), inputs, threads, "compiled") as one,
            Worker("tvm_ext", str(Path(folder) / "tuned.so"), inputs, threads, "tuned") as two,
        ):
            seconds = interleave([ort, one, two], options.rounds)
            expected = ort.outputs
            errors = {
                "compiled": error_of(one.outputs, expected),
                "tuned": error_of(two.outputs, expected),
            }

    table = Table(
        title=f"ResNet-50, batch 1, float32, {threads} threads",
        caption="error: max|Δ| / max|y| against ONNX Runtime",
    )
    for heading in ("engine", "ready after", "latency", "speed", "check", "error"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    base = np.median(seconds["onnxruntime"])
    ready = f"{ort.load_s:.1f} s"
    table.add_row("ONNX Runtime", ready, f"{base * 1e3:.2f} ms", "1.00x", "reference", "")
    for name, ready_s in (("compiled", compile_s), ("tuned", tune_s)):
        ratio = np.median(np.array(seconds["onnxruntime"]) / np.array(seconds[name]))
        table.add_row(
            f"tvm_ext, {name}",
            f"{ready_s:.1f} s",
            f"{np.median(seconds[name]) * 1e3:.2f} ms",
            f"{ratio:.2f}x",
            "ok" if errors[name] <= BOUND else "WRONG",
            f"{errors[name]:.1e}",
        )
    console.print(table)
    return 0 if max(errors.values()) <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
