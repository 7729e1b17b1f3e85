"""What a tuning log holds: a summary, the best plans, and the records of one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from tvm_ext.records import Record
from tvm_ext.report.text import draw, gflops_text, table, us_text
from tvm_ext.tile import show_plan


class TaskSummary(msgspec.Struct, frozen=True):
    """The records of one task on one machine."""

    hardware: str
    hardware_name: str
    signature: str
    kind: str
    flops: int
    records: int
    failures: dict[str, int]
    """Failed records by kind of error."""
    best: Record | None
    """The working plan with the lowest median latency, the earliest of equals."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["best_us"] = self.best.best_us if self.best else None
        return plain


def summarise(records: Sequence[Record]) -> list[TaskSummary]:
    """One summary per machine and task: machines in log order, the task with most work first."""
    grouped: dict[tuple[str, str], list[Record]] = {}
    machines: dict[str, int] = {}
    for record in records:
        machines.setdefault(record.hardware, len(machines))
        grouped.setdefault((record.hardware, record.task.signature), []).append(record)
    summaries = [_summary(group) for group in grouped.values()]
    return sorted(summaries, key=lambda entry: (machines[entry.hardware], -entry.flops))


def summary_text(summaries: Sequence[TaskSummary], width: int | None = None) -> str:
    """A line per task: how often it was tried and the best latency."""
    rows = table(
        "hardware",
        "task",
        "kernel",
        "records",
        "failed",
        "best us",
        "GFLOP/s",
        left=("hardware", "task", "kernel"),
    )
    for entry in summaries:
        rows.add_row(
            f"{entry.hardware_name} ({entry.hardware})",
            entry.signature,
            entry.kind,
            str(entry.records),
            str(sum(entry.failures.values()) or "-"),
            us_text(entry.best.best_us if entry.best else 0.0),
            gflops_text(entry.flops, entry.best.best_us if entry.best else 0.0),
        )
    return draw(rows, width=width)


def best_text(summaries: Sequence[TaskSummary], width: int | None = None) -> str:
    """A line per task with its best plan."""
    rows = table(
        "hardware",
        "task",
        "kernel",
        "best us",
        "GFLOP/s",
        "plan",
        left=("hardware", "task", "kernel", "plan"),
    )
    for entry in summaries:
        us = entry.best.best_us if entry.best else 0.0
        rows.add_row(
            entry.hardware_name,
            entry.signature,
            entry.kind,
            us_text(us),
            gflops_text(entry.flops, us),
            show_plan(entry.best.plan) if entry.best else "none that works",
        )
    return draw(rows, width=width)


def records_text(records: Sequence[Record], width: int | None = None) -> str:
    """A line per record, the fastest first, failures at the end."""
    rows = table(
        "median us",
        "GFLOP/s",
        "runs",
        "hardware",
        "measured",
        "plan",
        "error",
        left=("hardware", "measured", "plan", "error"),
    )
    for record in sorted(records, key=lambda record: record.best_us):
        rows.add_row(
            us_text(record.best_us),
            gflops_text(record.task.flops, record.best_us),
            str(len(record.latency_us)),
            record.hardware_name,
            record.time,
            show_plan(record.plan),
            f"{record.error.kind}: {record.error.message}" if record.error else "",
        )
    return draw(rows, width=width)


def _summary(records: list[Record]) -> TaskSummary:
    first = records[0]
    failed = Counter(record.error.kind for record in records if record.error)
    return TaskSummary(
        hardware=first.hardware,
        hardware_name=first.hardware_name,
        signature=first.task.signature,
        kind=first.task.kind,
        flops=first.task.flops,
        records=len(records),
        failures=dict(failed.most_common()),
        best=min(
            (record for record in records if record.ok),
            key=lambda record: record.best_us,
            default=None,
        ),
    )
