"""`python -m tvm_ext.report`: the kernels of an artifact, their plans, bounds and times."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tvm_ext.cli.common import (
    Answer,
    CommandError,
    Parser,
    add_json,
    check_output,
    positive,
    run_main,
    status,
    text_style,
)
from tvm_ext.errors import TargetError
from tvm_ext.records.manifest import Manifest
from tvm_ext.records.profile import with_profile
from tvm_ext.report.figure import SUFFIXES, require_matplotlib
from tvm_ext.report.fusions import fusions_text
from tvm_ext.report.groups import groups_text
from tvm_ext.report.picture import draw_roofline
from tvm_ext.report.roofline import group_lines, roofline_text
from tvm_ext.report.tile_graph import draw_tile_graph, level_bytes, level_text

if TYPE_CHECKING:
    from tvm_ext.hardware import HardwareModel


RUNS = 20
"""Runs that are timed where no number is given."""


def make_parser() -> Parser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m tvm_ext.report",
        description="Print every kernel of a compiled model: where its plan comes from, what\n"
        "bounds it, what it should take, and why better plans were not used.",
        example="python -m tvm_ext.report model.so --measure --roofline model.svg",
    )
    parser.add_argument("artifact", metavar="model.so")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time every kernel inside the running model, beside what the machine allows",
    )
    parser.add_argument("--runs", type=positive, metavar="N", help=f"runs that are timed ({RUNS})")
    parser.add_argument(
        "--roofline",
        metavar="out.svg",
        help="draw the kernels under the machine's roofs, as .svg or .png",
    )
    parser.add_argument(
        "--fusion",
        action="store_true",
        help="print which memory-bound kernels became one, and why the others stayed apart",
    )
    parser.add_argument(
        "--graph",
        metavar="out.svg",
        help="draw the tile graph: kernels, their stages, and the memory level of every edge",
    )
    add_json(parser)
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Reads the manifest inside the artifact; only `--measure` runs anything."""
    if args.runs is not None and not args.measure:
        raise CommandError(f"--runs {args.runs}: counts runs that are timed; add --measure")
    picture = None if args.roofline is None else check_output(args.roofline, *SUFFIXES)
    graph = None if args.graph is None else check_output(args.graph, *SUFFIXES)
    if picture is not None or graph is not None:
        require_matplotlib()

    from tvm_ext.runtime.artifact import load_artifact
    from tvm_ext.runtime.executor import Compiled
    from tvm_ext.runtime.threads import use_threads

    executable, manifest = load_artifact(Path(args.artifact))
    if graph is not None:
        draw_tile_graph(manifest, graph)
        told = {"levels": level_bytes(manifest), "graph": str(graph)}
        return Answer(level_text(manifest) + f"\ngraph     {graph}", told)
    if args.fusion:
        fusions = [msgspec.to_builtins(fusion) for fusion in manifest.fusions]
        return Answer(fusions_text(manifest, **text_style()), {"fusions": fusions})
    if not args.measure and picture is None:
        return Answer(groups_text(manifest, **text_style()), msgspec.to_builtins(manifest))
    on_cpu = manifest.device == "cpu"
    cores = manifest.num_threads
    if args.measure and on_cpu:
        cores = use_threads(cores)
    hardware = machine_of(manifest, cores)
    profile = None
    if args.measure:
        from tvm_ext.runtime.peak import Peak

        with status(args.json) as say:
            runs = args.runs or RUNS
            say(f"running the model {runs} times")
            compiled = Compiled(executable, manifest)
            read_peak = Peak(hardware).gflops if on_cpu else None
            profile = compiled.profile(runs=runs, read_peak=read_peak)
        manifest = with_profile(manifest, profile)
    data: dict[str, Any] = msgspec.to_builtins(manifest)
    data["roofline"] = [line.to_dict() for line in group_lines(manifest, hardware, profile)]
    data["machine"] = msgspec.to_builtins(hardware)
    if profile is not None:
        data["profile"] = msgspec.to_builtins(profile)
    text = roofline_text(manifest, hardware, profile, **text_style())
    if picture is not None:
        draw_roofline(manifest, hardware, picture)
        data["picture"] = str(picture)
        text += f"\npicture   {picture}"
    return Answer(text, data)


def machine_of(manifest: Manifest, cores: int) -> HardwareModel:
    """The machine an artifact was made for, with the cores that are used.

    Raises TargetError if that was somebody's own machine and is not this one.
    """
    from tvm_ext.hardware import resolve

    found = resolve(manifest.hardware_name)
    made_for = msgspec.structs.replace(found, cores=manifest.num_threads)
    if found.name == "cpu/host" and made_for.fingerprint() != manifest.hardware:
        raise TargetError(
            f"artifact of {manifest.model}: made on another machine ({manifest.hardware}), whose "
            "roofs are not known here; report on it there, or compile the model here"
        )
    return msgspec.structs.replace(found, cores=cores)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
