"""`logs picture`: the searches of a log drawn."""

from __future__ import annotations

import argparse
from collections import defaultdict
from datetime import datetime
from typing import Any

from tvm_ext.cli.common import Answer, CommandError, Parser, check_output
from tvm_ext.cli.logs_common import logs_answer
from tvm_ext.records import Database, Record
from tvm_ext.report.figure import SUFFIXES, require_matplotlib
from tvm_ext.report.search_picture import TaskTrials, Trial, draw_search, failure_counts


def add_verbs(verbs: Any, prog: str) -> list[Parser]:
    """Adds the verb and returns its parser."""
    picture: Parser = verbs.add_parser(
        "picture",
        help="draw how tasks got faster, how well they were predicted, what failed",
        example=f"{prog} picture tuning_logs -o search.svg",
    )
    picture.add_argument("path", metavar="PATH")
    picture.add_argument("-o", "--output", required=True, metavar="FILE", help=".svg or .png")
    picture.add_argument(
        "--task", metavar="SIG", default="", help="only tasks whose signature starts so"
    )
    picture.set_defaults(work=_picture)
    return [picture]


def _picture(args: argparse.Namespace) -> Answer:
    output = check_output(args.output, *SUFFIXES)
    require_matplotlib()
    database = Database.open(args.path)
    tasks = task_trials(database, args.task)
    if not tasks:
        asked = f" of a task {args.task}" if args.task else ""
        skipped = f", {database.corrupt[0]}" if database.corrupt else ""
        raise CommandError(
            f"log {args.path}: no usable record{asked}{skipped}; tune a model with it first"
        )
    draw_search(tasks, output)
    trials = sum(len(task.trials) for task in tasks)
    data = {
        "picture": str(output),
        "tasks": len(tasks),
        "trials": trials,
        "failures": failure_counts(tasks),
    }
    lines = [f"{trials} trials of {len(tasks)} tasks", f"picture   {output}"]
    return logs_answer(lines, database.corrupt, data)


def task_trials(database: Database, signature: str) -> list[TaskTrials]:
    """The trials of every task of the log whose signature starts so, with what the performance
    model of this machine says of them."""
    from tvm_ext.hardware import resolve
    from tvm_ext.picker import predict
    from tvm_ext.tile.plan import TilePlan

    hardware = resolve("cpu")
    by_task: dict[str, list[Record]] = defaultdict(list)
    for record in database.records():
        if record.task.signature.startswith(signature):
            by_task[record.task.signature].append(record)
    started = min(
        (_seconds(record) for records in by_task.values() for record in records), default=0.0
    )

    def predicted_us(task: str, plan: TilePlan) -> float | None:
        graph = database.graphs.get(task)
        try:
            return predict(graph, plan, hardware).latency_us if graph is not None else None
        except (LookupError, ArithmeticError, ValueError):  # of another version, or machine
            return None

    return [
        TaskTrials(
            records[0].task.kind,
            tuple(
                Trial(
                    _seconds(record) - started,
                    record.best_us,
                    predicted_us(task, record.plan),
                    record.error.kind if record.error else "",
                )
                for record in records
            ),
        )
        for task, records in by_task.items()
    ]


def _seconds(record: Record) -> float:
    return datetime.fromisoformat(record.time).timestamp()
