"""How far `tune` is: a live table on a terminal, else a line per batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tvm_ext.report.text import us_text
from tvm_ext.report.tune_table import TaskLine, batch_line, count_text, tune_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from tvm_ext.tuning import Progress

FRAME_ROWS = 7
"""Rows of a terminal that the live table cannot use for tasks."""


class Watcher:
    """What `tune` calls after every batch. `lines` holds the tasks as they last were.

    trials  how many are allowed in all; None for no limit
    quiet   print nothing
    """

    def __init__(self, model: str, trials: int | None, quiet: bool) -> None:
        self.lines: list[TaskLine] = []
        self.done = 0
        self._model = model
        self._trials = trials
        self._live = not quiet and sys.stderr.isatty()
        self._talking = not quiet and not self._live
        self._started = time.monotonic()
        self._screen = ExitStack()

    def __enter__(self) -> Watcher:
        if self._live:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, markup=False, highlight=False, emoji=False)
            self._screen.enter_context(Live(self, console=console, transient=True))
        limit = f", up to {self._trials} trials" if self._trials else ""
        self._say(f"tuning {self._model}{limit}")
        return self

    def __exit__(self, *error: object) -> None:
        self._screen.close()

    def __call__(self, tasks: Sequence[Progress], done: int) -> None:
        """Takes the state of all tasks after a batch."""
        before = {line.signature: line for line in self.lines}
        self.lines = [task_line(task) for task in tasks]
        self.done = done
        for line in self.lines:
            known = before.get(line.signature)
            if (known.trials if known else 0) != line.trials:
                self._say(batch_line(line, done, self._trials))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The live table; rich calls this a few times a second."""
        seconds = time.monotonic() - self._started
        yield f"tuning {self._model}  {seconds:.0f} s  Ctrl-C stops with the best so far"
        if not self.lines:
            yield "importing the model"
            return
        known = sum(line.trials > 0 for line in self.lines)
        total = us_text(sum(line.weight_us for line in self.lines))
        count = count_text(self.done, self._trials)
        yield (
            f"trial {count}  {known} of {len(self.lines)} tasks tried  model at least {total} us"
        )
        yield tune_table(self.lines, max(1, console.height - FRAME_ROWS))

    def _say(self, text: str) -> None:
        if not self._talking:
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except BrokenPipeError:
            self._talking = False


def task_line(task: Progress) -> TaskLine:
    """The report's view of one task of the tuner."""
    graph: Any = task.task.graph
    return TaskLine(
        signature=task.task.signature,
        kind=task.task.kind,
        calls=task.task.calls,
        trials=task.trials,
        flops=graph.flops,
        roof_us=task.roof_us,
        best_us=task.best_us,
        failures=dict(task.failures),
    )
