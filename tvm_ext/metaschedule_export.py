"""The best plans of a log as MetaSchedule's database, each replayed before it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tvm_ext.errors import LogError
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import one_line
from tvm_ext.measure.inputs import make_inputs
from tvm_ext.metaschedule import (
    files_of,
    left_out,
    replayed,
    stock,
    stock_record,
    with_latency,
    workload_of,
)
from tvm_ext.picker import pick_whole
from tvm_ext.planner import Option, Planned, Task
from tvm_ext.records import Database
from tvm_ext.records.exchange import ExportedTask
from tvm_ext.records.files import errors_named
from tvm_ext.records.prune import best_plans
from tvm_ext.runtime.margin import Output
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import Target, tvm
from tvm_ext.verify import arguments_of, check, has_reference

TRIED = 8
"""Plans of one task that are tried, the best first, before it is given up."""
NEAR, TIMED = 1.25, 4
"""Plans whose latency is so many times the best one's at most are tried for a faster replay, and
how many replays of one task are timed."""
WHOLE = 4
"""Plans of whole tiles that are tried where none of the log's replays as fast as it is."""
CLOSE = 1.1
"""A replay's latency in that of the log's plan, from which no other is looked for."""
RUNS, BURST_MS = 7, 2
"""Times a replay is timed, and how long each time takes at least."""


class NotRight(Exception):
    """A replayed kernel computes something else than its task."""


def export(
    tasks: Iterable[Task],
    log: Database,
    hardware: HardwareModel,
    folder: str | os.PathLike[str],
) -> list[ExportedTask]:
    """Writes the best plan of every task that can be said in TVM's schedule primitives to a new
    MetaSchedule database in `folder`; the entries tell which, and why not of the others. Tasks that
    are one workload to MetaSchedule have one entry.

    Each record is replayed and compiled as TVM does without us; where this machine can run the
    kernel it is compared with the task's reference too, and timed: of plans that are `NEAR` the
    best one, and of the picker's that loops alone say (`pick_whole`), the fastest replay is taken,
    since what our compiler does around a schedule, some plans live by and others do without.
    LogError if the folder holds a database already or cannot be written, or no task has a plan that
    can be exported.
    """
    root = check_new(folder)
    target = Target(hardware.target)
    known = _distinct(tasks)
    done = [_exported(task, log, hardware, target) for task in known]
    if not any(isfinite(entry.latency_us) for entry, _ in done):
        raise LogError(
            f"log {log.root}: no plan for any of {len(known)} kernels on hardware "
            f"{hardware.fingerprint()}; tune the model with this log first"
        )
    if not any(record is not None for _, record in done):
        reason = next(reason for entry, _ in done for reason in entry.reasons)
        raise LogError(f"log {log.root}: none of its plans can be exported; the first, {reason}")
    _write(root, [record for _, record in done if record is not None])
    return [entry for entry, _ in done]


def check_new(folder: str | os.PathLike[str]) -> Path:
    """The folder of a database that will be written. LogError if there is one already."""
    root = Path(folder)
    if any(path.exists() for path in files_of(root)):
        raise LogError(f"folder {root}: holds a MetaSchedule database already; name a new one")
    return root


def _distinct(tasks: Iterable[Task]) -> list[Task]:
    """One task for each workload. Functions that differ in attributes only are one task in our log,
    and to MetaSchedule several."""
    seen = stock().database.MemoryDatabase()
    found: list[Task] = []
    for task in tasks:
        workload = workload_of(task.original)
        if not seen.has_workload(workload):
            seen.commit_workload(workload)
            found.append(task)
    return found


