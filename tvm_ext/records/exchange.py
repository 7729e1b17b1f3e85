"""What went out to, or came in from, the tuning database of another tuner."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from tvm_ext.records.database import Database
from tvm_ext.records.record import Record, TaskKey, encode_line
from tvm_ext.tile.plan import TilePlan


class ExportedTask(msgspec.Struct, frozen=True):
    """A task of a model, and the plan that now stands in the other database."""

    task: TaskKey
    plan: TilePlan | None
    """None if it is not there."""
    latency_us: float
    """Of the plan, in our log; of the best one there, if this one is not; infinite without one."""
    left_out: tuple[str, ...] = ()
    """What our compiler does beyond the plan, and the other one will not."""
    reasons: tuple[str, ...] = ()
    """Why better plans, or all, could not be exported; one each."""
    verified: bool = False
    """Whether the replayed kernel was run here and found right."""
    replay_us: float = inf
    """Its latency then; infinite if it was not run."""
    picked: bool = False
    """Whether the plan is the picker's, and not in our log."""


class ForeignRecord(msgspec.Struct, frozen=True):
    """A record of another tuner's database."""

    line: int
    """In the file of records, from 1."""
    workload: int
    """Which one of that database, from 0; -1 if it could not be read."""
    stages: str
    """What the workload consists of, by its names there."""
    latency_us: float
    """Mean, as that tuner ranks; infinite if it failed or was not measured."""
    instructions: int
    """Length of its trace."""
    records: tuple[Record, ...] = ()
    """The same as records of ours; none if it is no plan of ours."""
    reason: str = ""
    """Why it is none; empty if it is one."""


def add_missing(log: Database, records: Iterable[Record]) -> int:
    """Appends the records that the log has not, each once; returns how many those were. LogError
    if it cannot be written."""
    known = {encode_line(record) for record in log.records()}
    fresh = {encode_line(record): record for record in records}
    missing = [record for line, record in fresh.items() if line not in known]
    log.append(missing)
    return len(missing)
