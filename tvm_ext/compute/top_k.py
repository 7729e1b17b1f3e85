"""The first elements of a row in order, by quadratic selection (Friend, JACM 1956; Knuth, volume 3,
section 5.2.3): of n elements some k in k * sqrt(n) comparisons, by vectors.

    keys = the row as integers in the same order; tops[b] = largest of block b of the keys
    k times:
        b = first of the largest tops; i = first of the largest keys of block b
        value = x[b, i]; keys[b, i] = less than any; tops[b] = largest of block b

Integers, because they have a least value that is nobody's: an element that was taken is not taken
again, infinities and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from tvm_ext.compute.maths import integer
from tvm_ext.compute.written import times
from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
Expr = Any

LARGEST = 2**24
"""Elements of a row at most."""
UNROLLED = 16
"""Vectors that are compared at a time."""
LEAST, NOWHERE = -(2**31), 2**31 - 1
PICK_CYCLES = 60
"""Cycles of one pick beside its comparisons: three vectors made one number, one after another."""


@dataclass(frozen=True)
class TopK:
    """The kernel for rows of `length` elements, of which the first `count` are wanted.

    largest   whether order goes down
    lanes     elements in a vector
    """

    rows: int
    length: int
    count: int
    largest: bool
    lanes: int

    @property
    def block(self) -> int:
        """Elements in a block: whole vectors, about as many as there are blocks."""
        size = self.lanes
        while size * size < self.length:
            size *= 2
        return size

    @property
    def blocks(self) -> int:
        """Blocks of a row, the last one filled up."""
        return ceil(self.length / self.block)

    @property
    def cycles(self) -> float:
        """About how long it takes."""
        pick = (2 * self.blocks + 3 * self.block) / self.lanes + PICK_CYCLES
        return self.rows * (self.length / self.lanes + self.count * pick)

    def __call__(self, x: Tensor, *, parallel: bool) -> Sequence[Tensor]:
        """Values, float32, and their places, int64, [rows, count] each, of x [rows, length]. Equal
        ones come in the order of their places; a NaN counts as beyond the infinity of its sign."""
        shape = (self.rows, self.count)
        program = partial(self._program, parallel=parallel)
        return te.extern(
            [shape, shape],
            [x],
            lambda given, made: program(*given, *made),
            dtype=["float32", "int64"],
            name="top_k",
        )

    def _program(self, x: Any, values: Any, places: Any, *, parallel: bool) -> Any:
        with IRBuilder() as builder:
            with times(self.rows, parallel=parallel) as row:
                keys, tops = self.start(x, row)
                with times(self.count) as place:
                    at = self.pick(keys, tops)
                    Build.buffer_store(values, x[row, at], [row, place])
                    Build.buffer_store(places, at.astype("int64"), [row, place])
            return builder.get()

    def start(self, x: Any, row: Expr) -> tuple[Any, Any]:
        """The keys of a row and the largest of each block of them, for `pick`."""
        keys = Build.alloc_buffer([self.blocks * self.block], "int32")
        tops = Build.alloc_buffer([self._room], "int32")
        self._fill_keys(x, row, keys)
        if self.blocks > 1:
            with times(self.blocks) as block:
                top = self._largest(keys, block * self.block, self.block)
                Build.buffer_store(tops, top, [block])
            self._fill(tops, self.blocks, self._room)
        return keys, tops

    def pick(self, keys: Any, tops: Any) -> Expr:
        """Takes the first of the largest that are left; its place."""
        first = tops if self.blocks > 1 else keys
        top = Build.bind(self._largest(first, integer(0), self._room))
        block = integer(0)
        if self.blocks > 1:
            block = Build.bind(self._place(first, integer(0), self._room, top))
        begin = Build.bind(block * self.block)
        at = Build.bind(begin + self._place(keys, begin, self.block, top))
        Build.buffer_store(keys, integer(LEAST), [at])
        if self.blocks > 1:
            Build.buffer_store(tops, self._largest(keys, begin, self.block), [block])
        return at

    def _fill_keys(self, x: Any, row: Expr, keys: Any) -> None:
        """keys = x as integers in the same order, and less than any beyond the row's end."""
        whole = self.length // self.lanes * self.lanes
        with times(whole // self.lanes) as step:
            at = self._ramp(step * self.lanes)
            Build.buffer_store(keys, self._key(x[row, at], self.lanes), [at])
        with times(self.length - whole) as step:
            Build.buffer_store(keys, self._key(x[row, step + whole], 1), [step + whole])
        self._fill(keys, self.length, self.blocks * self.block)

    def _fill(self, buffer: Any, begin: int, end: int) -> None:
        with times(end - begin) as step:
            Build.buffer_store(buffer, integer(LEAST), [step + begin])

    def _key(self, value: Expr, lanes: int) -> Expr:
        """The bits of a float are in order but for the sign: of negative ones the others turn."""

        def of(number: int) -> Expr:
            return integer(number) if lanes == 1 else self._all(integer(number))

        bits = tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)
        turned = bits ^ ((bits >> of(31)) & of(NOWHERE))
        zero = (bits & of(NOWHERE)) == of(0)  # of either sign
        key = tirx.Select(zero, of(0), turned)
        return key if self.largest else of(-1) - key

    def _largest(self, buffer: Any, begin: Expr, count: int) -> Expr:
        """The largest of so many elements."""
        return self._extreme("max", count, lambda at: buffer[self._ramp(begin + at)])

    def _place(self, buffer: Any, begin: Expr, count: int, top: Expr) -> Expr:
        """Where the first of so many elements is that is as large as `top`."""

        def found(at: Expr) -> Expr:
            here = buffer[self._ramp(begin + at)] == self._all(top)
            return tirx.Select(here, self._ramp(at), self._all(integer(NOWHERE)))

        return self._extreme("min", count, found)

    def _extreme(self, how: str, count: int, vector: Callable[[Expr], Expr]) -> Expr:
        """The largest, or least, element of vectors that begin at 0, `lanes`, ..; of many in a loop
        over as many as are compared at a time: code that is unrolled further takes LLVM minutes."""
        step = UNROLLED * self.lanes
        loops = count // step if count > 2 * step else 0
        rest = [vector(integer(at)) for at in range(loops * step, count, self.lanes)]
        if not loops:
            return extreme(rest, how)
        best, whole = Build.alloc_buffer([self.lanes], "int32"), self._ramp(integer(0))
        worst = {"max": LEAST, "min": NOWHERE}[how]
        Build.buffer_store(best, self._all(integer(worst)), [whole])
        with times(loops) as loop:
            own = [vector(loop * step + at) for at in range(0, step, self.lanes)]
            Build.buffer_store(best, _pairs([best[whole], *own], how), [whole])
        return extreme([best[whole], *rest], how)

    def _ramp(self, begin: Expr) -> Expr:
        return tirx.Ramp(begin, integer(1), self.lanes)

    def _all(self, value: Expr) -> Expr:
        return tirx.Broadcast(value, self.lanes)

    @property
    def _room(self) -> int:
        """What is compared first: the tops of all blocks, or the only block there is."""
        return ceil(self.blocks / self.lanes) * self.lanes if self.blocks > 1 else self.block


def extreme(vectors: Sequence[Expr], how: str = "max") -> Expr:
    """The largest, or least, element of some vectors."""
    return tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.s{how}", _pairs(vectors, how))


def _pairs(vectors: Sequence[Expr], how: str) -> Expr:
    """The larger, or lesser, elements of some vectors: pairs of pairs, which do not wait for each
    other."""
    larger = {"max": tirx.max, "min": tirx.min}[how]
    while len(vectors) > 1:
        pairs = [larger(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = [*pairs, *vectors[2 * len(pairs) :]]
    return vectors[0]
