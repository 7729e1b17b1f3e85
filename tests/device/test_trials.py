"""Trials on a machine that is now fast, now slow, and a tuner that believes nothing it saw once."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tvm_ext.hardware import get
from tvm_ext.measure import Failure, Job, Outcome
from tvm_ext.picker import pick
from tvm_ext.planner import Task, make_task
from tvm_ext.records import Database
from tvm_ext.tile import TilePlan
from tvm_ext.trials import MOST_DRIFT, Trials
from tvm_ext.tuning import Tuner
from tvm_ext.tvm_api import te

HARDWARE = get("cpu/x86-avx512")


class Machine:
    """Measures nothing: a kernel takes what `latency_us` says of its plan, times `slowness`."""

    one_machine = True

    def __init__(self, latency_us: Callable[[TilePlan], float]) -> None:
        self.latency_us = latency_us
        self.slowness = 1.0
        self.seen: list[TilePlan] = []

    def measure(self, jobs: Sequence[Job], best_us: float = float("inf")) -> list[Outcome]:
        plans = [job.plan for job in jobs if job.plan is not None]
        self.seen += plans
        return [self.outcome(plan) for plan in plans]

    def outcome(self, plan: TilePlan) -> Outcome:
        us = self.latency_us(plan) * self.slowness
        if us == float("inf"):
            return Outcome(failure=Failure("crash", "it did"))
        return Outcome((us, us, us))

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def task() -> Task:
    a, b = te.placeholder((64, 64), name="a"), te.placeholder((64, 64), name="b")
    k = te.reduce_axis((0, 64))
    y = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))
    return make_task(te.create_prim_func([a, b, y]), "product")


def plans_of(task: Task) -> list[TilePlan]:
    assert task.graph is not None
    return [candidate.plan for candidate in pick(task.graph, HARDWARE, 4)]


def trials_on(machine: Machine, folder: Path) -> Trials:
    database = Database.open(folder, create=True)
    return Trials(HARDWARE, database, 0, machine)  # type: ignore[arg-type]


@pytest.mark.parametrize(("slowness", "drift"), [(1.25, 1.25), (0.8, 0.8), (9.0, MOST_DRIFT)])
def test_latencies_are_those_of_a_machine_as_fast_as_usual(
    task: Task, tmp_path: Path, slowness: float, drift: float
) -> None:
    yardstick, other, *_ = plans_of(task)
    machine = Machine(lambda plan: 100.0 if plan == yardstick else 50.0)
    trials = trials_on(machine, tmp_path)
    trials.run(task, [yardstick], float("inf"))
    machine.slowness = slowness
    (record,) = trials.run(task, [other], 100.0, yardstick)
    assert machine.seen == [yardstick, yardstick, other, yardstick]
    assert record.latency_us == (50.0 * slowness,) * 3
    assert record.drift == pytest.approx(drift)
    assert record.best_us == pytest.approx(50.0 * slowness / drift)


def test_a_yardstick_is_measured_among_the_plans(task: Task, tmp_path: Path) -> None:
    """One of its measurements that another program disturbs is no drift."""
    yardstick, *others = plans_of(task)
    disturbed = iter([1.0, 1.0, 3.0, 1.0, 1.0])
    trials = trials_on(
        Machine(lambda plan: 100.0 * next(disturbed) if plan == yardstick else 50.0), tmp_path
    )
    trials.run(task, [yardstick], float("inf"))
    records = trials.run(task, others, 100.0, yardstick)
    assert len(others) == 3
    assert [(record.plan, record.drift) for record in records] == [(p, 1.0) for p in others]


def test_a_yardstick_that_fails_or_is_not_known_says_nothing(task: Task, tmp_path: Path) -> None:
    yardstick, other, *_ = plans_of(task)
    machine = Machine(lambda plan: float("inf") if plan == yardstick else 50.0)
    trials = trials_on(machine, tmp_path)
    (record,) = trials.run(task, [other], float("inf"), yardstick)
    assert machine.seen == [other]
    trials.run(task, [yardstick], float("inf"))
    (again,) = trials.run(task, [other], float("inf"), yardstick)
    assert record.drift == again.drift == 1.0


def test_a_lucky_measurement_is_not_believed(task: Task, tmp_path: Path) -> None:
    """Every plan takes 100 us, but the first time that one is seen it may seem to take 40."""
    lucky = random.Random(0)
    seen: set[TilePlan] = set()

    def latency_us(plan: TilePlan) -> float:
        first = plan not in seen
        seen.add(plan)
        return 40.0 if first and len(seen) > 1 and lucky.random() < 0.2 else 100.0

    tuner = Tuner(
        {task.signature: (task, (1.0,))},
        HARDWARE,
        Database.open(tmp_path, create=True),
        0,
        measurer=Machine(latency_us),  # type: ignore[arg-type]
    )
    tuner.search(60, time.monotonic() + 60)
    (progress,) = tuner.tasks
    assert progress.trials == 60
    assert progress.best_us == pytest.approx(100.0)


def test_plans_measured_between_two_bad_moments_are_not_believed(
    task: Task, tmp_path: Path
) -> None:
    """Every plan takes 100 us, but every other batch meets another program with the yardstick."""
    batches = itertools.count()

    class Busy(Machine):
        def measure(self, jobs: Sequence[Job], best_us: float = float("inf")) -> list[Outcome]:
            outcomes = super().measure(jobs, best_us)
            if len(jobs) < 10 or next(batches) % 2:
                return outcomes
            slow = Outcome((140.0,) * 3)
            return [slow if j.in_full else o for j, o in zip(jobs, outcomes, strict=True)]

    tuner = Tuner(
        {task.signature: (task, (1.0,))},
        HARDWARE,
        Database.open(tmp_path, create=True),
        0,
        measurer=Busy(lambda plan: 100.0),  # type: ignore[arg-type]
    )
    tuner.search(60, time.monotonic() + 60)
    (progress,) = tuner.tasks
    space = progress.space
    assert next(batches) > 2
    assert space.measured[space.promising] < 90.0
    assert progress.best_us == pytest.approx(100.0)
