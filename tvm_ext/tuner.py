"""`tune` and `tune_tir`: search for the plans of a model's tasks, or of one function, by measuring.

    until the trials are spent:
        the task scheduler chooses a task      by what is left to gain
        its space proposes a batch of plans    drafted by the performance model and the learned one
        they are measured                      each in a process of its own, checked, on disk
        the learned model is trained anew

The picker's first plan of every task is measured before anything else, so the result never starts
behind the tuning-free one; a plan that seems faster is measured again beside it at the end.
"""

from __future__ import annotations

import os
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

from tvm_ext.assembly import assemble
from tvm_ext.errors import ModelError
from tvm_ext.flow import Shapes, hardware_for, log_notes, lower, plan_all
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import roof
from tvm_ext.measure.build import build
from tvm_ext.measure.job import Failure
from tvm_ext.picker import pick, predict
from tvm_ext.planner import Task, make_task, plan_task
from tvm_ext.records import Database, Record
from tvm_ext.runtime.executor import Compiled
from tvm_ext.search import CostModel, Objective, SketchRule, TaskScheduler, TaskSpace
from tvm_ext.search import Progress as Spent
from tvm_ext.search.task_scheduler import likeness
from tvm_ext.tile.plan import TilePlan
from tvm_ext.trials import Trials
from tvm_ext.tvm_api import PrimFunc, Target

PICKED = 12
"""Plans of the picker that a task's search starts from."""
BATCHES = 6
"""Batches over which the trials of a task are spread, so that the model learns in between."""
LEAST_BATCH, LARGEST_BATCH = 4, 16
SETTLED = 3
"""Times that a plan is measured again beside the picker's first before it is believed."""


@dataclass
class Progress:
    """One task while it is tuned."""

    task: Task
    space: TaskSpace
    spent: Spent
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


def _unwatched(_tasks: list[Progress], _done: int) -> None:
    """Looks at nothing."""


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
    calls = {task.signature: (task, (float(task.calls),)) for task in lowered.distinct.values()}
    tuner = Tuner(calls, lowered.hardware, database, seed, watch=watch or _unwatched)
    tuner.search(trials, deadline)
    notes = (*lowered.notes, *log_notes(database, lowered), *tuner.notes())
    return assemble(lowered, plan_all(lowered, database), notes, verify=True)


@dataclass(frozen=True)
class TunedKernel:
    """What `tune_tir` found."""

    func: PrimFunc
    """The scheduled function; build it under `tir_pipeline="tvm_ext"`, or call `build`."""
    plan: TilePlan | None
    """None if the function has no structure that can be planned: it is as TVM wrote it."""
    latency_us: float
    """Of the best plan; infinite if none was measured."""
    first_us: float
    """Of the picker's first plan, which measures nothing."""
    trials: int
    target: Target
    notes: tuple[str, ...]

    def build(self, name: str = "main") -> Any:
        """The machine code as a TVM runtime module whose entry is `name`. Raises ModelError."""
        built = build(self.func, self.target, name, checked=True)
        if isinstance(built, Failure):
            raise ModelError(f"function {name}: TVM cannot build it: {built.message}")
        return built.module


def tune_tir(
    func: PrimFunc,
    target: Any = "cpu",
    trials: int = 64,
    *,
    log: str | os.PathLike[str] = "tuning_logs",
    time_budget_s: float | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    rules: Sequence[SketchRule] = (),
    watch: Watch | None = None,
) -> TunedKernel:
    """Tunes one unscheduled function, whatever made it: TE, TVMScript, or a Relax flow.

    rules  sketch rules of your own, tried before ours (`tvm_ext.search.sketch`)

    The rest is as in `tune`. Raises TargetError, LogError.
    """
    deadline = time.monotonic() + (time_budget_s or float("inf"))
    hardware = hardware_for(target, num_threads)
    database = Database.open(log, create=True)
    name = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else ""
    task = make_task(func, name or "main")
    tasks = {task.signature: (task, (1.0,))}
    tuner = Tuner(tasks, hardware, database, seed, rules=rules, watch=watch or _unwatched)
    tuner.search(trials, deadline)
    planned = plan_task(task, hardware, database)
    space = tuner.tasks[0].space if tuner.tasks else None
    return TunedKernel(
        func=planned.func,
        plan=planned.option.plan,
        latency_us=space.best_us if space else float("inf"),
        first_us=space.measured.get(space.picked[0], float("inf")) if space else float("inf"),
        trials=tuner.done,
        target=Target(hardware.target),
        notes=(*tuner.notes(), *planned.reasons),
    )


