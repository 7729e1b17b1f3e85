"""`python -m tvm_ext.report`: the kernels of an artifact, their plans and bounds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tvm_ext.cli.common import Answer, Parser, add_json, run_main, text_style
from tvm_ext.report.groups import groups_text


def make_parser() -> Parser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m tvm_ext.report",
        description="Print every kernel of a compiled model: where its plan comes from, what\n"
        "bounds it, what it should take, and why better plans were not used.",
        example="python -m tvm_ext.report model.so",
    )
    parser.add_argument("artifact", metavar="model.so")
    add_json(parser)
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Reads the manifest inside the artifact; no kernel is run."""
    from tvm_ext.runtime.artifact import load_artifact

    _, manifest = load_artifact(Path(args.artifact))
    return Answer(groups_text(manifest, **text_style()), msgspec.to_builtins(manifest))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
