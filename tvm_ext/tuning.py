"""`Tuner`: the measuring loop over the tasks of one or several models.

    until the trials are spent:
        the task scheduler chooses a task      by what is left to gain
        its space proposes a batch of plans    drafted by the performance model and the learned one
        they are measured                      each in a process of its own, checked, on disk
        what seems best is measured again
        the learned model is trained anew

The picker's first plan of every task is measured before anything else, so the result never starts
behind the tuning-free one; what seems best is measured again before it is believed.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import roof
from tvm_ext.measure import Measurer
from tvm_ext.picker import exchange_us, pick, predict
from tvm_ext.planner import Task
from tvm_ext.records import Database, Record
from tvm_ext.search import (
    CostModel,
    Objective,
    SketchRule,
    TaskHistory,
    TaskScheduler,
    TaskSpace,
    lessons,
)
from tvm_ext.search.cost_model import Example
from tvm_ext.search.task_scheduler import likeness
from tvm_ext.tile.plan import TilePlan
from tvm_ext.trials import Trials

PICKED = 12
"""Plans of the picker that a task's search starts from."""
BATCHES = 6
"""Batches over which the trials of a task are spread, so that the model learns in between."""
LEAST_BATCH, LARGEST_BATCH = 4, 32
AGAIN, CONFIRMED = 3, 3
"""What seems best is measured so often again; another one that seems best then, so many times."""
LEARNING = 6.0
"""Times as long as training the model takes it is then left alone."""


@dataclass
class Progress:
    """One task while it is tuned."""

    task: Task
    space: TaskSpace
    spent: TaskHistory
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def trials(self) -> int:
        """Trials spent on the task, those found in the log included."""
        return self.spent.trials

    @property
    def roof_us(self) -> float:
        """Least latency the machine's roofline allows."""
        return self.spent.roof_us

    @property
    def best_us(self) -> float:
        """Latency of the fastest plan so far; infinite before the first one."""
        return self.space.best_us


Watch = Callable[[list[Progress], int], None]


def unwatched(_tasks: list[Progress], _done: int) -> None:
    """Looks at nothing."""


