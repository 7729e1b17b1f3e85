"""One artifact for every batch or length beside artifacts for one, and beside ONNX Runtime.

    python benchmarks/models.py --out bench_models resnet18 mobilenet_v2 --dynamic
    python benchmarks/open_extents.py bench_models/*_dynamic.onnx
    python benchmarks/models.py --out bench_models --dynamic length
    python benchmarks/open_extents.py bench_models/*_length.onnx --extents 5 16 37 64 128 300
    python benchmarks/models.py --out bench_models --dynamic both
    python benchmarks/open_extents.py bench_models/*_both.onnx --extents 1x16 4x37 8x64

All run in this process, in turn, with a pause before each in which the threads of others come to
rest; medians, and the medians of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tvm_ext
from tvm_ext.frontend.shapes import runtime_inputs
from tvm_ext.hardware import physical_cores
from tvm_ext.runtime.profile import random_inputs

PAUSE_S, WAKING = 0.2, 3
Run = Callable[[], Any]
Extents = Sequence[int]
"""Of what is symbolic, in the order of the inputs."""


def symbols(path: str) -> list[str]:
    """What is symbolic in a model's inputs."""
    model = onnx.load(path, load_external_data=False)
    dims = (dim for value in runtime_inputs(model) for dim in value.type.tensor_type.shape.dim)
    return list(dict.fromkeys(dim.dim_param for dim in dims if dim.HasField("dim_param")))


def compiled(path: str, extents: Extents | None) -> tuple[Any, float]:
    """The model for extents of what is symbolic, or with that left open, not verified, and the
    seconds that took."""
    names = symbols(path)
    shapes = {name: (own,) for name, own in zip(names, extents or names, strict=True)}
    started = time.perf_counter()
    made = tvm_ext.compile(path, shapes=shapes, verify=False)
    return made, time.perf_counter() - started


def seconds(run: Run) -> float:
    """One run after a pause and some others, which wake the threads."""
    time.sleep(PAUSE_S)
    for _ in range(WAKING):
        run()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def session(path: str) -> onnxruntime.InferenceSession:
    """The peer, on as many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = physical_cores()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare(path: str, choices: Sequence[Extents], rounds: int) -> list[dict[str, Any]]:
    """A row for each choice of extents."""
    anywhere, open_seconds = compiled(path, None)
    peer = session(path)
    rows = []
    for extents in choices:
        known, known_seconds = compiled(path, extents)
        arrays = random_inputs(known.inputs)
        named = {info.name: array for info, array in zip(known.inputs, arrays, strict=True)}
        runs: list[Run] = [
            lambda arrays=arrays: anywhere(*arrays),
            lambda known=known, arrays=arrays: known(*arrays),
            lambda named=named: peer.run(None, named),
        ]
        results = zip(runs[0](), runs[1](), strict=True)
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in results)
        times = [[seconds(run) for run in runs] for _ in range(rounds)]
        open_ms, known_ms, peer_ms = (1e3 * median(column) for column in zip(*times, strict=True))
        rows.append(
            {
                "model": Path(path).stem,
                "extent": "x".join(map(str, extents)),
                "open_ms": open_ms,
                "known_ms": known_ms,
                "onnxruntime_ms": peer_ms,
                "known_over_open": median(b / a for a, b, _ in times),
                "onnxruntime_over_open": median(c / a for a, _, c in times),
                "error": error,
                "open_compile_s": open_seconds,
                "known_compile_s": known_seconds,
            }
        )
    return rows


def main() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--extents", nargs="+", default=["1", "2", "8"])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json")
    args = parser.parse_args()
    choices = [tuple(map(int, text.split("x"))) for text in args.extents]
    found = []
    for path in args.models:
        for row in compare(path, choices, args.rounds):
            found.append(row)
            print(
                f"{row['model']:24}{row['extent']:>7}  open {row['open_ms']:8.2f} ms  "
                f"known {row['known_ms']:8.2f}  onnxruntime {row['onnxruntime_ms']:8.2f}  "
                f"known / open {row['known_over_open']:.2f}  "
                f"onnxruntime / open {row['onnxruntime_over_open']:.2f}  "
                f"error {row['error']:.0e}  compiled in {row['open_compile_s']:.1f} s, "
                f"{row['known_compile_s']:.1f} s",
                flush=True,
            )
    for which in ("known", "onnxruntime"):
        ratios = [row[f"{which}_over_open"] for row in found]
        print(
            f"{which} / open: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}"
        )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
