"""MetaSchedule's database read: what it holds, and which of its records are plans of ours.

A record that we exported carries lines of our log. They are believed if the workload is their task,
and the trace is, step by step, what their plan gives today. Any other trace was drawn by rules of
MetaSchedule's own, with two more levels of loops than a plan has, say, or a tensor intrinsic.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from tvm_ext.errors import LogError, TvmExtError
from tvm_ext.measure.build import one_line
from tvm_ext.metaschedule import MARK, RECORDS, WORKLOADS, files_of, marked, stock, stock_record
from tvm_ext.planner import make_task
from tvm_ext.records import Record
from tvm_ext.records.exchange import ForeignRecord
from tvm_ext.records.files import errors_named
from tvm_ext.tvm_api import PrimFunc, Target, s_tir, structural_walk

FAILED_S = 1e9
"""MetaSchedule puts a failed trial down as one of 1e10 s."""


class _Line(msgspec.Struct, array_like=True):
    """A line of the file of records."""

    workload: int
    record: tuple[Any, list[float] | None, Any, Any]


class _Workload:
    """A line of the file of workloads, read when it is needed."""

    def __init__(self, line: bytes) -> None:
        self.func: PrimFunc | None = None
        self.stages, self.signature, self.reason = "", "", ""
        try:
            self.func = stock().database.Workload.from_json(json.loads(line)).mod["main"]
        except Exception as error:  # TVM's reader raises every kind
            self.reason = f"this TVM cannot read its workload: {one_line(error)}"
            return
        names: list[str] = []
        structural_walk(self.func.body, (s_tir.SBlock, lambda b: names.append(str(b.name_hint))))
        self.stages = "+".join(name for name in dict.fromkeys(names) if name != "root")
        self.signature = make_task(self.func, "main").signature


def read(folder: str | os.PathLike[str]) -> list[ForeignRecord]:
    """The records of the MetaSchedule database in a folder, in its order. LogError if there is
    none; a line that cannot be read is an entry that says why."""
    root = Path(folder)
    for path in files_of(root):
        if not path.is_file():
            raise LogError(
                f"folder {root}: no MetaSchedule database, {path.name} is missing; name the folder "
                f"that holds {WORKLOADS} and {RECORDS}"
            )
    with errors_named(root):
        sources, lines = (path.read_bytes().splitlines() for path in files_of(root))
    workloads: dict[int, _Workload] = {}
    return [
        _entry(number, line, sources, workloads)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _entry(
    number: int, text: bytes, sources: Sequence[bytes], workloads: dict[int, _Workload]
) -> ForeignRecord:
    """One line of the file of records."""
    try:
        line = msgspec.json.decode(text, type=_Line)
        trace, run_secs, _, _ = line.record
        steps = Counter(str(step[0]) for step in trace[0])
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, LookupError) as error:
        return ForeignRecord(number, -1, "", inf, 0, reason=f"not a tuning record: {error}")
    mean_s = sum(run_secs) / len(run_secs) if run_secs else inf
    if line.workload not in workloads and 0 <= line.workload < len(sources):
        workloads[line.workload] = _Workload(sources[line.workload])
    workload = workloads.get(line.workload)
    found: tuple[Record, ...] = ()
    if workload is None:
        reason = f"workload {line.workload}: the database has {len(sources)}"
    else:
        found, reason = _ours(workload, trace, steps)
    return ForeignRecord(
        line=number,
        workload=line.workload,
        stages=workload.stages if workload else "",
        latency_us=mean_s * 1e6 if mean_s < FAILED_S else inf,
        instructions=sum(steps.values()),
        records=found,
        reason=reason,
    )


def _ours(workload: _Workload, trace: Any, steps: Counter[str]) -> tuple[tuple[Record, ...], str]:
    """The records of ours that a trace stands for, or why it stands for none."""
    if workload.func is None:
        return (), workload.reason
    try:
        records = marked(trace)
        if not records:
            return (), _foreign(steps)
        if {record.task.signature for record in records} != {workload.signature}:
            return (), f"{MARK} names another task than its workload is"
        if len({record.plan for record in records}) != 1:
            return (), f"{MARK} names several plans"
        plan = records[0].plan
        today = stock_record(workload.func, plan, Target("llvm"), records).as_json()[0]
    except TvmExtError as error:
        return (), str(error)
    except Exception as error:  # TVM raises every kind for a schedule that it refuses
        return (), one_line(error)
    if _unmarked(today) != _unmarked(trace):
        return (), "its steps are not those that the plan it names gives in this version"
    return records, ""


def _unmarked(trace: Any) -> list[Any]:
    """A trace without the mark, which a later version of the log would write otherwise."""
    steps, decisions = trace
    return [[step for step in steps if step[2] != [MARK]], decisions]


def _foreign(steps: Counter[str]) -> str:
    """Why a trace that is not marked is no plan of ours."""
    drawn = [name for name in steps if name.startswith("Sample")]
    if "Tensorize" in steps:
        return "written for a tensor intrinsic, which no plan names"
    if drawn:
        return f"drawn from MetaSchedule's own loop structure ({', '.join(sorted(drawn))})"
    return "a schedule that no plan of ours is written as"
