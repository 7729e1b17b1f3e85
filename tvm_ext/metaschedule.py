"""A plan as a MetaSchedule record: a trace of TVM's own schedule primitives.

    the writer's schedule of a function
        →   its trace, and a mark: the lines of our log that it stands for
        →   a record that TVM replays without this package

The trace applies to the function as it came, which is what TVM looks its database up by. What our
compiler does around a schedule is no primitive, and stays behind (`left_out`): the kernel is as
right, and may be slower.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_ext.planner import Task
from tvm_ext.records import Record
from tvm_ext.records.record import decode_line, encode_line
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.shift import SHIFT
from tvm_ext.tir.transpose import SQUARE
from tvm_ext.tir.write import schedule
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, tvm, with_narrow_indices

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
"""The two files of MetaSchedule's database."""
MARK = "tvm_ext.records"
"""Annotation of the root block: the records of the plan, as lines of our log."""


def stock() -> Any:
    """TVM's MetaSchedule; imported when it is needed."""
    from tvm.s_tir import meta_schedule

    return meta_schedule


def workload_of(func: PrimFunc) -> IRModule:
    """The module by which MetaSchedule looks a function up."""
    stock()
    normalised: IRModule = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func)
    return normalised


def trace_of(func: PrimFunc, plan: TilePlan, mark: str = "") -> Any:
    """The plan's schedule of a function as a trace, without steps that change nothing.

    mark  what the root block is annotated with, if anything

    Raises PlanError, and what TVM raises for a step that it refuses.
    """
    prepared = schedule(func, plan)
    if mark:
        root = prepared.schedule.get_sblock("root")
        prepared.schedule.annotate(root, MARK, mark)
    return prepared.schedule.trace.simplified(remove_postproc=False)


def left_out(task: Task, plan: TilePlan, trace: Any) -> tuple[str, ...]:
    """What our compiler does for this plan that no schedule primitive says."""
    parts = plan.parts()
    inlined = any(e.stage < p.anchor and e.level == "register" for p in parts for e in p.attach)
    squares = any(SQUARE in map(str, step.attrs) for step in trace.insts)
    done = {
        "32-bit indices": with_narrow_indices(task.original) is not task.original,
        "vector maths": task.func is not task.original,
        "padding read in place": inlined,
        "tails moved back": any(SHIFT in map(str, step.attrs) for step in trace.insts),
        "transposition by squares of vectors": squares,
        "prefetched panels": any(part.prefetch for part in parts),
        "data of what comes next asked for ahead": any(part.ahead for part in parts),
        "tensors that are slices of others": bool(task.slices),
    }
    return tuple(what for what, applies in done.items() if applies)


def stock_record(
    func: PrimFunc, plan: TilePlan, target: Target, records: Sequence[Record] = ()
) -> Any:
    """MetaSchedule's record of a plan with the latencies of `records`, the lines of our log that it
    stands for. It has been through JSON: what is in it can be written. Raises as `trace_of` does.
    """
    mark = "\n".join(map(_ascii, records))
    latency_us = [us for record in records for us in record.latency_us]
    workload = stock().database.Workload(workload_of(func))
    return _through_json(func, trace_of(func, plan, mark), workload, latency_us, target)


def with_latency(func: PrimFunc, record: Any, latency_us: float) -> Any:
    """The record with another latency."""
    return _through_json(func, record.trace, record.workload, [latency_us], record.target)


def _through_json(
    func: PrimFunc, trace: Any, workload: Any, latency_us: Sequence[float], target: Target
) -> Any:
    kind, arg_info = stock().database.TuningRecord, stock().arg_info.ArgInfo
    run_secs = [us * 1e-6 for us in latency_us]
    record = kind(trace, workload, run_secs, target, arg_info.from_prim_func(func))
    return kind.from_json(json.loads(json.dumps(record.as_json())), workload)


def replayed(record: Any) -> PrimFunc:
    """The scheduled function, as MetaSchedule makes it from a record of its database."""
    schedule = tvm.s_tir.Schedule(record.workload.mod)
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod["main"]


def marked(trace: Any) -> tuple[Record, ...]:
    """The records a trace (as JSON) says it stands for; none without a mark. Raises LogError."""
    for name, inputs, attributes, _ in trace[0]:
        if name == "Annotate" and list(attributes) == [MARK]:
            text = str(inputs[1])[1:-1]  # a string stands between quotes, unlike a variable
            lines = [decode_line(line.encode()) for line in text.split("\n")]
            return tuple(line for line in lines if isinstance(line, Record))
    return ()


def _ascii(record: Record) -> str:
    """The record's line in ASCII: TVM writes other characters as it cannot read them."""
    return json.dumps(json.loads(encode_line(record)), separators=(",", ":"))


def files_of(folder: Path) -> tuple[Path, Path]:
    """The files of the database in a folder: workloads and records."""
    return folder / WORKLOADS, folder / RECORDS
