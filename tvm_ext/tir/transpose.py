"""Transposed copies by squares of vectors: rows loaded, exchanged in registers, stored as columns.

    for i < 16: for j < 16 (vector): y[.., i, j] = f(x[.., j, .., i])
        →
    r[j] = x[.., j, .., 0:16] for 16 rows;  four rounds of shuffles;  y[.., i, 0:16] = f(r[i])

Rows of what is read may lie anywhere, the last of them again and again; rows that are written may
stop short (`if i < 13`). Padding is chosen after loads that stay inside their tensor (`tir.guard`).

Written as a loop, every vector is put together from 16 loads (12 products of 128 x 64 by 64 x 128
transposed: 64 us, in squares 54). The rounds are those of Eklundh, "A fast computer method for
matrix transposing" (IEEE Trans. Computers, 1972): round b exchanges the b x b blocks beside the
diagonal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tvm_ffi import structural_equal

from tvm_ext.tir.affine import loads
from tvm_ext.tir.guard import guarded
from tvm_ext.tvm_api import (
    Analyzer,
    Call,
    PrimFunc,
    Schedule,
    TensorLoad,
    block_values,
    ir,
    loop_with,
    s_tir,
    structural_map,
    substitute,
    tirx,
    uses,
)
from tvm_ext.tvm_masks import has_choice

SQUARE = "tvm_ext.square"
"""Annotation of the outer one of two loops that copy a square."""


def mark_square(schedule: Schedule, loop: Any) -> None:
    """Has `with_squares` find a loop and the vector loop inside it."""
    schedule.annotate(loop, SQUARE, 1)


def with_squares(func: PrimFunc) -> PrimFunc:
    """The scheduled function with every marked pair of loops as loads, shuffles and stores, where
    it copies a whole square; others stay loops."""
    return func.with_body(structural_map(func.body, [(tirx.For, _rewritten)], order="post"))


def _rewritten(loop: Any) -> Any:
    if SQUARE not in loop.annotations:
        return loop
    kept = {name: value for name, value in loop.annotations.items() if name != SQUARE}
    return _square(loop) or loop_with(loop, loop.body, kept)


def _square(loop: Any) -> Any:
    """The two loops as a block of their own; None where they read nothing transposed."""
    inner, size = loop.body, int(loop.extent)
    realize = getattr(inner, "body", None)
    if not isinstance(realize, s_tir.SBlockRealize) or int(inner.extent) != size:
        return None
    store = realize.block.body
    if uses(realize.predicate, inner.loop_var) or not isinstance(store, tirx.BufferStore):
        return None
    bound = block_values(realize)
    sides = loop.loop_var, inner.loop_var
    target = _Side(
        store.buffer, [substitute(index, bound) for index in store.indices], sides[::-1], size
    )
    value = structural_map(substitute(store.value, bound), [(Call, guarded)], order="post")
    if has_choice(value):  # a square makes its loads whatever is chosen
        return None

    def read() -> list[_Side]:
        return [_Side(load.source, load.indices, sides, size) for load in loads(value)]

    regions = [source.region for source in read()]
    body: list[Any] = []
    buffers: list[Any] = []
    while turned := [source for source in read() if source.whole]:
        rounds = _rounds(turned[0], len(buffers), body)
        buffers += rounds
        value = _with_load(value, turned[0], tirx.BufferLoad(rounds[-1], list(sides)))
    if not target.whole or not body:
        return None
    written = loop_with(inner, tirx.BufferStore(target.buffer, value, target.indices))
    if not isinstance(realize.predicate, tirx.IntImm):
        written = tirx.IfThenElse(realize.predicate, written, None)
    body.append(loop_with(loop, written, {}))
    block = s_tir.SBlock([], regions, [target.region], "square", tirx.SeqStmt(body), None, buffers)
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)


def _rounds(source: _Side, first: int, body: list[Any]) -> list[Any]:
    """Adds to `body` what loads a square and turns it; the buffers of its rounds, the last of them
    with what were columns as rows."""
    size = source.size
    rounds = [
        tirx.decl_buffer(
            (size, size), str(source.buffer.dtype), f"square{first + b}", scope="local"
        )
        for b in range(size.bit_length())
    ]
    lanes = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), size)
    rows = [tirx.BufferLoad(source.buffer, source.row(i)) for i in range(size)]
    body += [tirx.BufferStore(rounds[0], row, [i, lanes]) for i, row in enumerate(rows)]
    for place, (before, after) in enumerate(pairwise(rounds)):
        body += _exchanged(before, after, 1 << place, size, lanes)
    return rounds


def _with_load(value: Any, source: _Side, new: Any) -> Any:
    """The expression with what it loads from that place replaced."""

    def replaced(load: Any) -> Any:
        same = load.source.same_as(source.buffer) and all(
            structural_equal(one, other)
            for one, other in zip(load.indices, source.indices, strict=True)
        )
        return new if same else load

    return structural_map(value, [(TensorLoad, replaced)], order="post")


class _Side:
    """One side of the copy: rows of its tensor lie along one loop, one after another by the
    other."""

    def __init__(self, buffer: Any, indices: Any, sides: tuple[Any, Any], size: int) -> None:
        self.buffer = buffer
        self.indices = list(indices)
        self.size = size
        self._along, self._across = sides

    @property
    def whole(self) -> bool:
        """Whether the last index steps along a row, and one of the others says which; not so of one
        number for all."""
        if not self.indices:
            return False
        *others, last = self.indices
        return (
            not uses(last, self._across)
            and not any(uses(index, self._along) for index in others)
            and sum(uses(index, self._across) for index in others) == 1
            and _steps(last, self._along)
        )

    def _at(self, row: int) -> list[Any]:
        place = {self._along: tirx.const(0, "int32"), self._across: tirx.const(row, "int32")}
        return [substitute(index, place) for index in self.indices]

    def row(self, row: int) -> list[Any]:
        """Indices of one row, a vector."""
        *others, last = self._at(row)
        return [*others, tirx.Ramp(last, tirx.const(1, str(last.ty.dtype)), self.size)]

    @property
    def region(self) -> Any:
        """All of it."""
        ranges = []
        places = zip(self._at(0), self.indices, self.buffer.shape, strict=True)
        for begin, index, extent in places:
            wide = uses(index, self._along) or uses(index, self._across)
            if wide and not any(_steps(index, side) for side in (self._along, self._across)):
                begin, size = 0, int(extent)  # rows anywhere
            else:
                size = self.size if wide else 1
            ranges.append(ir.Range.from_min_extent(begin, size))
        return tirx.BufferRegion(self.buffer, ranges)


def _steps(index: Any, variable: Any) -> bool:
    """Whether the index moves by one where the variable does."""
    moved = substitute(index, {variable: variable + 1})
    return bool(Analyzer().can_prove_equal(moved - index, 1))


def _exchanged(before: Any, after: Any, step: int, size: int, lanes: Any) -> list[Any]:
    """One round: rows that lie `step` apart exchange the halves that are on the wrong side."""
    body = []
    for i in (row for row in range(size) if not row & step):
        pair = [tirx.BufferLoad(before, [row, lanes]) for row in (i, i + step)]
        upper = [size + lane - step if lane & step else lane for lane in range(size)]
        lower = [size + lane if lane & step else lane + step for lane in range(size)]
        for row, picked in ((i, upper), (i + step, lower)):
            indices = [tirx.const(index, "int32") for index in picked]
            body.append(tirx.BufferStore(after, tirx.Shuffle(pair, indices), [row, lanes]))
    return body
