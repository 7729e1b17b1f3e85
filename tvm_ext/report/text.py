"""Drawing tables as text, and numbers as people write them. rich is imported when first drawing."""

from __future__ import annotations

import io
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

UNLIMITED = 10_000
"""Columns of text that is not for a terminal: nothing in it is ever wrapped."""


FOLDED = ("plan", "error")
"""Columns with long content: they alone are broken over lines where the width is short."""
FOLDED_WIDTH = 24


def table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    """An empty table; columns named in `left` hold words, all others numbers."""
    from rich import box
    from rich.table import Table

    empty = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        empty.add_column(
            column,
            justify="left" if column in left else "right",
            overflow="fold",
            no_wrap=column not in FOLDED,
            min_width=FOLDED_WIDTH if column in FOLDED else None,
        )
    return empty


def draw(*parts: Any, width: int | None = None, color: bool = False) -> str:
    """Lines and tables as text, the tables `width` columns wide, by default as many as they need.

    A table that cannot be so narrow is wider: a cut figure is worse than a long line.

    `color` adds terminal escapes, unless NO_COLOR or the kind of terminal is against it.
    """
    from rich.console import Console
    from rich.measure import Measurement

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=UNLIMITED,
        force_terminal=color or None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for part in parts:
        if isinstance(part, str) or width is None:
            console.print(part, soft_wrap=isinstance(part, str))
        else:
            least = Measurement.get(console, console.options, part).minimum
            console.print(part, width=max(width, least))
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def short(signature: str) -> str:
    """Enough of a task's signature to tell it from the others; `logs show --task` takes it."""
    return signature[:8]


def us_text(us: float) -> str:
    """Microseconds with three digits or more; `-` if unknown (zero or not finite)."""
    if not us or not isfinite(us):
        return "-"
    digits = 2 if us < 10 else 1 if us < 100 else 0
    return f"{us:,.{digits}f}"


def gflops_text(flops: float, us: float) -> str:
    """Arithmetic per time in GFLOP/s; `-` where there is none or no time."""
    if not flops or not us or not isfinite(us):
        return "-"
    rate = flops / us / 1e3
    return f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"
