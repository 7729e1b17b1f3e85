"""Latency of a model in tvm_ext and in other engines, side by side: same inputs, threads and run.

    python benchmarks/compare.py bench_models/resnet50.onnx --threads 2 --rounds 5
    python benchmarks/compare.py a.onnx b.onnx --engines tvm_ext,onnxruntime --json out.json

Each engine has a process of its own and they are measured in turn. `ratio` is an engine's latency
over ONNX Runtime's, taken round by round (median, least and greatest): below 1 is faster. `error`
is max|Δ| / max|y| against ONNX Runtime, the greatest over the outputs.
Exits with 1 if an engine failed, with 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from peers import LOADERS, EngineError, Worker, installed, interleave, random_inputs

REFERENCE = "onnxruntime"
BUSY_CORES = 0.1  # other processes using more than this disturb a measurement


@dataclass
class Row:
    """What was measured of one engine; `failure` says why the rest is missing."""

    engine: str
    load_s: float | None = None
    round_s: list[float] = field(default_factory=list)
    round_ratio: list[float] = field(default_factory=list)
    error: float | None = None
    peak_rss_bytes: int | None = None
    others_cores: float | None = None
    failure: str | None = None


def relative_error(outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """max|Δ| / max|y|, the greatest over the outputs; infinite where shapes or counts differ, or
    where an output has a NaN that the reference has not."""
    if [y.shape for y in outputs] != [y.shape for y in wanted]:
        return float("inf")
    worst = 0.0
    for y, reference in zip(outputs, wanted, strict=True):
        delta = np.abs(y.astype(np.float64) - reference.astype(np.float64)).max(initial=0.0)
        scale = np.abs(reference.astype(np.float64)).max(initial=0.0)
        error = 0.0 if delta == 0.0 else float(delta / scale) if scale else float("inf")
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def compare(
    path: Path,
    engines: Sequence[str],
    *,
    threads: int,
    rounds: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> list[Row]:
    """Measures every engine on the model at `path`; one row each, in the order given.

    Engines are loaded one after the other, so compile times do not compete for the cores.
    """
    inputs = random_inputs(onnx.load(path, load_external_data=False), shapes, seed)
    rows = {engine: Row(engine) for engine in engines}
    workers: list[Worker] = []
    with contextlib.ExitStack() as stack:
        for engine in engines:
            try:
                workers.append(stack.enter_context(Worker(engine, path, inputs, threads)))
            except EngineError as error:
                rows[engine].failure = str(error)
        try:
            measured = interleave(workers, rounds)
        except EngineError as error:
            return [Row(engine, failure=f"measurement stopped: {error}") for engine in engines]
        wanted = next((w.outputs for w in workers if w.engine == REFERENCE), None)
        for worker in workers:
            row = rows[worker.engine]
            row.load_s, row.peak_rss_bytes = worker.load_s, worker.peak_rss_bytes
            row.round_s, row.others_cores = measured[worker.engine], worker.others_cores
            if wanted is not None:
                pairs = zip(row.round_s, measured[REFERENCE], strict=True)
                row.round_ratio = [mine / theirs for mine, theirs in pairs]
                row.error = relative_error(worker.outputs, wanted)
    return list(rows.values())


def show(path: Path, rows: Sequence[Row]) -> str:
    """The rows as a table of plain text."""
    lines = [
        f"{path.name}",
        f"  {'engine':18}{'load s':>8}{'latency ms':>12}  {'ratio':20}{'error':>9}{'peak MB':>9}",
    ]
    for row in rows:
        if row.failure is not None or row.load_s is None or row.peak_rss_bytes is None:
            lines.append(f"  {row.engine:18}  failed: {row.failure}")
            continue
        ratio = error = "-"
        if row.error is not None:
            low, high = min(row.round_ratio), max(row.round_ratio)
            ratio = f"{statistics.median(row.round_ratio):.2f} ({low:.2f}..{high:.2f})"
            error = f"{row.error:.1e}"
        latency_ms = statistics.median(row.round_s) * 1e3
        lines.append(
            f"  {row.engine:18}{row.load_s:8.2f}{latency_ms:12.3f}  {ratio:20}{error:>9}"
            f"{row.peak_rss_bytes / 1e6:9.0f}"
        )
    if (others := max((row.others_cores or 0.0 for row in rows), default=0.0)) > BUSY_CORES:
        lines.append(
            f"  not to be trusted: other processes used up to {others:.1f} cores meanwhile"
        )
    return "\n".join(lines)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, extents = text.partition("=")
    return name, tuple(int(extent) for extent in extents.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="model.onnx")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--engines",
        default=",".join(e for e in ("tvm_ext", REFERENCE, "openvino") if installed(e)),
        help=f"comma-separated, from: {', '.join(LOADERS)}; those installed by default",
    )
    parser.add_argument(
        "--shape", action="append", type=_shape, default=[], metavar="NAME=1,3,224,224"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    engines = list(dict.fromkeys(args.engines.split(",")))
    if unknown := [engine for engine in engines if engine not in LOADERS]:
        parser.error(f"no engine named {', '.join(unknown)}; there are {', '.join(LOADERS)}")
    if missing := [str(path) for path in args.models if not path.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be at least 1")

    results: dict[str, list[Row]] = {}
    settings = {"threads": args.threads, "rounds": args.rounds, "seed": args.seed}
    for path in args.models:
        try:
            rows = compare(path, engines, shapes=dict(args.shape), **settings)
        except DecodeError:
            parser.error(f"{path} is not an ONNX file")
        results[str(path)] = rows
        print(show(path, rows), flush=True)
    if args.json:
        figures = {name: [asdict(row) for row in rows] for name, rows in results.items()}
        args.json.write_text(json.dumps(settings | {"models": figures}, indent=1) + "\n")
    return 1 if any(row.failure for rows in results.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
