"""Transposed copies by squares of vectors: rows loaded, exchanged in registers, stored as columns.

    for i < 16: for j < 16 (vector): y[.., i, j] = x[.., j, .., i]
        →
    r[j] = x[.., j, .., 0:16] for 16 rows;  four rounds of shuffles;  y[.., i, 0:16] = r[i]

Written as a loop, every vector is put together from 16 loads (12 products of 128 x 64 by 64 x 128
transposed: 64 us, in squares 54). The rounds are those of Eklundh, "A fast computer method for
matrix transposing" (IEEE Trans. Computers, 1972): round b exchanges the b x b blocks beside the
diagonal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tvm_ext.tvm_api import (
    PrimFunc,
    Schedule,
    TensorLoad,
    s_tir,
    structural_map,
    structural_walk,
    tirx,
)

SQUARE = "tvm_ext.square"
"""Annotation of a block that copies one square."""


def mark_square(schedule: Schedule, loop: Any, size: int) -> None:
    """Makes the two innermost loops, from `loop` on, a block that `with_squares` finds."""
    schedule.annotate(schedule.blockize(loop), SQUARE, size)


def with_squares(func: PrimFunc) -> PrimFunc:
    """The scheduled function with every marked block written as loads, shuffles and stores."""
    return func.with_body(structural_map(func.body, [(s_tir.SBlock, _rewritten)], order="post"))


def _rewritten(block: Any) -> Any:
    size = int(block.annotations[SQUARE]) if SQUARE in block.annotations else 0
    if not size:
        return block
    kept = {name: value for name, value in block.annotations.items() if name != SQUARE}
    source, target = block.reads[0], block.writes[0]
    across, along = _row(source, size), _row(target, size)
    dtype = str(source.source.dtype)
    if across is None or along is None or not _copies(block.body):
        return _with(block, block.body, [], kept)
    rounds = [
        tirx.decl_buffer((size, size), dtype, f"square{b}", scope="local")
        for b in range(size.bit_length())
    ]
    lanes = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), size)
    first, last = rounds[0], rounds[-1]
    loaded = [tirx.BufferLoad(source.source, _at(source, across, i, size)) for i in range(size)]
    body = [tirx.BufferStore(first, row, [i, lanes]) for i, row in enumerate(loaded)]
    for place, (before, after) in enumerate(pairwise(rounds)):
        body += _exchanged(before, after, 1 << place, size, lanes)
    body += [
        tirx.BufferStore(
            target.source, tirx.BufferLoad(last, [i, lanes]), _at(target, along, i, size)
        )
        for i in range(size)
    ]
    return _with(block, tirx.SeqStmt(body), rounds, kept)


def _copies(body: Any) -> bool:
    """Whether all that is stored is what was loaded, without a condition."""
    stores: list[Any] = []
    realized: list[Any] = []
    structural_walk(body, (tirx.BufferStore, stores.append))
    structural_walk(body, (s_tir.SBlockRealize, realized.append))
    always = all(isinstance(one.predicate, tirx.IntImm) and one.predicate.value for one in realized)
    return always and len(stores) == 1 and isinstance(stores[0].value, TensorLoad)


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


def _row(region: Any, size: int) -> int | None:
    """The dimension that steps from row to row of a square whose rows lie along the last one."""
    extents = [r.extent for r in region.region]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    wide = [place for place, extent in enumerate(extents) if int(extent) != 1]
    if len(wide) != 2 or wide[1] != len(extents) - 1 or {int(extents[p]) for p in wide} != {size}:
        return None
    return wide[0]


def _at(region: Any, across: int, row: int, size: int) -> list[Any]:
    """Indices of one row of the square."""
    indices = [r.min for r in region.region]
    indices[across] = indices[across] + row
    indices[-1] = tirx.Ramp(indices[-1], tirx.const(1, str(indices[-1].ty.dtype)), size)
    return indices


def _with(block: Any, body: Any, buffers: list[Any], annotations: dict[str, Any]) -> Any:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        [*block.alloc_buffers, *buffers],
        block.match_buffers,
        annotations,
    )
