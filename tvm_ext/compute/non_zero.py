"""The places of elements that are not zero, in order (ONNX's `NonZero`).

    places[total] = i;  total += alive[i]       for each i: what is not alive is written over

A long row goes in parts, one for a core; what they find is put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm_ext.compute.maths import integer
from tvm_ext.compute.written import length_of_part, times
from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
PART = 1 << 15
"""Elements of a part at least."""
PARTS = 16
"""At most, which is enough to share out."""


@dataclass(frozen=True)
class NonZero:
    """The kernel for a row of `length` elements."""

    length: int

    @property
    def rows(self) -> int:
        """Parts of the row, each worked on by itself."""
        return max(1, min(PARTS, self.length // PART))

    @property
    def cycles(self) -> float:
        """About how long it takes."""
        return 2.0 * self.length

    def __call__(self, alive: Tensor, *, parallel: bool) -> Sequence[Tensor]:
        """Places, int64 [length], zeros behind those found, and how many are, int64 [1]; of a row
        of bool."""
        return te.extern(
            [(self.length,), (1,)],
            [alive],
            lambda given, made: self._program(*given, *made, parallel=parallel),
            dtype=["int64", "int64"],
            name="non_zero",
        )

    def _program(self, alive: Any, places: Any, total: Any, *, parallel: bool) -> Any:
        with IRBuilder() as builder:
            with times(1):  # a builder takes one statement
                if self.rows == 1:
                    self._find(alive, integer(0), self.length, places, integer(0), total, 0)
                else:
                    self._in_parts(alive, places, total, parallel=parallel)
                with times((self.length - total[0]).astype("int32")) as step:
                    Build.buffer_store(places, tirx.const(0, "int64"), [total[0] + step])
            return builder.get()

    def _in_parts(self, alive: Any, places: Any, total: Any, *, parallel: bool) -> None:
        part = ceil(self.length / self.rows)
        found = Build.alloc_buffer([self.rows * part], "int64")
        counts = Build.alloc_buffer([self.rows], "int64")
        with times(self.rows, parallel=parallel) as row:
            begin = row * part
            length = length_of_part(begin, part, self.length)
            self._find(alive, begin, length, found, begin, counts, row)
        Build.buffer_store(total, tirx.const(0, "int64"), [0])
        with times(self.rows) as row:
            with times(counts[row].astype("int32")) as step:
                Build.buffer_store(places, found[row * part + step], [total[0] + step])
            Build.buffer_store(total, total[0] + counts[row], [0])

    def _find(
        self, alive: Any, begin: Any, length: Any, places: Any, into: Any, count: Any, at: Any
    ) -> None:
        """places[into:] = the places of those from `begin` on; count[at] = their number."""
        Build.buffer_store(count, tirx.const(0, "int64"), [at])
        with times(length) as step:
            place = begin + step
            Build.buffer_store(places, place.astype("int64"), [into + count[at]])
            Build.buffer_store(count, count[at] + alive[place].astype("int64"), [at])
