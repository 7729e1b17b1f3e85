"""One artifact for every batch beside artifacts for one: what leaving the batch open costs.

    python benchmarks/models.py --out bench_models resnet18 mobilenet_v2 --dynamic
    python benchmarks/open_batch.py bench_models/*_dynamic.onnx

Both run in this process, in turn; medians, and the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx

import tvm_ext
from tvm_ext.frontend.shapes import runtime_inputs
from tvm_ext.runtime.profile import random_inputs

BATCHES = (1, 2, 8)


def open_shapes(model: onnx.ModelProto, batch: int | str) -> dict[str, tuple[int | str, ...]]:
    """A shape for each input, whose first dimension is the batch."""
    return {
        value.name: (batch, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        for value in runtime_inputs(model)
    }


def compiled(path: str, batch: int | str) -> tuple[Any, float]:
    """The model for a batch, not verified, and the seconds that took."""
    started = time.perf_counter()
    made = tvm_ext.compile(path, shapes=open_shapes(onnx.load(path), batch), verify=False)
    return made, time.perf_counter() - started


def seconds(model: Any, arrays: Sequence[np.ndarray]) -> float:
    """One run."""
    started = time.perf_counter()
    model(*arrays)
    return time.perf_counter() - started


def compare(path: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each batch."""
    anywhere, open_seconds = compiled(path, "n")
    rows = []
    for batch in BATCHES:
        known, known_seconds = compiled(path, batch)
        arrays = random_inputs(known.inputs)
        results = zip(anywhere(*arrays), known(*arrays), strict=True)
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in results)
        pairs = [(seconds(anywhere, arrays), seconds(known, arrays)) for _ in range(rounds)]
        rows.append(
            {
                "model": Path(path).stem,
                "batch": batch,
                "open_ms": 1e3 * median(a for a, _ in pairs),
                "known_ms": 1e3 * median(b for _, b in pairs),
                "known_over_open": median(b / a for a, b in pairs),
                "error": error,
                "open_compile_s": open_seconds,
                "known_compile_s": known_seconds,
            }
        )
    return rows


def main() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json")
    args = parser.parse_args()
    found = []
    for path in args.models:
        for row in compare(path, args.rounds):
            found.append(row)
            print(
                f"{row['model']:28} batch {row['batch']}  open {row['open_ms']:8.2f} ms  "
                f"known {row['known_ms']:8.2f} ms  known / open {row['known_over_open']:.2f}  "
                f"error {row['error']:.0e}  compiled in {row['open_compile_s']:.1f} s, "
                f"{row['known_compile_s']:.1f} s",
                flush=True,
            )
    ratios = [row["known_over_open"] for row in found]
    print(f"geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
