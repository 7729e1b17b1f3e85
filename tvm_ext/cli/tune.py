"""`python -m tvm_ext.tune`: measure plans into a log and compile the best of them."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from tvm_ext.cli.common import (
    Answer,
    CommandError,
    Parser,
    add_common,
    add_model,
    add_reference,
    check_output,
    check_target,
    duration_s,
    natural,
    note_lines,
    positive,
    positive_ms,
    run_main,
    shapes_of,
    text_style,
    whole_model,
)
from tvm_ext.cli.progress import Watcher
from tvm_ext.errors import ArtifactError
from tvm_ext.records.manifest import Group, Manifest
from tvm_ext.report.groups import group_us, sources
from tvm_ext.report.text import draw, us_text
from tvm_ext.report.tune_table import failures, tune_table
from tvm_ext.search.task_scheduler import Objective

TRIALS = 200
"""Trials where neither time nor a goal ends the search."""
IMPORTS = "from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan"


def make_parser() -> Parser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m tvm_ext.tune",
        description="Measure plans for every kernel of a model, here or on a fleet, keep them in\n"
        "a log, and write the model compiled with the best. Run it again to go on: what\n"
        "the log has is not measured again. Ctrl-C stops it with the best so far. Of\n"
        "several models, kernels in common are measured once.",
        example="python -m tvm_ext.tune model.onnx --shape input=1,3,224,224 --trials 500 "
        "--time 10m -o model.so",
    )
    add_model(parser, several=True)
    parser.add_argument(
        "--trials",
        type=positive,
        metavar="N",
        help=f"measurements in all, those in the log included ({TRIALS}; with --time or --goal "
        "no limit)",
    )
    parser.add_argument(
        "--time", type=duration_s, metavar="10m", help="stop measuring after so long (no limit)"
    )
    parser.add_argument(
        "--goal", type=positive_ms, metavar="MS", help="or once a model's kernels take so long"
    )
    parser.add_argument(
        "--objective",
        choices=get_args(Objective),
        default="latency",
        help="of several models: their latencies' sum, or their geometric mean (latency)",
    )
    parser.add_argument(
        "--log", default="tuning_logs", help="folder or .jsonl file of the log (tuning_logs)"
    )
    parser.add_argument(
        "-o", "--output", metavar="model.so", help="artifact to write (the model's name, here)"
    )
    parser.add_argument(
        "--tracker", metavar="HOST:PORT", help="measure on a fleet (docs/fleet.md): its tracker"
    )
    parser.add_argument("--key", help="what the fleet's devices are called at the tracker")
    parser.add_argument(
        "--compiler",
        default="",
        metavar="g++",
        help="C++ compiler that links for the fleet's devices (this machine's)",
    )
    parser.add_argument(
        "--seed", type=natural, default=0, help="of the search and of test data (0)"
    )
    add_reference(parser)
    add_common(parser)
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Tunes and says what came of it."""
    if args.output is not None and len(args.model) > 1:
        raise CommandError(
            f"-o {args.output}: names one artifact, but {len(args.model)} models are tuned; leave "
            "it out, each is named after its model"
        )
    if bool(args.tracker) != bool(args.key):
        raise CommandError("fleet: --tracker and --key belong together; give both or neither")
    names = [f"{Path(m).stem}.so" if args.output is None else args.output for m in args.model]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        same = " and ".join(m for m, name in zip(args.model, names, strict=True) if name == twice)
        raise CommandError(
            f"models {same}: would all be written to {twice}; tune them one by one, each with -o"
        )
    outputs = [check_output(name, ".so") for name in names]
    shapes = shapes_of(args.shape)
    check_target(args.target)
    started = time.monotonic()
    trials = args.trials or (None if args.time or args.goal else TRIALS)
    with Watcher(", ".join(args.model), trials, quiet=args.json) as watcher:
        from tvm_ext.tuner import tune_all

        tuned = tune_all(
            args.model,
            args.target,
            trials=trials or sys.maxsize,
            log=args.log,
            time_budget_s=args.time,
            objective=args.objective,
            goals_us=[1e3 * args.goal] * len(args.model) if args.goal else (),
            seed=args.seed,
            shapes=shapes,
            num_threads=args.threads,
            precision=args.precision,
            fleet=(args.tracker, args.key, args.compiler) if args.tracker else None,
            watch=watcher,
        )
    answers = [
        _answer(args, model, compiled, output, watcher, started)
        for model, compiled, output in zip(args.model, tuned, outputs, strict=True)
    ]
    table = draw(tune_table(watcher.lines), **text_style()) if watcher.lines else ""
    text = "\n\n".join(filter(None, [table, *(answer.text for answer in answers)]))
    data = [answer.data for answer in answers]
    return Answer(text, data[0] if len(data) == 1 else {"models": data})


