"""A tuning log without the records that decide nothing: a smaller log, from which the same follows.

A task's best plan is judged by all its records, so those stay together; other plans and failures
go. A pruned log is for compiling and replaying: a tuner that goes on from it tries those again.
"""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path

import msgspec

from tvm_ext.errors import LogError
from tvm_ext.records.database import Database
from tvm_ext.records.files import CorruptLine, log_files
from tvm_ext.records.record import Line, Record, TaskGraph
from tvm_ext.tile.plan import TilePlan


class PruneReport(msgspec.Struct, frozen=True):
    """What pruning did. A task counts once for each machine it was measured on."""

    kept: int
    dropped: int
    tasks: int
    """Those with a record that was kept."""
    lost: int
    """Those without a plan that works: none of their records was kept."""
    corrupt: tuple[CorruptLine, ...]
    """Lines of the source that hold no usable record; they are not copied."""


def prune(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], keep: int = 1
) -> PruneReport:
    """Copies the records of each task's `keep` best plans to a new log, in the order they had.

    The source is only read. LogError if there is none, or if the destination holds records already
    or cannot be written.
    """
    log = Database.open(source)
    target = Path(destination)
    if any(path.stat().st_size for path in log_files(target)):
        raise LogError(f"tuning log {target}: holds records already; name a new log for the rest")
    records = log.records()
    tasks = dict.fromkeys((record.task.signature, record.hardware) for record in records)
    chosen = {task: frozenset(best_plans(log, *task, keep)) for task in tasks}
    lines: list[Line] = []
    kept = [record for record in records if record.plan in chosen[_task_of(record)]]
    said: set[tuple[str, str]] = set()
    for record in kept:
        if _task_of(record) not in said:
            said.add(_task_of(record))
            lines += _graph(log, record)
        lines.append(record)
    Database.open(target, create=True).append(lines)
    full = sum(1 for plans in chosen.values() if plans)
    return PruneReport(
        len(kept), len(records) - len(kept), full, len(chosen) - full, tuple(log.corrupt)
    )


def best_plans(log: Database, signature: str, fingerprint: str, count: int) -> list[TilePlan]:
    """A task's plans that never failed, the lowest latency first, at most `count`; of equals the
    earliest first, as in `Database.best`."""
    latency_us = log.believed(signature, fingerprint)
    working = [plan for plan, latency in latency_us.items() if isfinite(latency)]
    return sorted(working, key=lambda plan: latency_us[plan])[:count]


def _graph(log: Database, record: Record) -> list[TaskGraph]:
    """The line that says what the record's task computes, if the log has it."""
    signature = record.task.signature
    if signature not in log.graphs:
        return []
    return [
        TaskGraph(
            graph=log.graphs[signature],
            signature=signature,
            hardware=record.hardware,
            hardware_name=record.hardware_name,
        )
    ]


def _task_of(record: Record) -> tuple[str, str]:
    return record.task.signature, record.hardware
