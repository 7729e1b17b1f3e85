"""Which task gets the next batch of measurements (Ansor §6).

The gradient of the objective f over the trials t of task i, from what its last batches gained, what
it could still gain, and what similar tasks reached:

    df/dt_i = df/dg_i * (alpha * (g_i(t) - g_i(t - d)) / d
              + (1 - alpha) * min(-g_i(t) / t, beta * C_i / max V_k - g_i(t)))

with C_i the arithmetic of the task and V_k the speed of tasks like it. Here the last term also ends
at the roofline: a task near it has nothing left to gain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Literal

ALPHA = 0.2
BETA = 2.0
WINDOW = 3
"""Batches over which the last gain is taken."""
EPSILON = 0.05
LEAST_ROOM = 0.02
"""Part of its latency that a task may gain even at the roofline, which is a model's."""

Objective = Literal["latency", "geomean"]


@dataclass
class TaskHistory:
    """What the scheduler knows of one task.

    weights  calls of the task in each model that is tuned (one model: one number)
    """

    weights: tuple[float, ...]
    flops: float
    roof_us: float
    similar: str
    """Tasks with the same word are alike: their operators, and the size of their arithmetic."""
    trials: int = 0
    history_us: list[float] = field(default_factory=list)
    """The best latency after every batch."""
    exhausted: bool = False

    @property
    def best_us(self) -> float:
        """The best latency so far."""
        return self.history_us[-1] if self.history_us else inf


class TaskScheduler:
    """Chooses tasks by gradient.

    objective   `latency`: the sum over the models of their latencies; `geomean`: their geometric
                mean, by which a small model counts as much as a large one
    targets_us  latencies of the models below which they need no more trials; infinite for none
    """

    def __init__(
        self,
        tasks: Sequence[TaskHistory],
        source: random.Random,
        objective: Objective = "latency",
        targets_us: Sequence[float] = (),
    ) -> None:
        self.tasks = list(tasks)
        self._random = source
        self._objective = objective
        self._targets_us = tuple(targets_us)

    def next(self) -> int | None:
        """The task for the next batch; None if none has plans left or all are fast enough."""
        wanting = [i for i, task in enumerate(self.tasks) if not task.exhausted]
        gradients = {i: self.gradient(i) for i in wanting}
        wanting = [i for i in wanting if gradients[i] > 0]
        if not wanting:
            return None
        if self._random.random() < EPSILON:
            return self._random.choice(wanting)
        return max(wanting, key=lambda i: gradients[i])

    def gradient(self, place: int) -> float:
        """By how much a trial of the task is expected to lower the objective, at least 0."""
        task = self.tasks[place]
        if task.best_us == inf:
            return inf if not task.trials else 0.0
        history = task.history_us
        back = history[max(0, len(history) - 1 - WINDOW)]
        spent = max(1, min(WINDOW, len(history) - 1))
        gained = (back - task.best_us) / spent if back < inf else 0.0
        optimistic = task.best_us / max(1, len(history))
        bound_us = max(task.roof_us, self._reached_us(place))
        room = max(LEAST_ROOM * task.best_us, task.best_us - bound_us)
        slope = ALPHA * gained + (1 - ALPHA) * min(optimistic, room)
        return slope * self._importance(place)

    def model_us(self, model: int) -> float:
        """The latency of a model's tasks together; tasks that do not work yet are left out."""
        return sum(t.weights[model] * t.best_us for t in self.tasks if t.best_us < inf)

    def _importance(self, place: int) -> float:
        """How the objective changes with the latency of the task."""
        total = 0.0
        for model, weight in enumerate(self.tasks[place].weights):
            now_us = self.model_us(model)
            if model < len(self._targets_us) and now_us <= self._targets_us[model]:
                continue
            total += weight / (now_us if self._objective == "geomean" else 1.0)
        return total

    def _reached_us(self, place: int) -> float:
        """The task's latency at the speed of the fastest like it, less the factor beta."""
        task = self.tasks[place]
        speeds = [
            other.flops / other.best_us
            for other in self.tasks
            if other.similar == task.similar and other.best_us < inf
        ]
        return task.flops / max(speeds) / BETA if task.flops and speeds else 0.0


def likeness(kind: str, flops: float) -> str:
    """The word by which tasks are alike: operators, and the arithmetic in steps of 1.618."""
    return f"{kind} {int(log(max(1.0, flops), 1.618))}"
