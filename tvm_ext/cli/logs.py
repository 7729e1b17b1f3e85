"""`python -m tvm_ext.logs`: what tuning logs hold, and what can be done with whole logs.

Other verbs: merge, prune and diff in `logs_change`, export and import in `logs_exchange`, picture
in `logs_picture`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from tvm_ext.cli import logs_change, logs_exchange, logs_picture
from tvm_ext.cli.common import Answer, CommandError, Parser, add_json, run_main
from tvm_ext.cli.logs_common import logs_answer, read_logs, table_width
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
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="show|best|merge|prune|diff|export|import|picture"
    )
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
    changing = logs_change.add_verbs(verbs, prog)
    exchanging = logs_exchange.add_verbs(verbs, prog)
    drawing = logs_picture.add_verbs(verbs, prog)
    for verb in (show, best, *changing, *exchanging, *drawing):
        add_json(verb)
    return parser


def _show(args: argparse.Namespace) -> Answer:
    records, corrupt = read_logs(args.paths)
    if args.task is None:
        summaries = summarise(records)
        text = summary_text(summaries, **table_width()) if summaries else "no records"
        tasks = [{**entry.to_dict(), "best": None} for entry in summaries]
        return logs_answer([text], corrupt, {"records": len(records), "tasks": tasks})
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
    return logs_answer([title, records_text(chosen, **table_width())], corrupt, data)


def _best(args: argparse.Namespace) -> Answer:
    records, corrupt = read_logs(args.paths)
    summaries = summarise(records)
    text = best_text(summaries, **table_width()) if summaries else "no records"
    return logs_answer([text], corrupt, {"tasks": [entry.to_dict() for entry in summaries]})


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), lambda args: args.work(args), argv)
