"""Rows of one tensor with some of another's in their places (ONNX's `ScatterND` by one index each).

    result = data;  result[places[i]] = updates[i]      for each i, the last of equal ones stays

Cores share out columns, so that none meets another's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm_ext.compute.places import from_the_front, is_inside
from tvm_ext.compute.written import length_of_part, times
from tvm_ext.tvm_api import Build, IRBuilder, te

Tensor = Any
STRIP_BYTES = 1 << 12
"""Of a row that is worked on at a time."""


@dataclass(frozen=True)
class ScatterRows:
    """The kernel for `length` rows of `width` elements, of which `count` are written.

    dtype       of what rows hold
    """

    length: int
    width: int
    count: int
    dtype: str
    element_bytes: int

    @property
    def rows(self) -> int:
        """Strips of columns, each worked on by itself."""
        return ceil(self.width * self.element_bytes / STRIP_BYTES)

    @property
    def cycles(self) -> float:
        """About how long it takes, at 8 bytes a cycle."""
        return (2 * self.length + 2 * self.count) * self.width * self.element_bytes / 8

    def __call__(
        self, data: Tensor, places: Tensor, updates: Tensor, *, parallel: bool
    ) -> Sequence[Tensor]:
        """The result, [length, width]; of data of that shape, places int64 [count] counted from
        either end, those out of range left out, and updates [count, width]."""
        made = te.extern(
            [(self.length, self.width)],
            [data, places, updates],
            lambda given, made: self._program(*given, *made, parallel=parallel),
            dtype=[self.dtype],
            name="scatter_rows",
        )
        return [made]

    def _program(self, data: Any, places: Any, updates: Any, result: Any, *, parallel: bool) -> Any:
        strip = ceil(self.width / self.rows)
        with IRBuilder() as builder:
            with times(self.rows, parallel=parallel) as part:
                begin = part * strip
                length = length_of_part(begin, strip, self.width)
                with times(self.length) as row, times(length) as step:
                    column = begin + step
                    Build.buffer_store(result, data[row, column], [row, column])
                with times(self.count) as row:
                    place = Build.bind(from_the_front(places[row], self.length))
                    inside = is_inside(place, self.length)
                    with Build.If(inside), Build.Then(), times(length) as step:
                        column = begin + step
                        Build.buffer_store(result, updates[row, column], [place, column])
            return builder.get()
