"""`logs merge`, `logs prune` and `logs diff`: whole logs joined, cut down and compared."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from tvm_ext.cli.common import Answer, Parser, positive
from tvm_ext.cli.logs_common import logs_answer, table_width
from tvm_ext.records import Database


def add_verbs(verbs: Any, prog: str) -> list[Parser]:
    """Adds the three verbs and returns their parsers."""
    merge: Parser = verbs.add_parser(
        "merge",
        help="add the records of logs to another one",
        example=f"{prog} merge laptop_logs server_logs tuning_logs",
    )
    merge.add_argument("paths", nargs="+", metavar="SRC")
    merge.add_argument("destination", metavar="DEST")
    merge.set_defaults(work=_merge)
    prune: Parser = verbs.add_parser(
        "prune",
        help="copy the records of every task's best plan to a new log",
        example=f"{prog} prune tuning_logs best_logs --keep 3",
    )
    prune.add_argument("source", metavar="SRC")
    prune.add_argument("destination", metavar="DEST")
    prune.add_argument(
        "--keep", type=positive, default=1, metavar="N", help="plans kept of every task (1)"
    )
    prune.set_defaults(work=_prune)
    diff: Parser = verbs.add_parser(
        "diff",
        help="best latencies of two logs, task by task on the same machine",
        example=f"{prog} diff last_week_logs tuning_logs",
    )
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    diff.set_defaults(work=_diff)
    return [merge, prune, diff]


def _merge(args: argparse.Namespace) -> Answer:
    from tvm_ext.records.merge import merge

    done = merge(args.paths, args.destination)
    text = f"{done.added} records added to {args.destination}, {done.duplicates} it had already"
    if Path(args.destination).resolve() in {Path(path).resolve() for path in args.paths}:
        text += "; it is one of the sources, and its own records are not counted"
    data = {
        "destination": args.destination,
        "added": done.added,
        "duplicates": done.duplicates,
    }
    return logs_answer([text], done.corrupt, data)


def _prune(args: argparse.Namespace) -> Answer:
    from tvm_ext.records.prune import prune

    done = prune(args.source, args.destination, args.keep)
    plans = "the best plan" if args.keep == 1 else f"the {args.keep} best plans"
    lines = [
        f"{done.kept} records kept in {args.destination}, {done.dropped} dropped: "
        f"{plans} of {done.tasks} tasks"
    ]
    if done.lost:
        lines.append(f"{done.lost} tasks have no plan that works: nothing of them was kept")
    data = {
        "source": args.source,
        "destination": args.destination,
        "keep": args.keep,
        "kept": done.kept,
        "dropped": done.dropped,
        "tasks": done.tasks,
        "lost": done.lost,
    }
    return logs_answer(lines, done.corrupt, data)


def _diff(args: argparse.Namespace) -> Answer:
    from tvm_ext.records.diff import diff, geomean
    from tvm_ext.report.log_changes import diff_text

    old, new = Database.open(args.old), Database.open(args.new)
    changes = diff(old, new)
    tasks = [{**msgspec.to_builtins(change), "speedup": change.speedup} for change in changes]
    data = {"old": args.old, "new": args.new, "tasks": tasks, "geomean": geomean(changes)}
    return logs_answer([diff_text(changes, **table_width())], (*old.corrupt, *new.corrupt), data)
