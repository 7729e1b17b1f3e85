"""What a log says of a task's plan."""

from __future__ import annotations

from pathlib import Path

from funcs import matmul_func

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.planner import logged, make_task
from tvm_ext.records import Database, Record

HARDWARE = get("cpu/x86-avx2")


def test_a_plan_takes_what_it_was_chosen_by(tmp_path: Path) -> None:
    """The median of all its records, not its latest, which a burst may have disturbed."""
    task = make_task(matmul_func(), "main")
    assert task.graph is not None
    plan = pick(task.graph, HARDWARE, 1)[0].plan

    def record(*latency_us: float, drift: float = 1.0) -> Record:
        return Record(
            task=task.key,
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

    database = Database.open(tmp_path / "log.jsonl", create=True)
    database.append([record(10.0, 11.0, 12.0), record(22.0, drift=2.0), record(80.0, drift=1.25)])
    reasons: list[str] = []
    (option,) = logged(task, HARDWARE, database, lambda plan: 0.0, reasons)
    assert (option.source, option.plan, option.measured_us) == ("log", plan, 11.0)
    assert not reasons
