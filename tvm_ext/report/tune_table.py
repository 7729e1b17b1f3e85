"""The tasks of a model while it is tuned, and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from tvm_ext.report.text import gflops_text, short, table, us_text

if TYPE_CHECKING:
    from rich.table import Table


class TaskLine(msgspec.Struct, frozen=True):
    """How far the tuning of one task is."""

    signature: str
    kind: str
    calls: int
    trials: int
    flops: float
    """Of one call."""
    roof_us: float
    """Least latency the machine's roofline allows."""
    best_us: float = inf
    """Lowest latency so far; infinite before the first one."""
    failures: dict[str, int] = {}
    """Failed trials by kind of error."""

    @property
    def roof_percent(self) -> float:
        """How much of what the machine can do is reached: 100 is the roofline, 0 unknown."""
        return 100 * self.roof_us / self.best_us

    @property
    def weight_us(self) -> float:
        """What the task takes in the whole model, at least."""
        return self.calls * (self.best_us if isfinite(self.best_us) else self.roof_us)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; an unknown latency is None."""
        known = isfinite(self.best_us)
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {
            **plain,
            "best_us": self.best_us if known else None,
            "gflops": self.flops / self.best_us / 1e3 if known else None,
            "roof_percent": self.roof_percent if known else None,
        }


def tune_table(lines: Sequence[TaskLine], rows: int | None = None) -> Table:
    """The tasks, those that take longest first; `rows` of them at most."""
    drawn = table(
        "kernel",
        "task",
        "calls",
        "trials",
        "best us",
        "x calls",
        "GFLOP/s",
        "% of roof",
        "failed",
        left=("kernel", "task"),
    )
    ranked = sorted(lines, key=lambda line: -line.weight_us)
    for line in ranked[:rows]:
        drawn.add_row(
            line.kind,
            short(line.signature),
            str(line.calls),
            str(line.trials),
            us_text(line.best_us),
            us_text(line.calls * line.best_us),
            gflops_text(line.flops, line.best_us),
            _percent(line),
            str(sum(line.failures.values()) or "-"),
        )
    hidden = len(ranked) - len(ranked[:rows])
    if hidden:
        drawn.caption = f"and {hidden} tasks that take less"
    return drawn


def count_text(done: int, trials: int | None) -> str:
    """Trials made, of those allowed if there is a limit; a log may hold more."""
    if trials and done > trials:
        return f"{done}, more than {trials}"
    return f"{done}/{trials}" if trials else str(done)


def batch_line(line: TaskLine, done: int, trials: int | None) -> str:
    """One task after a batch, for output that is not a terminal."""
    parts = [
        f"trial {count_text(done, trials)}",
        f"{line.kind} {short(line.signature)}",
        f"best {us_text(line.best_us)} us",
        f"{gflops_text(line.flops, line.best_us)} GFLOP/s",
        f"{_percent(line)}% of roof",
    ]
    if line.failures:
        parts.append(f"{sum(line.failures.values())} failed")
    return "  ".join(parts)


def failures(lines: Sequence[TaskLine]) -> dict[str, int]:
    """Failed trials of all tasks by kind of error, the commonest first."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.failures)
    return dict(counts.most_common())


def _percent(line: TaskLine) -> str:
    return f"{line.roof_percent:.0f}" if isfinite(line.best_us) else "-"
