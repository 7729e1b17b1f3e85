"""The best plans of a log as MetaSchedule's database, each replayed before it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from tvm_ext.errors import LogError
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import one_line
from tvm_ext.metaschedule import files_of, left_out, replayed, stock, stock_record, workload_of
from tvm_ext.planner import Option, Planned, Task
from tvm_ext.records import Database
from tvm_ext.records.exchange import ExportedTask
from tvm_ext.records.files import errors_named
from tvm_ext.records.prune import best_plans
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import Target, tvm
from tvm_ext.verify import check, has_reference

TRIED = 8
"""Plans of one task that are tried, the best first, before it is given up."""


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
    kernel it is compared with the task's reference too. LogError if the folder holds a database
    already or cannot be written, or no task has a plan that can be exported.
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
    """The task's best plan that replays, and its record; None if none does."""
    mark = hardware.fingerprint()
    latency_us = log.believed(task.signature, mark)
    plans = best_plans(log, task.signature, mark, TRIED)
    reasons: list[str] = [] if plans else ["no plan in the log that works on this hardware"]
    for plan in plans:
        records = [r for r in log.records(task.signature, mark) if r.plan == plan]
        try:
            record = stock_record(task.original, records, target)
            verified = _verify(task, plan, record, target, hardware)
        except Exception as error:  # TVM raises every kind for a schedule that it cannot lower
            reasons.append(f"plan of {latency_us[plan]:.4g} us, {one_line(error)}")
            continue
        without = left_out(task, plan, record.trace)
        entry = ExportedTask(task.key, plan, latency_us[plan], without, tuple(reasons), verified)
        return entry, record
    best = latency_us[plans[0]] if plans else inf
    return ExportedTask(task.key, None, best, reasons=tuple(reasons)), None


def _verify(
    task: Task, plan: TilePlan, record: Any, target: Target, hardware: HardwareModel
) -> bool:
    """Compiles the replayed kernel as TVM itself does, and compares what it computes if this
    machine can run it and the task has a reference. Raises NotRight, and what TVM raises."""
    func = replayed(record).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), target=target)
    if hardware.name != "cpu/host" or not has_reference(task):
        return False
    whole = replace(task, slices={})  # the record is of dense tensors
    wrong = check(Planned(whole, func, Option("log", plan), []), built.jit()["main"])
    if wrong:
        raise NotRight(wrong)
    return True


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
