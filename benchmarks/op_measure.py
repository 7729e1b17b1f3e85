"""Measuring one operator: the picker's first plan, our search's best, and what others find."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import metaschedule
import msgspec
import psutil
from peers import busy_s
from random_plans import random_plans
from workloads import Jobs, UnavailableError, Workload

from tvm_ext.hardware import resolve
from tvm_ext.hardware.roofline import roof
from tvm_ext.measure import Failure, Measurer, Outcome
from tvm_ext.measure.build import Built, build
from tvm_ext.measure.runner import Runner
from tvm_ext.measure.sandbox import Limits
from tvm_ext.planner import Planned, Task, next_option, plan_task
from tvm_ext.tile import show_plan
from tvm_ext.tuner import tune_tir
from tvm_ext.tvm_api import PrimFunc, Target

ROUNDS = 3
SLOW_FACTOR, MIN_TIMEOUT_S = 20.0, 5.0  # a kernel that runs longer than this is given up
BATCH_OF_PLANS = 16


@dataclass
class Row:
    """What was measured of one operator; a field that was not measured is None."""

    name: str
    parameters: tuple[int, ...]
    unavailable: str | None = None
    mflop: float = 0.0
    bound: str = ""
    roof_us: float = 0.0
    source: str = ""
    plan: str = ""
    reasons: list[str] = field(default_factory=list)
    predicted_us: float = 0.0
    plan_s: float = 0.0
    compile_s: float = 0.0
    ours_us: float | None = None
    """Of our search's best plan if there was a search, else of the picker's first."""
    first_us: float | None = None
    """Of the picker's first plan where there was a search."""
    tune_s: float | None = None
    metaschedule_us: float | None = None
    metaschedule_s: float | None = None
    other_failure: str = ""
    random_us: float | None = None
    random_plan: str | None = None
    random_s: float | None = None
    random_tried: int = 0
    random_failures: dict[str, int] = field(default_factory=dict)
    others_cores: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The other side's latency over ours."""
        other = self.random_us or self.metaschedule_us
        return other / self.ours_us if other and self.ours_us else None

    @property
    def gain(self) -> float | None:
        """The latency of the picker's first plan over that of the search's best."""
        return self.first_us / self.ours_us if self.first_us and self.ours_us else None

    @property
    def gflops(self) -> float | None:
        """Arithmetic done per second; a special function counts ten."""
        return self.mflop / self.ours_us * 1e3 if self.ours_us else None

    @property
    def roof_share(self) -> float | None:
        """Part of the roofline reached."""
        return self.roof_us / self.ours_us if self.ours_us else None


