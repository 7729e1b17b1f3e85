"""What a log says of a task's plan."""

from __future__ import annotations

from pathlib import Path

import msgspec
from funcs import matmul_func

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.planner import logged, make_task
from tvm_ext.records import Database, Record
from tvm_ext.tile.plan import TilePlan

HARDWARE = get("cpu/x86-avx2")
TASK = make_task(matmul_func(), "main")
assert TASK.graph is not None
PLAN = pick(TASK.graph, HARDWARE, 1)[0].plan


def record(*latency_us: float, drift: float = 1.0, plan: TilePlan = PLAN) -> Record:
    return Record(
        task=TASK.key,
        hardware=HARDWARE.fingerprint(),
        hardware_name=HARDWARE.name,
        target="{}",
        plan=plan,
        latency_us=latency_us,
        error=None,
        seed=0,
        tir_hash="",
        versions={},
        time="",
        drift=drift,
    )


def test_a_plan_takes_what_it_was_chosen_by(tmp_path: Path) -> None:
    """The median of all its records, not its latest, which a burst may have disturbed."""
    database = Database.open(tmp_path / "log.jsonl", create=True)
    database.append([record(10.0, 11.0, 12.0), record(22.0, drift=2.0), record(80.0, drift=1.25)])
    reasons: list[str] = []
    (option,) = logged(TASK, HARDWARE, database, lambda plan: 0.0, reasons)
    assert (option.source, option.plan, option.measured_us) == ("log", PLAN, 11.0)
    assert not reasons


def test_a_plan_that_the_task_cannot_follow_is_not_used(tmp_path: Path) -> None:
    """The log does not say what the task computes, so whoever plans it finds out."""
    damaged = msgspec.structs.replace(PLAN, anchor=9)
    database = Database.open(tmp_path / "log.jsonl", create=True)
    database.append([record(1.0, plan=damaged), record(10.0)])

    def beside_us(plan: TilePlan) -> float:
        assert plan == PLAN
        return 0.0

    reasons: list[str] = []
    (option,) = logged(TASK, HARDWARE, database, beside_us, reasons)
    assert option.plan == PLAN
    assert reasons == ["log plan, anchor: plan: stage 9 does not exist; there are 1"]
    alone = Database.open(tmp_path / "alone.jsonl", create=True)
    alone.append([record(1.0, plan=damaged)])
    assert logged(TASK, HARDWARE, alone, beside_us, []) == []