class Tuner:
    """The measuring loop over tasks of one or several models.

    tasks     by signature: the task, and its calls in each model
    measurer  where plans are measured; by default on this machine
    alone     whether kernels will run by themselves, not between others of a model
    """

    def __init__(
        self,
        tasks: Mapping[str, tuple[Task, tuple[float, ...]]],
        hardware: HardwareModel,
        database: Database,
        seed: int,
        *,
        objective: Objective = "latency",
        goals_us: Sequence[float] = (),
        rules: Sequence[SketchRule] = (),
        watch: Watch = unwatched,
        measurer: Measurer | None = None,
        alone: bool = False,
    ) -> None:
        self.hardware = hardware
        self._alone = alone
        self.watch = watch
        self.interrupted = False
        self._trials = Trials(hardware, database, seed, measurer)
        self._model = CostModel(seed, hardware.cores)
        self.tasks = [
            progress
            for task, weights in tasks.values()
            if (progress := self._start(task, weights, seed, rules)) is not None
        ]
        self._lessons = self._from_log(seed)
        self._learn_again = 0.0
        spent = [progress.spent for progress in self.tasks]
        self._scheduler = TaskScheduler(spent, random.Random(seed), objective, goals_us)

    @property
    def done(self) -> int:
        """Trials spent, those found in the log included."""
        return sum(progress.trials for progress in self.tasks)

    def search(self, trials: int, deadline: float) -> None:
        """Spends the trials, or the time until `deadline` on the monotonic clock. The measuring
        process ends with it."""
        try:
            with self.until_interrupted():
                self.run(trials, deadline)
        except KeyboardInterrupt:  # a second Ctrl-C
            self.interrupted = True
        finally:
            self._trials.close()

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
        """Every task's first plan, then where most is left to gain."""
        self.watch(self.tasks, self.done)
        first = [p for p in self.tasks if p.space.picked[0] not in p.space.measured]
        for progress in sorted(first, key=lambda p: -sum(p.spent.weights) * p.roof_us):
            # A log of another version, or one that was imported, may hold nothing but worse plans,
            # and these are used: whatever was spent on them, this one is measured.
            spent = self.done >= trials and not progress.space.measured
            if not spent and not self._over(deadline):
                self.measure(progress, [progress.space.picked[0]])
        batch = trials // (BATCHES * max(1, len(self.tasks)))
        batch = max(LEAST_BATCH, min(LARGEST_BATCH, batch))
        while self.done < trials and not self._over(deadline):
            place = self._scheduler.next()
            if place is None:
                break
            progress = self.tasks[place]
            self.learn()
            plans = progress.space.propose(min(batch, trials - self.done), self._model)
            if plans:
                self.measure(progress, plans)
                self.confirm(progress)
            else:
                progress.spent.exhausted = True

    def _over(self, deadline: float) -> bool:
        return self.interrupted or time.monotonic() > deadline

    def learn(self) -> None:
        """Trains the model on all that was measured, now and in the log, unless it was trained so
        lately that training would take a good part of the time."""
        start = time.monotonic()
        if start < self._learn_again:
            return
        own = [example for progress in self.tasks for example in progress.space.examples()]
        self._model.fit([*self._lessons, *own])
        now = time.monotonic()
        self._learn_again = now + LEARNING * (now - start)

    def measure(
        self, progress: Progress, plans: Sequence[TilePlan], *, again: bool = False
    ) -> None:
        """Measures plans of one task; measured `again`, they count as no trials."""
        first = progress.space.picked[0]
        records = self._trials.run(progress.task, plans, progress.best_us, yardstick=first)
        self._take(progress, records, again=again)
        self.watch(self.tasks, self.done)

    def confirm(self, progress: Progress) -> None:
        """Measures what is promising again until that has been measured more than once: of many
        plans, the luckiest single measurement is not the best."""
        space = progress.space
        for _ in range(CONFIRMED):
            plan = space.promising
            known = plan == space.picked[0] or len(self._known(progress, plan)) > 1
            if known or self.interrupted or not isfinite(space.best_us):
                return
            self.measure(progress, [plan] * AGAIN, again=True)

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

    def _start(
        self, task: Task, weights: tuple[float, ...], seed: int, rules: Sequence[SketchRule]
    ) -> Progress | None:
        """The task with what the log knows of it; None if nothing can be planned."""
        graph, hardware = task.graph, self.hardware
        if graph is None:
            return None
        picked = [candidate.plan for candidate in pick(graph, hardware, PICKED, alone=self._alone)]
        if not picked:
            return None
        space = TaskSpace(
            graph,
            hardware,
            picked,
            lambda g, p: predict(g, p, hardware),
            seed,
            rules,
            lambda plan: 0.0 if self._alone else exchange_us(graph, plan, hardware),
        )
        limit = roof(graph.flops, graph.io_bytes, hardware)
        similar = likeness(task.kind, task.flops)
        progress = Progress(
            task, space, TaskHistory(weights, task.flops, limit.latency_us, similar)
        )
        known = self._trials.database.measured(task.signature, hardware.fingerprint())
        if known:
            self._take(progress, list(known.values()))
        return progress

    def _from_log(self, seed: int) -> list[Example]:
        """What the log knows of other tasks on this machine."""
        database, hardware = self._trials.database, self.hardware
        own = {progress.task.signature for progress in self.tasks}
        measured = {
            signature: database.typical(signature, hardware.fingerprint())
            for signature in database.graphs
            if signature not in own
        }
        return lessons(
            database.graphs, measured, hardware, lambda g, p: predict(g, p, hardware), seed
        )

    def _known(self, progress: Progress, plan: TilePlan) -> list[Record]:
        """All records of one plan."""
        task, mark = progress.task.signature, self.hardware.fingerprint()
        return [r for r in self._trials.database.records(task, mark) if r.plan == plan]

    def _take(self, progress: Progress, records: list[Record], *, again: bool = False) -> None:
        database, mark = self._trials.database, self.hardware.fingerprint()
        believed_us = database.believed(progress.task.signature, mark)
        for plan, latency_us in database.typical(progress.task.signature, mark).items():
            progress.space.take(plan, latency_us, believed_us[plan])
        for record in records:
            progress.spent.trials += 0 if again else 1
            if record.error is not None:
                progress.failures[record.error.kind] += 1
        progress.spent.history_us.append(progress.best_us)