def _answer(
    args: argparse.Namespace,
    model: str,
    compiled: Any,
    output: Path,
    watcher: Watcher,
    started: float,
) -> Answer:
    """Checks and saves one model, and says what became of it."""
    checked, check = whole_model(compiled, model, args)
    seconds = time.monotonic() - started
    manifest: Manifest = compiled.manifest
    command = replay_command(args, model, output, manifest)
    try:
        compiled.save(output)
    except ArtifactError as error:
        raise ArtifactError(
            f"{error}; what was measured is in {args.log}, to compile it again: {command}"
        ) from error
    hottest = hottest_kernel(manifest)
    data: dict[str, Any] = {
        "model": model,
        "artifact": str(output),
        "log": args.log,
        "replay": command,
        "seconds": seconds,
        "trials": watcher.done,
        "hardware": manifest.hardware,
        "hardware_name": manifest.hardware_name,
        "num_threads": manifest.num_threads,
        "kernels": sources(manifest),
        "tasks": [line.to_dict() for line in watcher.lines],
        "failures": failures(watcher.lines),
        "hottest": msgspec.to_builtins(hottest) if hottest else None,
        "check": check,
        "code_hash": manifest.code_hash,
        "notes": manifest.notes,
    }
    return Answer(_text(data, hottest, checked), data)


def replay_command(args: argparse.Namespace, model: str, output: Path, manifest: Manifest) -> str:
    """What to type to get the same artifact again without measuring; strict if it can be."""
    words = ["python", "-m", "tvm_ext.replay", model, "--log", args.log, "-o", str(output)]
    if args.target != "cpu":
        words += ["--target", args.target]
    for shape in args.shape:
        words += ["--shape", shape]
    if args.precision:
        words += ["--precision", args.precision]
    if args.threads:
        words += ["--threads", str(args.threads)]
    # A kernel without traffic of its own has no tasks, so no record is asked of it.
    if all(group.source == "log" or not group.io_bytes for group in manifest.groups):
        words.append("--strict")
    return shlex.join(words)


def hottest_kernel(manifest: Manifest) -> Group | None:
    """The kernel with a plan that takes most of the model's time."""
    planned = [group for group in manifest.groups if group.plan is not None]
    return max(planned, key=lambda group: group.calls * group_us(group), default=None)


def _text(data: dict[str, Any], hottest: Group | None, checked: str) -> str:
    kernels = ", ".join(f"{source} {count}" for source, count in data["kernels"].items())
    failed = ", ".join(f"{kind} {count}" for kind, count in data["failures"].items())
    blocks = []
    lines = [
        f"tuned {data['model']} in {data['seconds']:.0f} s, "
        f"for {data['hardware_name']} ({data['hardware']}), {data['num_threads']} threads",
        f"kernels   {kernels}",
        f"failures  {failed or 'none'}",
        checked,
        *note_lines(data["notes"]),
        f"log       {data['log']}",
        f"artifact  {data['artifact']}",
        f"replay    {data['replay']}",
    ]
    blocks.append("\n".join(lines))
    if hottest is not None:
        what = "measured" if hottest.measured_us else "predicted"
        blocks.append(
            f"# plan of the kernel that takes longest: {hottest.kind}, {hottest.calls} x "
            f"{us_text(group_us(hottest))} us ({what})\n"
            f"{IMPORTS}\n\nplan = {hottest.plan!r}"
        )
    return "\n\n".join(blocks)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