class Tuner:
    """The measuring loop over tasks of one or several models.

    tasks  by signature: the task, and its calls in each model
    """

    def __init__(
        self,
        tasks: Mapping[str, tuple[Task, tuple[float, ...]]],
        hardware: HardwareModel,
        database: Database,
        seed: int,
        *,
        objective: Objective = "latency",
        rules: Sequence[SketchRule] = (),
        watch: Watch = _unwatched,
    ) -> None:
        self.hardware = hardware
        self.watch = watch
        self.interrupted = False
        self._trials = Trials(hardware, database, seed)
        self._model = CostModel(seed, hardware.cores)
        self.tasks = [
            progress
            for task, weights in tasks.values()
            if (progress := self._start(task, weights, seed, rules)) is not None
        ]
        spent = [progress.spent for progress in self.tasks]
        self._scheduler = TaskScheduler(spent, random.Random(seed), objective)

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
        """Every task's first plan, then where most is left to gain; at the end the best again."""
        self.watch(self.tasks, self.done)
        first = [p for p in self.tasks if p.space.picked[0] not in p.space.measured]
        for progress in sorted(first, key=lambda p: -sum(p.spent.weights) * p.roof_us):
            if self.done >= trials or self._over(deadline):
                break
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
            else:
                progress.spent.exhausted = True
        for progress in self.tasks:
            self.settle(progress, deadline)

    def _over(self, deadline: float) -> bool:
        return self.interrupted or time.monotonic() > deadline

    def learn(self) -> None:
        """Trains the model on all that was measured."""
        self._model.fit([e for progress in self.tasks for e in progress.space.examples()])

    def measure(
        self, progress: Progress, plans: Sequence[TilePlan], *, again: bool = False
    ) -> None:
        """Measures plans of one task; measured `again`, they count as no trials."""
        records = self._trials.run(progress.task, plans, progress.best_us)
        self._take(progress, records, again=again)
        self.watch(self.tasks, self.done)

    def settle(self, progress: Progress, deadline: float) -> None:
        """Runs the best plan and the picker's first one side by side until what is best has been
        measured more than once: of many plans, the luckiest single measurement is not the best."""
        space = progress.space
        for _ in range(SETTLED):
            if self._over(deadline) or not isfinite(space.best_us):
                return
            best = space.best
            if best == space.picked[0] or len(self._known(progress, best)) > 1:
                return
            self.measure(progress, [space.picked[0], best], again=True)

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
        if task.graph is None:
            return None
        picked = [candidate.plan for candidate in pick(task.graph, self.hardware, PICKED)]
        if not picked:
            return None
        hardware = self.hardware
        space = TaskSpace(
            task.graph, hardware, picked, lambda g, p: predict(g, p, hardware), seed, rules
        )
        limit = roof(task.graph.flops, task.graph.io_bytes, hardware)
        similar = likeness(task.kind, task.flops)
        progress = Progress(task, space, Spent(weights, task.flops, limit.latency_us, similar))
        known = self._trials.database.measured(task.signature, hardware.fingerprint())
        if known:
            self._take(progress, list(known.values()))
        return progress

    def _known(self, progress: Progress, plan: TilePlan) -> list[Record]:
        """All records of one plan."""
        task, mark = progress.task.signature, self.hardware.fingerprint()
        return [r for r in self._trials.database.records(task, mark) if r.plan == plan]

    def _take(self, progress: Progress, records: list[Record], *, again: bool = False) -> None:
        database, mark = self._trials.database, self.hardware.fingerprint()
        typical = database.typical(progress.task.signature, mark)
        for record in records:
            progress.space.take(record.plan, typical[record.plan])
            progress.spent.trials += 0 if again else 1
            if record.error is not None:
                progress.failures[record.error.kind] += 1
        progress.spent.history_us.append(progress.best_us)
