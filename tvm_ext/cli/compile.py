"""`python -m tvm_ext.compile`: a model compiled in seconds, nothing measured."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tvm_ext.cli.common import (
    Answer,
    Parser,
    add_common,
    add_model,
    add_reference,
    check_output,
    check_target,
    is_verified,
    note_lines,
    run_main,
    shapes_of,
    status,
    text_style,
    whole_model,
)
from tvm_ext.report.groups import groups_text, hardware_text, sources


def make_parser() -> Parser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m tvm_ext.compile",
        description="Compile a model without measuring anything: plans come from the log where it\n"
        "has records, else from the analytical picker.",
        example="python -m tvm_ext.compile model.onnx --shape input=1,3,224,224 -o model.so",
    )
    add_model(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="model.so", help="artifact to write"
    )
    parser.add_argument("--log", help="folder or .jsonl file of a tuning log to take plans from")
    parser.add_argument(
        "--no-verify", action="store_true", help="check neither kernels nor the whole model"
    )
    add_reference(parser)
    parser.add_argument("--report", action="store_true", help="print every kernel with its plan")
    add_common(parser)
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Compiles and says what came of it."""
    output = check_output(args.output, ".so")
    shapes = shapes_of(args.shape)
    check_target(args.target)
    started = time.monotonic()
    with status(args.json) as notify:
        from tvm_ext.flow import compile

        compiled = compile(
            args.model,
            args.target,
            log=args.log,
            shapes=shapes,
            num_threads=args.threads,
            precision=args.precision,
            verify=not args.no_verify,
            notify=notify,
        )
        with _begun(compiled, args.model) as begun:
            results = []

            def compare() -> None:
                notify("comparing")
                results.append(whole_model(compiled, args.model, args, begun))

            notify("linking")
            compiled.save(output, check=compare)
        ((checked, check),) = results
    manifest = compiled.manifest
    data: dict[str, Any] = {
        "model": args.model,
        "artifact": str(output),
        "seconds": time.monotonic() - started,
        "hardware": manifest.hardware,
        "hardware_name": manifest.hardware_name,
        "num_threads": manifest.num_threads,
        "kernels": sources(manifest),
        "verified": sum(group.verified for group in manifest.groups),
        "check": check,
        "code_hash": manifest.code_hash,
        "notes": manifest.notes,
    }
    kernels = ", ".join(f"{source} {count}" for source, count in data["kernels"].items())
    lines = [
        f"compiled {args.model} in {data['seconds']:.1f} s, for {hardware_text(manifest)}",
        f"kernels   {len(manifest.groups)}: {kernels}; {data['verified']} verified",
        *([f"open      {', '.join(manifest.limits())}"] if manifest.limits() else []),
        checked,
        *note_lines(manifest.notes),
        f"artifact  {output}",
    ]
    if args.report:
        data["report"] = compiled.report.to_dict()
        lines += ["", groups_text(manifest, **text_style())]
    return Answer("\n".join(lines), data)


def _begun(compiled: Any, model: str) -> AbstractContextManager[Any]:
    """The other engine at work already, if the model is to be compared: it runs beside linking."""
    from tvm_ext.check import begin

    return (begin(compiled, model) if is_verified(compiled) else None) or nullcontext()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
