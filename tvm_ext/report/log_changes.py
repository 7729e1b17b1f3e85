"""Logs against each other, and against the database of another tuner, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.records.diff import TaskChange, geomean
from tvm_ext.records.exchange import ExportedTask, ForeignRecord
from tvm_ext.report.text import draw, short, table, us_text
from tvm_ext.tile import show_plan


def diff_text(changes: Sequence[TaskChange], width: int | None = None) -> str:
    """A line per task with its latency before and after, and the geometric mean at the end."""
    rows = table(
        "hardware",
        "task",
        "kernel",
        "old us",
        "new us",
        "speed-up",
        "",
        left=("hardware", "task", "kernel", ""),
    )
    for change in changes:
        rows.add_row(
            f"{change.hardware_name} ({change.hardware})",
            change.task.signature,
            change.task.kind,
            us_text(change.before_us or 0.0),
            us_text(change.after_us or 0.0),
            f"{change.speedup:.2f}x" if change.speedup else "-",
            _remark(change),
        )
    return draw(*([rows] if changes else []), _mean_line(changes), width=width)


def export_text(tasks: Sequence[ExportedTask], width: int | None = None) -> str:
    """A line per task with the plan that was exported, then what each goes without and why better
    plans, or all, stayed behind."""
    columns = ("task", "kernel", "log us", "replay us", "verified", "plan")
    rows = table(*columns, left=("task", "kernel", "plan"))
    for entry in tasks:
        rows.add_row(
            entry.task.signature,
            entry.task.kind,
            us_text(entry.latency_us),
            us_text(entry.replay_us) if entry.verified else "-",
            "yes" if entry.verified else "-",
            show_plan(entry.plan) if entry.plan else "not exported",
        )
    without: dict[str, list[str]] = {}
    for entry in tasks:
        for what in entry.left_out:
            without.setdefault(what, []).append(short(entry.task.signature))
    out = sum(entry.plan is not None for entry in tasks)
    lines = [
        f"without {what}: {'all' if len(names) == out else ', '.join(names)}"
        for what, names in without.items()
    ]
    picked = [short(entry.task.signature) for entry in tasks if entry.picked]
    if picked:
        lines.append(f"the picker's plan of whole tiles, not the log's: {', '.join(picked)}")
    lines += [
        f"{entry.task.kind} ({short(entry.task.signature)}): {reason}"
        for entry in tasks
        for reason in entry.reasons
    ]
    return draw(*([rows] if tasks else []), *lines, width=width)


def foreign_text(records: Sequence[ForeignRecord], width: int | None = None) -> str:
    """A line per workload and plan of ours, or reason why its records are none: how many records
    those are, and the best latency."""
    rows = table("workload", "stages", "records", "best us", "plan", left=("stages", "plan"))
    grouped: dict[tuple[int, str], list[ForeignRecord]] = {}
    for entry in records:
        plan = show_plan(entry.records[0].plan) if entry.records else f"none: {entry.reason}"
        grouped.setdefault((entry.workload, plan), []).append(entry)
    for (workload, plan), group in grouped.items():
        rows.add_row(
            str(workload) if workload >= 0 else "?",
            group[0].stages or "?",
            str(len(group)),
            us_text(min(entry.latency_us for entry in group)),
            plan,
        )
    return draw(rows, width=width)


def _remark(change: TaskChange) -> str:
    if not change.in_old:
        return "only in the new log"
    if not change.in_new:
        return "only in the old log"
    if change.speedup is None:
        return "no plan works in one of them"
    return "same plan" if change.same_plan else ""


def _mean_line(changes: Sequence[TaskChange]) -> str:
    mean = geomean(changes)
    both = sum(change.speedup is not None for change in changes)
    old = sum(not change.in_new for change in changes)
    new = sum(not change.in_old for change in changes)
    rest = f"{old} only in the old log, {new} only in the new"
    if mean is None:
        return f"no task has a plan that works in both logs, on the same machine; {rest}"
    return f"{mean:.2f}x over {both} tasks that both logs have; {rest}"