def _exported(
    task: Task, log: Database, hardware: HardwareModel, target: Target
) -> tuple[ExportedTask, Any]:
    """The plan that replays fastest in the log's place, and its record; None if none does."""
    latency_us = log.believed(task.signature, hardware.fingerprint())
    plans = best_plans(log, task.signature, hardware.fingerprint(), TRIED)
    if not plans:
        reason = "no plan in the log that works on this hardware"
        return ExportedTask(task.key, None, inf, reasons=(reason,)), None
    best_us = latency_us[plans[0]]
    reasons: list[str] = []
    found: list[tuple[ExportedTask, Any]] = []
    tried: set[TilePlan] = set()

    def tries(plan: TilePlan) -> None:
        tried.add(plan)
        own_us = latency_us.get(plan, best_us)
        try:
            found.append(_replayed(task, plan, own_us, log, hardware, target))
        except Exception as error:  # TVM raises every kind for a schedule that it cannot lower
            if not found:
                reasons.append(f"plan of {own_us:.4g} us, {one_line(error)}")

    for plan in plans:
        near = not found or latency_us[plan] <= NEAR * best_us
        if near and len(found) < TIMED and _wants_another(found, latency_us[plan]):
            tries(plan)
    for plan in pick_whole(task.graph, hardware, WHOLE) if task.graph else ():
        if plan not in tried and _wants_another(found, best_us):
            tries(plan)
    if not found:
        return ExportedTask(task.key, None, best_us, reasons=tuple(reasons)), None
    first = found[0][0]
    entry, record = min(found, key=lambda one: one[0].replay_us)
    if entry is not first:
        reasons.append(f"plan of {first.latency_us:.4g} us, replayed in {first.replay_us:.4g}")
    return msgspec.structs.replace(entry, reasons=tuple(reasons)), record


def _wants_another(found: list[tuple[ExportedTask, Any]], latency_us: float) -> bool:
    """Whether no replay that was found is about as fast as that, and another could be timed."""
    entries = [entry for entry, _ in found]
    unknown = any(not entry.verified for entry in entries)
    return not unknown and all(entry.replay_us > CLOSE * latency_us for entry in entries)


def _replayed(
    task: Task,
    plan: TilePlan,
    own_us: float,
    log: Database,
    hardware: HardwareModel,
    target: Target,
) -> tuple[ExportedTask, Any]:
    """A plan as it replays, and its record; one without records in our log is the picker's. Raises
    what TVM raises, and NotRight."""
    known = log.records(task.signature, hardware.fingerprint())
    records = [one for one in known if one.plan == plan and one.error is None]
    record = stock_record(task.original, plan, target, records)
    replay_us = _verified_us(task, plan, record, target, hardware)
    verified = isfinite(replay_us)
    if verified and not records:
        record = with_latency(task.original, record, replay_us)
    without = left_out(task, plan, record.trace)
    entry = ExportedTask(
        task.key, plan, own_us, without, verified=verified, replay_us=replay_us, picked=not records
    )
    return entry, record


def _verified_us(
    task: Task, plan: TilePlan, record: Any, target: Target, hardware: HardwareModel
) -> float:
    """Compiles the replayed kernel as TVM itself does, and if this machine can run it and the task
    has a reference compares what it computes. Returns its latency, infinite if it did not run.
    Raises NotRight, and what TVM raises."""
    func = replayed(record).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), target=target)
    if hardware.name != "cpu/host" or not has_reference(task):
        return inf
    whole = replace(task, slices={})  # the record is of dense tensors
    module = built.jit()
    wrong = check(Planned(whole, func, Option("log", plan), []), module["main"])
    if wrong:
        raise NotRight(wrong)
    return _latency_us(task, module)


def _latency_us(task: Task, module: Any) -> float:
    """How long a kernel takes again and again on the same data."""
    reference = task.reference
    assert reference is not None
    arguments = arguments_of(task.func, len(reference.outputs))
    given = [tvm.runtime.tensor(array) for array in make_inputs(arguments, 0)]
    given += [Output.of(shape, dtype).tensor for shape, dtype in reference.outputs]
    evaluate = module.time_evaluator(
        "main", tvm.cpu(), number=1, repeat=RUNS, min_repeat_ms=BURST_MS
    )
    return 1e6 * median(evaluate(*given).results)


def _write(root: Path, records: list[Any]) -> None:
    """A new database with these records, read back to see that all of it is on the disk. LogError
    if it is not; the folder then holds no database."""
    with errors_named(root):
        root.mkdir(parents=True, exist_ok=True)
    files = files_of(root)
    try:
        database = stock().database.JSONDatabase(*map(str, files))
        for record in records:
            database.commit_workload(record.workload.mod)
            database.commit_tuning_record(record)
        found = len(stock().database.JSONDatabase(*map(str, files), allow_missing=False))
        reason = "" if found == len(records) else f"{found} of {len(records)} records can be read"
    except Exception as error:  # TVM notices a full disk only when it reads what it wrote
        reason = one_line(error)
    if reason:
        for path in files:
            path.unlink(missing_ok=True)
        raise LogError(f"folder {root}: no database was written ({reason}); is the disk full?")
