"""Two tuning logs compared, task by task; records of different machines are never compared."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

import msgspec

from tvm_ext.records.database import Database
from tvm_ext.records.record import Record, TaskKey


class TaskChange(msgspec.Struct, frozen=True):
    """One task on one machine, in an old log and in a new one."""

    hardware: str
    hardware_name: str
    task: TaskKey
    in_old: bool
    in_new: bool
    before_us: float | None
    """Median latency of the old log's best plan over all its records; None if none works."""
    after_us: float | None
    """The same in the new log."""
    same_plan: bool
    """Whether both have the same best plan: a difference is then one of measuring."""

    @property
    def speedup(self) -> float | None:
        """How many times faster the new log's best plan is; None if one of them has none."""
        return self.before_us / self.after_us if self.before_us and self.after_us else None


def diff(old: Database, new: Database) -> list[TaskChange]:
    """One entry per machine and task that either log has: machines in the order of the logs, the
    task with most work first."""
    known: dict[tuple[str, str], Record] = {}
    for record in [*old.records(), *new.records()]:
        known.setdefault((record.hardware, record.task.signature), record)
    machines = list(dict.fromkeys(hardware for hardware, _ in known))
    ordered = sorted(known.values(), key=lambda r: (machines.index(r.hardware), -r.task.flops))
    return [_change(record, old, new) for record in ordered]


def geomean(changes: Sequence[TaskChange]) -> float | None:
    """The geometric mean of the tasks' speed-ups; None if no task has one."""
    speedups = [change.speedup for change in changes if change.speedup]
    return geometric_mean(speedups) if speedups else None


def _change(record: Record, old: Database, new: Database) -> TaskChange:
    task, hardware = record.task, record.hardware
    before, after = (log.best(task.signature, hardware) for log in (old, new))
    return TaskChange(
        hardware=hardware,
        hardware_name=record.hardware_name,
        task=task,
        in_old=bool(old.records(task.signature, hardware)),
        in_new=bool(new.records(task.signature, hardware)),
        before_us=_latency_us(old, before),
        after_us=_latency_us(new, after),
        same_plan=before is not None and after is not None and before.plan == after.plan,
    )


def _latency_us(log: Database, best: Record | None) -> float | None:
    if best is None:
        return None
    return log.believed(best.task.signature, best.hardware)[best.plan]
