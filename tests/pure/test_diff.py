"""Two logs side by side: every task of either, compared on the same machine only."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_database import record

from tvm_ext.records.database import Database
from tvm_ext.records.diff import TaskChange, diff, geomean
from tvm_ext.records.record import TaskKey
from tvm_ext.report.log_changes import diff_text

BIG, SMALL, GONE = (
    TaskKey("big", "conv", 900, 1),
    TaskKey("small", "add", 9, 1),
    TaskKey("gone", "relu", 1, 1),
)


def log(path: Path, *records) -> Database:
    database = Database.open(path, create=True)
    database.append(records)
    return database


@pytest.fixture
def changes(tmp_path: Path) -> list[TaskChange]:
    old = log(
        tmp_path / "old",
        record(1, 10.0, task=SMALL),
        record(1, 8.0, task=BIG),
        record(2, 8.0, task=GONE),
        record(1, 7.0, task=SMALL, hardware="bbbb", hardware_name="arm"),
    )
    new = log(
        tmp_path / "new",
        record(1, 5.0, task=SMALL),
        record(1, 7.0, task=SMALL),
        record(2, 2.0, task=BIG),
        record(3, None, task=TaskKey("fresh", "exp", 5, 1)),
    )
    return diff(old, new)


def test_every_task_of_either_log_the_most_work_first(changes):
    named = [(change.hardware_name, change.task.signature) for change in changes]
    host = [("cpu/host", name) for name in ("big", "small", "fresh", "gone")]
    assert named == [("arm", "small"), *host]


def test_best_plans_are_compared_by_their_typical_latency(changes):
    arm, big, small, fresh, gone = changes
    assert (big.before_us, big.after_us, big.speedup, big.same_plan) == (8.0, 2.0, 4.0, False)
    assert (small.before_us, small.after_us, small.same_plan) == (10.0, 6.0, True)
    assert (fresh.in_old, fresh.in_new, fresh.after_us, fresh.speedup) == (False, True, None, None)
    assert (gone.in_old, gone.in_new, gone.before_us, gone.speedup) == (True, False, 8.0, None)
    assert (arm.before_us, arm.after_us) == (7.0, None), "another machine's records do not count"


def test_the_mean_is_of_tasks_in_both(changes):
    assert geomean(changes) == pytest.approx((4.0 * 10.0 / 6.0) ** 0.5)
    assert geomean([]) is None
    assert geomean(changes[3:]) is None


def test_the_table_says_all_of_it(changes):
    text = diff_text(changes)
    row = {line.split()[2]: line for line in text.splitlines() if "cpu/host" in line}
    assert "4.00x" in row["big"]
    assert "same plan" in row["small"]
    assert "only in the old log" in row["gone"]
    assert "only in the new log" in row["fresh"]
    assert (
        "2.58x over 2 tasks that both logs have; 2 only in the old log, 1 only in the new" in text
    )


def test_logs_without_a_common_task(tmp_path):
    changes = diff(log(tmp_path / "a", record(1)), log(tmp_path / "b", record(1, hardware="cc")))
    assert "no task has a plan that works in both logs, on the same machine" in diff_text(changes)
    assert diff_text([]).startswith("no task")
