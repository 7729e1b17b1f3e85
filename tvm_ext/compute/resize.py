"""Planes enlarged by straight lines between elements (ONNX's `Resize`, linear), axis by axis.

    row(y) = x[p, y, lo] + (x[p, y, lo + 1] - x[p, y, lo]) * share      by columns, of each row once
    out[p, i, :] = row(lo_i) + (row(lo_i + 1) - row(lo_i)) * share_i    by rows, vectors as they lie

Of a plane enlarged s times along both axes that is two loads and a multiplication for an element,
where all four neighbours, looked up one by one, are eight times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm_ext.compute.maths import integer
from tvm_ext.compute.written import alike, by_vectors, length_of_part, times
from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
Expr = Any
LEAST_ROWS = 8
"""Of a part of a plane: it works two rows out that its neighbour has as well."""
PARTS = 32
"""Parts of all planes at most, if planes are few."""


@dataclass(frozen=True)
class Resize:
    """The kernel for `planes` of `height` by `width` elements, enlarged to `rows_out` by
    `columns_out`."""

    planes: int
    height: int
    width: int
    rows_out: int
    columns_out: int
    lanes: int

    @property
    def rows(self) -> int:
        """Parts of planes, each worked on by itself."""
        return self.planes * self._parts

    @property
    def cycles(self) -> float:
        """About how long it takes."""
        looked_up = self.planes * self.height * self.columns_out * 3
        return looked_up + self.planes * self.rows_out * self.columns_out / self.lanes * 3

    @property
    def _parts(self) -> int:
        """Of a plane."""
        wanted = ceil(PARTS / self.planes)
        return max(1, min(wanted, self.rows_out // LEAST_ROWS))

    def __call__(
        self,
        x: Tensor,
        lows: Tensor,
        shares: Tensor,
        row_lows: Tensor,
        row_shares: Tensor,
        *,
        parallel: bool,
    ) -> Sequence[Tensor]:
        """float32 [planes, rows_out, columns_out]; of x [planes, height, width] and, for columns
        and then for rows, the element before each result, int32, and the share of the next."""
        made = te.extern(
            [(self.planes, self.rows_out, self.columns_out)],
            [x, lows, shares, row_lows, row_shares],
            lambda given, made: self._program(*given, *made, parallel=parallel),
            dtype=["float32"],
            name="resize",
        )
        return [made]

    def _program(
        self,
        x: Any,
        lows: Any,
        shares: Any,
        row_lows: Any,
        row_shares: Any,
        result: Any,
        *,
        parallel: bool,
    ) -> Any:
        part = ceil(self.rows_out / self._parts)
        room = ceil(self.columns_out / self.lanes) * self.lanes
        with IRBuilder() as builder:
            with times(self.rows, parallel=parallel) as task:
                plane = tirx.floordiv(task, self._parts)
                begin = Build.bind(tirx.floormod(task, self._parts) * part)
                length = length_of_part(begin, part, self.rows_out)
                lines = Build.alloc_buffer([2 * room], "float32")
                held = Build.alloc_buffer([2], "int32")
                for slot in range(2):
                    Build.buffer_store(held, integer(-1), [slot])
                with times(length) as step:
                    row = begin + step
                    low = Build.bind(row_lows[row])
                    high = Build.bind(tirx.min(low + 1, integer(self.height - 1)))
                    for wanted in (low, high):  # of neighbours one is even
                        slot = tirx.floormod(wanted, 2)
                        with Build.If(held[slot] != wanted), Build.Then():
                            self._line(x, plane, wanted, lows, shares, lines, slot * room)
                            Build.buffer_store(held, wanted, [slot])
                    share = Build.bind(row_shares[row])
                    first = Build.bind(tirx.floormod(low, 2) * room)
                    second = Build.bind(tirx.floormod(high, 2) * room)
                    self._between(lines, first, second, share, result, [plane, row])
            return builder.get()

    def _line(
        self, x: Any, plane: Expr, row: Expr, lows: Any, shares: Any, lines: Any, begin: Expr
    ) -> None:
        """A row of the plane, enlarged."""

        def each(at: Expr) -> None:
            low = lows[at]
            last = integer(self.width - 1)
            high = tirx.min(low + alike(at, integer(1)), alike(at, last))
            left, right = x[plane, row, low], x[plane, row, high]
            Build.buffer_store(lines, left + (right - left) * shares[at], [self._on(at, begin)])

        by_vectors(self.columns_out, self.lanes, each)

    def _between(
        self, lines: Any, first: Expr, second: Expr, share: Expr, result: Any, place: list[Expr]
    ) -> None:
        """A row of the result."""

        def each(at: Expr) -> None:
            upper, lower = lines[self._on(at, first)], lines[self._on(at, second)]
            value = upper + (lower - upper) * alike(at, share)
            Build.buffer_store(result, value, [*place, at])

        by_vectors(self.columns_out, self.lanes, each)

    def _on(self, at: Expr, begin: Expr) -> Expr:
        if isinstance(at, tirx.Ramp):
            return tirx.Ramp(at.base + begin, integer(1), self.lanes)
        return at + begin