class Bench:
    """Measures operators one after the other, on one machine model. MetaSchedule's searches are
    kept in the folder `searches` and taken from there, if one is given; so are ours in `log`."""

    def __init__(
        self, threads: int, seed: int, searches: Path | None = None, log: Path | None = None
    ) -> None:
        self.hardware = msgspec.structs.replace(resolve("cpu"), cores=threads)
        self.target = Target(self.hardware.target)
        self.threads = threads
        self.seed = seed
        self.searches = searches
        self.log = log

    def measure(self, workload: Workload, trials: int, plans: int, tuning: int = 0) -> Row:
        """Ours, after a search of `tuning` trials if that is not 0, beside MetaSchedule's after
        `trials`, or the best of `plans` random ones."""
        row = Row(workload.name, workload.parameters)
        try:
            task = workload.task()
        except UnavailableError as error:
            row.unavailable = str(error)
            return row
        planned, mine = self.plan(task, row)
        jobs = Jobs(task, self.seed)
        self.timed([mine], jobs, planned.func, row)
        ours = [mine, self.tuned(task, tuning, row)] if tuning else [mine]
        if tuning:
            self.timed(ours, jobs, planned.func, row)
        if trials:
            kept = f"{trials} trials, {self.threads} threads, seed {self.seed}"
            folder = self.searches and self.searches / kept / workload.name
            kernel, row.metaschedule_s = metaschedule.search(
                task.original, self.target, trials, self.threads, self.seed, folder
            )
            if kernel is None:
                row.other_failure = f"none of {trials} trials worked"
            else:
                theirs = metaschedule.build(kernel, self.target)
                row.metaschedule_us = self.timed([*ours, theirs], jobs, planned.func, row, 1)
        if plans and task.graph is not None and planned.option.plan is not None:
            best = self.best_random(task, jobs, row, plans)
            if best is not None:
                theirs = build(best, self.target)
                row.random_us = self.timed([*ours, theirs], jobs, planned.func, row, 1)
        return row

    def plan(self, task: Task, row: Row) -> tuple[Planned, Built | Failure]:
        """The first plan of the picker whose kernel compiles, as `tvm_ext.compile` takes it."""
        start = time.perf_counter()
        planned = plan_task(task, self.hardware, alone=True)
        row.plan_s = time.perf_counter() - start
        start = time.perf_counter()
        while isinstance(built := build(planned.func, self.target), Failure) and planned.rest:
            planned = next_option(planned, f"{built.kind}: {built.message}")
        row.compile_s = time.perf_counter() - start
        option = planned.option
        row.source, row.predicted_us = option.source, option.predicted_us
        row.plan = show_plan(option.plan) if option.plan else "as TVM wrote it"
        row.reasons = list(planned.reasons)
        if task.graph is not None:
            limit = roof(task.graph.flops, task.graph.io_bytes, self.hardware)
            row.mflop, row.roof_us = task.graph.flops / 1e6, limit.latency_us
            row.bound = limit.bound
        return planned, built

    def tuned(self, task: Task, trials: int, row: Row) -> Built | Failure:
        """The kernel our search ends with, from a log of its own or the one in `log`."""
        with tempfile.TemporaryDirectory(prefix="tune-") as folder:
            log = self.log or Path(folder)
            start = time.perf_counter()
            found = tune_tir(
                task.original, trials=trials, log=log, seed=self.seed, num_threads=self.threads
            )
            row.tune_s = time.perf_counter() - start
        row.plan = show_plan(found.plan) if found.plan else "as TVM wrote it"
        row.source = f"{found.trials} trials"
        return build(found.func, self.target)

    def timed(
        self,
        kernels: list[Built | Failure],
        jobs: Jobs,
        func: PrimFunc,
        row: Row,
        others: int = 0,
    ) -> float | None:
        """Runs kernels in turn: ours (the picker's, then the search's if there was one) and
        `others`. Ours go into the row, the latency of the last kernel is returned.

        A kernel must be right every time: its first failure is kept in its latency's place. The row
        also keeps how many cores other programs used meanwhile.
        """
        job = jobs.of(func)
        limits = Limits(max(MIN_TIMEOUT_S, SLOW_FACTOR * row.predicted_us / 1e6))
        outcomes: list[list[Outcome]] = [[] for _ in kernels]
        start, before_s = time.perf_counter(), busy_s() - tree_s()
        with Runner([(kernel, job) for kernel in kernels], limits) as runner:
            for _ in range(ROUNDS):
                for place, found in enumerate(outcomes):
                    found.append(runner.run(place))
        others_s = busy_s() - tree_s() - before_s
        row.others_cores = max(row.others_cores, others_s / (time.perf_counter() - start))
        ours = outcomes[: len(outcomes) - others]
        row.ours_us, failure = _median(ours[-1])
        row.first_us = _median(ours[0])[0] if len(ours) > 1 else None
        row.reasons += [failure] if failure else []
        other_us, failure = _median(outcomes[-1])
        row.other_failure = failure if others else ""
        return other_us

    def best_random(self, task: Task, jobs: Jobs, row: Row, count: int) -> PrimFunc | None:
        """The fastest of `count` random legal plans that compile and compute the right values."""
        assert task.graph is not None
        start = time.perf_counter()
        failures: Counter[str] = Counter()
        best: PrimFunc | None = None
        best_us = float("inf")
        lanes = self.hardware.lanes(4)
        drawn = random_plans(task.func, task.graph, lanes, self.threads, count, self.seed)
        timeout_s = max(MIN_TIMEOUT_S, SLOW_FACTOR * row.predicted_us / 1e6)
        with Measurer(self.hardware.target, self.threads, timeout_s=timeout_s) as measurer:
            while batch := list(itertools.islice(drawn, BATCH_OF_PLANS)):
                outcomes = measurer.measure(
                    [jobs.of(func) for _, func in batch], min(best_us, row.ours_us or best_us)
                )
                for (plan, func), outcome in zip(batch, outcomes, strict=True):
                    row.random_tried += 1
                    if outcome.failure:
                        failures[outcome.failure.kind] += 1
                    elif outcome.best_us < best_us:
                        best_us, best, row.random_plan = outcome.best_us, func, show_plan(plan)
        row.random_failures = dict(failures)
        row.random_s = time.perf_counter() - start
        return best


def _median(outcomes: list[Outcome]) -> tuple[float | None, str]:
    """The median latency of the rounds, or the first failure: a kernel must work every time."""
    failure = next((outcome.failure for outcome in outcomes if outcome.failure), None)
    if failure is not None:
        return None, f"{failure.kind}: {failure.message}"
    return statistics.median(outcome.best_us for outcome in outcomes), ""


def tree_s() -> float:
    """CPU seconds of this process and all below it, those that have ended included."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in [me, *me.children(recursive=True)])
