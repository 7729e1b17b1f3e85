"""`python -m tvm_ext.logs`: what tuning logs hold, and several of them made one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import msgspec

from tvm_ext.cli.common import Answer, CommandError, Parser, add_json, run_main, text_style
from tvm_ext.records import CorruptLine, Database, Record
from tvm_ext.report.log_tables import best_text, records_text, summarise, summary_text


def make_parser() -> Parser:
    """The command's arguments."""
    prog = "python -m tvm_ext.logs"
    parser = Parser(
        prog=prog,
        description="Look into tuning logs: folders, or single .jsonl files.",
        example=f"{prog} show tuning_logs\n  {prog} best tuning_logs --json\n"
        f"  {prog} merge laptop_logs server_logs tuning_logs",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show|best|merge")
    show = verbs.add_parser(
        "show", help="records by machine and task", example=f"{prog} show tuning_logs"
    )
    show.add_argument("paths", nargs="+", metavar="PATH")
    show.add_argument(
        "--task", metavar="SIG", help="list the records of the task whose signature starts so"
    )
    show.set_defaults(work=_show)
    best = verbs.add_parser(
        "best", help="the best plan of every task", example=f"{prog} best tuning_logs"
    )
    best.add_argument("paths", nargs="+", metavar="PATH")
    best.set_defaults(work=_best)
    merge = verbs.add_parser(
        "merge",
        help="add the records of logs to another one",
        example=f"{prog} merge laptop_logs server_logs tuning_logs",
    )
    merge.add_argument("paths", nargs="+", metavar="SRC")
    merge.add_argument("destination", metavar="DEST")
    merge.set_defaults(work=_merge)
    for verb in (show, best, merge):
        add_json(verb)
    return parser


def _read(paths: Sequence[str]) -> tuple[list[Record], list[CorruptLine]]:
    databases = [Database.open(path) for path in paths]
    records = [record for database in databases for record in database.records()]
    return records, [line for database in databases for line in database.corrupt]


def _show(args: argparse.Namespace) -> Answer:
    records, corrupt = _read(args.paths)
    if args.task is None:
        summaries = summarise(records)
        text = summary_text(summaries, **_width()) if summaries else "no records"
        tasks = [{**entry.to_dict(), "best": None} for entry in summaries]
        return _answer([text], corrupt, {"records": len(records), "tasks": tasks})
    chosen = [record for record in records if record.task.signature.startswith(args.task)]
    found = {record.task.signature: record.task for record in chosen}
    if len(found) != 1:
        known = ", ".join(sorted(found or {record.task.signature for record in records})) or "none"
        many = f"{len(found)} tasks" if found else "no record of a task"
        raise CommandError(f"--task {args.task}: {many} by this signature; the log has {known}")
    (task,) = found.values()
    title = f"{task.kind} ({task.signature}): {len(chosen)} records"
    data = {
        "task": msgspec.to_builtins(task),
        "records": [msgspec.to_builtins(record) for record in chosen],
    }
    return _answer([title, records_text(chosen, **_width())], corrupt, data)


def _best(args: argparse.Namespace) -> Answer:
    records, corrupt = _read(args.paths)
    summaries = summarise(records)
    text = best_text(summaries, **_width()) if summaries else "no records"
    return _answer([text], corrupt, {"tasks": [entry.to_dict() for entry in summaries]})


def _merge(args: argparse.Namespace) -> Answer:
    from tvm_ext.records.merge import merge

    done = merge(args.paths, args.destination)
    text = f"{done.added} records added to {args.destination}, {done.duplicates} it had already"
    data = {
        "destination": args.destination,
        "added": done.added,
        "duplicates": done.duplicates,
    }
    return _answer([text], done.corrupt, data)


def _answer(lines: Sequence[str], corrupt: Sequence[CorruptLine], data: dict[str, Any]) -> Answer:
    """With the lines of the logs that were skipped, which stay where they are."""
    skipped = [f"skipped: {line}" for line in corrupt]
    plain = [{"path": str(c.path), "line": c.line, "reason": c.reason} for c in corrupt]
    return Answer("\n".join([*lines, *skipped]), {**data, "corrupt": plain})


def _width() -> dict[str, Any]:
    return {name: value for name, value in text_style().items() if name == "width"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), lambda args: args.work(args), argv)
