"""`tune`: measures the picker's best plans and their neighbours, task by task, into a log.

The picker's first plan of every task is measured before anything else, so the result never starts
behind the tuning-free one; a plan that seems faster is measured once more beside it at the end.
Every batch is on disk before the next one starts.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

import tvm_ext
from tvm_ext.assembly import Lowered, assemble
from tvm_ext.errors import PlanError
from tvm_ext.flow import Shapes, log_notes, lower, plan_all
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import roof
from tvm_ext.measure import Job, Measurer, Outcome, OutputCheck
from tvm_ext.measure.inputs import make_inputs
from tvm_ext.picker import PREFETCH_BYTES, packed_bytes, pick
from tvm_ext.planner import Task, hash_func
from tvm_ext.records import Database, Record, RecordFailure, TaskKey
from tvm_ext.runtime.executor import Compiled
from tvm_ext.search import neighbours
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import write
from tvm_ext.tir.compare import choose
from tvm_ext.tvm_api import PrimFunc, Target, tvm_version
from tvm_ext.verify import arguments_of, point_count

BATCH = 4
PICKED = 12
"""Plans of the picker that are queued for a task; neighbours of the best follow."""


@dataclass
class Progress:
    """One task while it is tuned."""

    task: Task
    first: TilePlan
    predicted_us: float
    roof_us: float
    queue: list[TilePlan] = field(default_factory=list)
    tried: dict[TilePlan, float] = field(default_factory=dict)
    expanded: set[TilePlan] = field(default_factory=set)
    trials: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def best(self) -> TilePlan:
        """The fastest plan so far."""
        working = {plan: us for plan, us in self.tried.items() if us < float("inf")}
        return min(working, key=lambda plan: working[plan]) if working else self.first

    @property
    def best_us(self) -> float:
        """Latency of the fastest plan so far; infinite before the first one."""
        return min(self.tried.values(), default=float("inf"))

    @property
    def gain_us(self) -> float:
        """What is left to gain over the whole model, by the roofline and the trials spent."""
        gap = max(0.0, self.best_us - self.roof_us) if self.tried else self.predicted_us
        return self.task.calls * gap / (1 + self.trials / BATCH)


Watch = Callable[[list[Progress], int], None]


def tune(
    model: Any,
    target: Any = "cpu",
    *,
    trials: int = 200,
    log: str | os.PathLike[str] = "tuning_logs",
    time_budget_s: float | None = None,
    seed: int = 0,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    watch: Watch | None = None,
) -> Compiled:
    """Compiles with measured plans. Ctrl-C ends the search; the best so far is compiled.

    trials         measurements in all for this model, those already in the log included
    log            folder or .jsonl file; what it holds for this machine is not measured again
    time_budget_s  stop measuring after so many seconds
    watch          called after every batch with the tasks and the number of trials done

    Raises what `compile` raises, and LogError if the log cannot be written.
    """
    deadline = time.monotonic() + (time_budget_s or float("inf"))
    lowered = lower(model, target, shapes, num_threads)
    database = Database.open(log, create=True)
    tuner = Tuner(lowered, database, seed, watch or (lambda _tasks, _done: None))
    try:
        with tuner.until_interrupted():
            tuner.run(trials, deadline)
    except KeyboardInterrupt:  # a second Ctrl-C
        tuner.interrupted = True
    finally:
        tuner.close()
    notes = (*lowered.notes, *log_notes(database, lowered), *tuner.notes())
    return assemble(lowered, plan_all(lowered, database), notes, verify=True)


class Tuner:
    """The measuring loop over all tasks of a model."""

    def __init__(self, lowered: Lowered, database: Database, seed: int, watch: Watch) -> None:
        self.hardware: HardwareModel = lowered.hardware
        self.database = database
        self.seed = seed
        self.watch = watch
        self.interrupted = False
        self._random = random.Random(seed)
        self._measurer = Measurer(lowered.hardware.target, lowered.hardware.cores)
        self._checks: dict[str, tuple[OutputCheck, ...]] = {}
        self.tasks = [
            progress
            for task in lowered.distinct.values()
            if (progress := self._start(task)) is not None
        ]

    @property
    def done(self) -> int:
        """Trials spent, those found in the log included."""
        return sum(progress.trials for progress in self.tasks)

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ctrl-C ends the search after the batch at hand; a second one ends it at once.

        Raised at any point, KeyboardInterrupt may be inside a call back from TVM, which turns it
        into an error of its own.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(_signal: int, _frame: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def run(self, trials: int, deadline: float) -> None:
        """Spends the trials: every task's first plan, then where most is left to gain."""
        self.watch(self.tasks, self.done)
        first = [p for p in self.tasks if p.first not in p.tried]
        for progress in sorted(first, key=lambda p: -p.gain_us):
            if self.done >= trials or self._over(deadline):
                break
            self.measure(progress, [progress.first])
        while self.done < trials and not self._over(deadline):
            open_tasks = [p for p in self.tasks if p.tried and self._refill(p)]
            if not open_tasks:
                break
            progress = max(open_tasks, key=lambda p: p.gain_us)
            count = min(BATCH, trials - self.done)
            batch, progress.queue = progress.queue[:count], progress.queue[count:]
            self.measure(progress, batch)
        for progress in self.tasks:
            if not self._over(deadline):
                self.settle(progress)

    def _over(self, deadline: float) -> bool:
        return self.interrupted or time.monotonic() > deadline

    def measure(self, progress: Progress, plans: list[TilePlan], *, again: bool = False) -> None:
        """Measures plans of one task and appends their records."""
        jobs: list[tuple[TilePlan, PrimFunc]] = []
        records: list[Record] = []
        for plan in plans:
            try:
                jobs.append((plan, write(progress.task.func, plan)))
            except PlanError as error:
                failure = RecordFailure(error.reason, str(error))
                records.append(self._record(progress.task, plan, "", (), failure))
        outcomes = self._measurer.measure(
            [self._job(progress.task, func) for _, func in jobs], best_us=progress.best_us
        )
        for (plan, func), outcome in zip(jobs, outcomes, strict=True):
            records.append(self._outcome(progress.task, plan, func, outcome))
        self.database.append(records)
        self.database.reload()
        self._take(progress, records, again=again)
        self.watch(self.tasks, self.done)

    def settle(self, progress: Progress) -> None:
        """Runs the best plan and the picker's first one side by side; the log keeps both."""
        if progress.best == progress.first or not progress.tried:
            return
        self.measure(progress, [progress.first, progress.best], again=True)

    def close(self) -> None:
        """Ends the measuring process."""
        self._measurer.close()

    def notes(self) -> list[str]:
        """What happened, for the report."""
        failures: Counter[str] = Counter()
        for progress in self.tasks:
            failures.update(progress.failures)
        notes = [f"tuned with {self.done} trials over {len(self.tasks)} tasks"]
        if failures:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(failures.items()))
            notes.append(f"trials that failed: {kinds}")
        if self.interrupted:
            notes.append("interrupted: the best plans so far are used")
        return notes

    def _start(self, task: Task) -> Progress | None:
        """The task with its queue and what the log knows of it; None if nothing can be planned."""
        if task.graph is None:
            return None
        candidates = pick(task.graph, self.hardware, PICKED)
        if not candidates:
            return None
        plans = [candidate.plan for candidate in candidates]
        predicted_us = candidates[0].estimate.latency_us
        limit = roof(task.graph.flops, task.graph.io_bytes, self.hardware)
        progress = Progress(task, plans[0], predicted_us, limit.latency_us)
        known = self.database.measured(task.signature, self.hardware.fingerprint())
        self._take(progress, list(known.values()))
        progress.queue = [plan for plan in plans[1:] if plan not in progress.tried]
        return progress

    def _take(self, progress: Progress, records: list[Record], *, again: bool = False) -> None:
        for record in records:
            progress.tried[record.plan] = record.best_us
            progress.trials += 0 if again else 1
            if record.error is not None:
                progress.failures[record.error.kind] += 1

    def _refill(self, progress: Progress) -> bool:
        """Whether plans are left to try; neighbours of the best are queued when the queue ends."""
        if not progress.queue and progress.task.graph is not None:
            best = progress.best
            if best in progress.expanded:
                return False
            progress.expanded.add(best)
            near = [p for p in neighbours(progress.task.graph, best) if p not in progress.tried]
            self._random.shuffle(near)
            progress.queue = near
        return bool(progress.queue)

    def _job(self, task: Task, func: PrimFunc) -> Job:
        if task.signature not in self._checks:
            self._checks[task.signature] = tuple(reference_checks(task, self.seed))
        written = len(task.reference.outputs) if task.reference else 1
        return Job(
            func=func,
            arguments=arguments_of(task.func, written),
            checks=self._checks[task.signature],
            seed=self.seed,
            cold=_has_weights(task),
        )

    def _outcome(self, task: Task, plan: TilePlan, func: PrimFunc, outcome: Outcome) -> Record:
        failure = outcome.failure
        error = RecordFailure(failure.kind, failure.message) if failure else None
        return self._record(
            task, plan, hash_func(func), outcome.latency_us if not error else (), error
        )

    def _record(
        self,
        task: Task,
        plan: TilePlan,
        tir_hash: str,
        latency_us: tuple[float, ...],
        error: RecordFailure | None,
    ) -> Record:
        graph = task.graph
        key = TaskKey(
            task.signature,
            task.kind,
            int(task.flops),
            graph.io_bytes if graph else 0,
        )
        return Record(
            task=key,
            hardware=self.hardware.fingerprint(),
            hardware_name=self.hardware.name,
            target=str(Target(self.hardware.target)),
            plan=plan,
            latency_us=tuple(round(us, 3) for us in latency_us),
            error=error,
            seed=self.seed,
            tir_hash=tir_hash,
            versions={"tvm": tvm_version(), "tvm_ext": tvm_ext.__version__},
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


def _has_weights(task: Task) -> bool:
    """Whether the task reads weights that a model would find out of cache."""
    graph = task.graph
    return graph is not None and any(
        packed_bytes(graph, node) >= PREFETCH_BYTES for node in graph.nodes
    )


def reference_checks(task: Task, seed: int) -> Iterator[OutputCheck]:
    """Points of every output with their reference values; none if the task has no reference."""
    reference = task.reference
    if reference is None:
        return
    inputs = make_inputs(arguments_of(task.func, len(reference.outputs)), seed)
    for place, (shape, _) in enumerate(reference.outputs):
        where = choose(shape, None, point_count(reference, place), seed)
        points = reference.points(inputs, place, where)
        known = np.isfinite(points.bounds)
        yield OutputCheck(
            output=place,
            flat_indices=where[known],
            values=points.values[known],
            rtol=0.0,
            atol=points.bounds[known],
        )
