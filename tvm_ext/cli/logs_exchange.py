"""`logs export` and `logs import`: plans to and from the database of TVM's MetaSchedule."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from tvm_ext.cli.common import Answer, Parser, add_model, note_lines, positive, shapes_of, status
from tvm_ext.cli.logs_common import logs_answer, table_width
from tvm_ext.records import Database
from tvm_ext.records.exchange import add_missing

FORMATS = ("metaschedule",)


def add_verbs(verbs: Any, prog: str) -> list[Parser]:
    """Adds the two verbs and returns their parsers."""
    export: Parser = verbs.add_parser(
        "export",
        help="write the best plans of a model's kernels for stock TVM",
        example=f"{prog} export model.onnx --log tuning_logs --to metaschedule database",
    )
    add_model(export)
    export.add_argument("folder", metavar="DEST", help="new folder for the database")
    export.add_argument("--log", required=True, help="folder or .jsonl file of the tuning log")
    export.add_argument("--to", required=True, choices=FORMATS, help="whose database to write")
    export.add_argument(
        "--threads", type=positive, metavar="N", help="threads to run on (all physical cores)"
    )
    export.set_defaults(work=_export)
    bring: Parser = verbs.add_parser(
        "import",
        help="list the database of another tuner, and take plans of ours back from it",
        example=f"{prog} import --from metaschedule database --log tuning_logs",
    )
    bring.add_argument("folder", metavar="DIR", help="folder of the database")
    bring.add_argument(
        "--from", required=True, choices=FORMATS, dest="source", help="whose database it is"
    )
    bring.add_argument("--log", help="tuning log to add the plans to that are ours")
    bring.set_defaults(work=_import)
    return [export, bring]


def _export(args: argparse.Namespace) -> Answer:
    from tvm_ext.report.log_changes import export_text

    shapes = shapes_of(args.shape)
    database = Database.open(args.log)
    with status(args.json) as notify:
        from tvm_ext.flow import log_notes, lower
        from tvm_ext.metaschedule_export import check_new, export

        check_new(args.folder)
        notify("importing")
        lowered = lower(args.model, args.target, shapes, args.threads, args.precision)
        notify("replaying")
        tasks = export(lowered.tasks.values(), database, lowered.hardware, args.folder)
    exported = sum(entry.plan is not None for entry in tasks)
    notes = (*lowered.notes, *log_notes(database, lowered))
    data = {
        "model": args.model,
        "log": args.log,
        "to": args.to,
        "folder": args.folder,
        "exported": exported,
        "verified": sum(entry.verified for entry in tasks),
        "tasks": msgspec.to_builtins(tasks),
        "notes": notes,
    }
    lines = [
        export_text(tasks, **table_width()),
        f"{exported} of {len(tasks)} kernels exported to {args.folder}, {data['verified']} of them "
        "verified; latencies are those of our compiler, TVM's own may be slower",
        *note_lines(notes),
    ]
    return logs_answer(lines, (), data)


def _import(args: argparse.Namespace) -> Answer:
    from tvm_ext.report.log_changes import foreign_text

    log = Database.open(args.log, create=True) if args.log is not None else None
    with status(args.json) as notify:
        notify("reading")
        from tvm_ext.metaschedule_import import read

        found = read(args.folder)
    ours = [entry for entry in found if entry.records]
    lines = [foreign_text(found, **table_width())] if found else []
    lines.append(f"{len(found)} records in {args.folder}, {len(ours)} of them plans of ours")
    data = {
        "folder": args.folder,
        "from": args.source,
        "records": msgspec.to_builtins(found),
        "ours": len(ours),
    }
    if log is not None:
        data["added"] = add_missing(log, [r for entry in ours for r in entry.records])
        lines.append(
            f"{data['added']} records added to {args.log}: plans come with all their measurements"
        )
    return logs_answer(lines, log.corrupt if log else (), data)
