"""Latency of models in tvm_ext and in other engines, side by side: same inputs, threads and run.

    python benchmarks/compare.py bench_models/resnet50.onnx --threads 2 --rounds 5
    python benchmarks/compare.py a.onnx b.onnx --engines tvm_ext,onnxruntime --json out.json

Each engine has a process of its own and they are measured in turn. `ratio` is an engine's latency
over ours, taken round by round (median, least and greatest): above 1 ours is faster. `best/ours` is
that of the fastest other engine. `error` is max|Δ| / max|y| against ONNX Runtime, the greatest over
the outputs. `%roof` is the least time our kernels could take on this machine, by the hardware
model, over the time measured.
Exits with 1 if tvm_ext failed on a model, with 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from engines import LOADERS, installed
from google.protobuf.message import DecodeError
from peers import EngineError, Worker, interleave, random_inputs
from results import OURS, Model, Row, engines_text, models_text, summary

from tvm_ext.hardware import physical_cores

REFERENCE = "onnxruntime"
DEFAULT = (OURS, REFERENCE, "openvino", "torch")


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
    pause_ms: float = 0.0,
    precision: str = "float32",
) -> Model:
    """Measures every engine on the model at `path`; one row each, in the order given.

    `pause_ms`: between runs, with processors and threads asleep and caches left to others;
    `precision`: of products, in engines that leave the choice.

    Engines are loaded one after the other, so compile times do not compete for the cores. Ours is
    measured as it is deployed: saved, and loaded by another process. One that fails, at loading or
    later, has its reason in its row; the others are measured all the same.
    """
    inputs = random_inputs(onnx.load(path, load_external_data=False), shapes, seed)
    rows = {engine: Row(engine) for engine in engines}
    pause_s = pause_ms / 1e3
    with contextlib.ExitStack() as stack:
        workers: list[Worker] = []
        for engine in engines:
            row = rows[engine]
            try:
                chosen = f"{engine}-{precision}"
                kind = chosen if chosen in LOADERS else engine
                worker = Worker(kind, path, inputs, threads, pause_s=pause_s, save=engine == OURS)
                worker.engine = engine
                stack.enter_context(worker)
                row.load_s, row.load_rss_bytes = worker.load_s, worker.load_rss_bytes
                row.peak_rss_bytes, row.facts = worker.peak_rss_bytes, worker.facts
                if worker.artifact is not None:
                    loaded = Worker(OURS, worker.artifact, inputs, threads, pause_s=pause_s)
                    worker = stack.enter_context(loaded)
                workers.append(worker)
            except EngineError as error:
                row.failure = str(error)
        measured: dict[str, list[float]] = {}
        while workers and not measured:
            try:
                measured = interleave(workers, rounds)
            except EngineError as error:
                failed = next(worker for worker in workers if not worker.alive)
                rows[failed.engine].failure = f"while it was measured: {error}"
                workers.remove(failed)
        wanted = next((w.outputs for w in workers if w.engine == REFERENCE), None)
        for worker in workers:
            row = rows[worker.engine]
            row.others_cores, row.round_s = worker.others_cores, measured[worker.engine]
            if worker.engine == OURS:
                row.run_rss_bytes = worker.peak_rss_bytes
            else:
                row.peak_rss_bytes = worker.peak_rss_bytes
            if wanted is not None:
                row.error = relative_error(worker.outputs, wanted)
    return Model(path.stem, list(rows.values()))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, extents = text.partition("=")
    return name, tuple(int(extent) for extent in extents.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="model.onnx")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--engines",
        default=",".join(engine for engine in DEFAULT if installed(engine)),
        help=f"comma-separated, from: {', '.join(LOADERS)}; those installed by default",
    )
    parser.add_argument(
        "--shape", action="append", type=_shape, default=[], metavar="NAME=1,3,224,224"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument(
        "--pause-ms", type=float, default=0.0, help="wait before each run, as for requests"
    )
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="of products"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    engines = list(dict.fromkeys(args.engines.split(",")))
    if unknown := [engine for engine in engines if engine not in LOADERS]:
        parser.error(f"no engine named {', '.join(unknown)}; there are {', '.join(LOADERS)}")
    if missing := [str(path) for path in args.models if not path.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be at least 1")

    models: list[Model] = []
    settings = {"threads": args.threads, "rounds": args.rounds, "seed": args.seed}
    settings |= {"pause_ms": args.pause_ms, "precision": args.precision}
    for path in args.models:
        try:
            model = compare(path, engines, shapes=dict(args.shape), **settings)
        except DecodeError:
            parser.error(f"{path} is not an ONNX file")
        models.append(model)
        print(engines_text(model), flush=True)
        if args.json:
            figures = {entry.name: entry.plain() for entry in models}
            written = settings | {"summary": summary(models), "models": figures}
            args.json.write_text(json.dumps(written, indent=1) + "\n")
    print(f"\n{models_text(models, engines)}")
    return 1 if any(OURS in engines and model.row(OURS) is None for model in models) else 0


if __name__ == "__main__":
    sys.exit(main())
