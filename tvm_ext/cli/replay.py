"""`python -m tvm_ext.replay`: a model compiled from a tuning log; nothing is measured or run."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvm_ext.cli.common import (
    Answer,
    Parser,
    add_common,
    add_model,
    check_output,
    check_target,
    note_lines,
    run_main,
    shapes_of,
    status,
)
from tvm_ext.records.manifest import Group


def make_parser() -> Parser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m tvm_ext.replay",
        description="Compile a model with the best plans of a tuning log. Nothing is measured;\n"
        "where the log has no record the analytical picker fills in, unless --strict.",
        example="python -m tvm_ext.replay model.onnx --log tuning_logs -o model.so --strict",
    )
    add_model(parser)
    parser.add_argument("--log", required=True, help="folder or .jsonl file of the tuning log")
    parser.add_argument(
        "-o", "--output", required=True, metavar="model.so", help="artifact to write"
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail if the log has no record for a kernel"
    )
    add_common(parser)
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Replays and lists which kernels the log had."""
    output = check_output(args.output, ".so")
    shapes = shapes_of(args.shape)
    check_target(args.target)
    started = time.monotonic()
    with status(args.json) as notify:
        from tvm_ext.flow import replay

        compiled = replay(
            args.model,
            args.log,
            args.target,
            strict=args.strict,
            shapes=shapes,
            num_threads=args.threads,
            precision=args.precision,
            notify=notify,
        )
        notify("linking")
        compiled.save(output)
    manifest = compiled.manifest
    hits = [group for group in manifest.groups if group.source == "log"]
    misses = [group for group in manifest.groups if group.source != "log"]
    data: dict[str, Any] = {
        "model": args.model,
        "log": args.log,
        "artifact": str(output),
        "seconds": time.monotonic() - started,
        "hardware": manifest.hardware,
        "hardware_name": manifest.hardware_name,
        "num_threads": manifest.num_threads,
        "hits": by_kind(hits),
        "misses": by_kind(misses),
        "measurements": 0,
        "code_hash": manifest.code_hash,
        "notes": manifest.notes,
    }
    lines = [
        f"replayed {args.model} from {args.log} in {data['seconds']:.1f} s, nothing was measured",
        f"hits      {len(hits)} of {len(manifest.groups)} kernels",
        *(f"  {count} x {kind}" for kind, count in data["hits"].items()),
        f"misses    {len(misses)} of {len(manifest.groups)} kernels",
        *(f"  {count} x {kind}" for kind, count in data["misses"].items()),
        f"code hash {manifest.code_hash}",
        *note_lines(manifest.notes),
        f"artifact  {output}",
    ]
    return Answer("\n".join(lines), data)


def by_kind(groups: Sequence[Group]) -> dict[str, int]:
    """Number of kernels of each kind, the commonest first."""
    return dict(Counter(group.kind for group in groups).most_common())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
