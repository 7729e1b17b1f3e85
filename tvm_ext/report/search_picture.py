"""A search as a picture: how tasks got faster, how well they were predicted, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from tvm_ext.report.figure import require_matplotlib, save_figure

CURVES = 8
"""Tasks with a colour and a line of their own: those that were tried most."""
OTHER_COLOR = "#bbbbbb"


class Trial(msgspec.Struct, frozen=True):
    """One measurement, as far as a picture needs it."""

    seconds: float
    """Since the first one of its log."""
    latency_us: float
    """Infinite if it failed."""
    predicted_us: float | None = None
    """By the performance model; None where the log does not say what the task computes."""
    failure: str = ""


class TaskTrials(msgspec.Struct, frozen=True):
    """The trials of one task, in order."""

    kind: str
    trials: tuple[Trial, ...]

    @property
    def best_us(self) -> float:
        """The lowest latency; infinite if nothing worked."""
        return min((trial.latency_us for trial in self.trials), default=float("inf"))

    def curve(self) -> list[tuple[int, float, float]]:
        """(trial, seconds, best so far over the first that worked), from that one on."""
        best = list(accumulate((trial.latency_us for trial in self.trials), min))
        first = next((us for us in best if isfinite(us)), 0.0)
        return [
            (place, trial.seconds, us / first)
            for place, (trial, us) in enumerate(zip(self.trials, best, strict=True), 1)
            if isfinite(us)
        ]


def failure_counts(tasks: Sequence[TaskTrials]) -> dict[str, int]:
    """Failed trials by kind, the commonest first."""
    found = Counter(trial.failure for task in tasks for trial in task.trials if trial.failure)
    return dict(found.most_common())


def draw_search(tasks: Sequence[TaskTrials], path: Path) -> None:
    """Four plots: the best latency of each task against trials and against seconds, predicted
    against measured latency of every plan, and failures by kind.

    Raises InstallError without matplotlib, ArtifactError if the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 8.4), dpi=110, layout="constrained")
    by_trial, by_second, scatter, bars = figure.subplots(2, 2).ravel()
    ranked = sorted(tasks, key=lambda task: -len(task.trials))
    for place, task in enumerate(ranked):
        color = f"C{place}" if place < CURVES else OTHER_COLOR
        label = task.kind if place < CURVES else None
        curve = task.curve()
        for plot, column in ((by_trial, 0), (by_second, 1)):
            xs, ys = [point[column] for point in curve], [point[2] for point in curve]
            plot.step(xs, ys, where="post", color=color, label=label, linewidth=1.3)
        _scatter(scatter, task, color)
    for plot, label in ((by_trial, "trials of the task"), (by_second, "seconds of the search")):
        plot.set(xlabel=label, ylabel="best latency / first", ylim=(0, 1.05))
        plot.grid(True, color="#e4e4e4", linewidth=0.7)
    if ranked:
        by_trial.legend(fontsize=7, loc="lower left")
    _diagonal(scatter, tasks)
    _bars(bars, tasks)
    save_figure(figure, path, "picture of a search")


def _scatter(plot: Any, task: TaskTrials, color: str) -> None:
    points = [
        (trial.predicted_us, trial.latency_us)
        for trial in task.trials
        if trial.predicted_us and isfinite(trial.latency_us)
    ]
    if points:
        plot.scatter(*zip(*points, strict=True), s=7, color=color, alpha=0.6, linewidths=0)


def _diagonal(plot: Any, tasks: Sequence[TaskTrials]) -> None:
    """Where every point would lie if predictions were right."""
    plot.set(xlabel="predicted us", ylabel="measured us")
    seen = [
        value
        for task in tasks
        for trial in task.trials
        if trial.predicted_us and isfinite(trial.latency_us)
        for value in (trial.predicted_us, trial.latency_us)
    ]
    if seen:
        ends = (min(seen), max(seen))
        plot.plot(ends, ends, color="black", linewidth=0.8)
        plot.set(xscale="log", yscale="log")
    plot.grid(True, color="#e4e4e4", linewidth=0.7)


def _bars(plot: Any, tasks: Sequence[TaskTrials]) -> None:
    counts = failure_counts(tasks)
    total = sum(len(task.trials) for task in tasks)
    if not counts:
        plot.set_axis_off()
    names = list(reversed(counts))
    plot.barh(names, [counts[name] for name in names], color="#c0392b", height=0.6)
    plot.set(xlabel="trials", title=f"{sum(counts.values())} of {total} trials failed")
