"""Vectors that the end of an axis cuts: whole ones stay vectors, the last one becomes shorter ones.

    for i < 16 (a vector): if row < 49 and v * 16 + i < 52: y[row, v * 16 + i] = ..
        →
    if row < 49:
        if v * 16 + 16 <= 52: for i < 16 (a vector): y[row, v * 16 + i] = ..
        elif v * 16 < 52: for i < 4 (a vector): y[row, v * 16 + i] = ..

A predicate inside a vector makes TVM compute all of them lane by lane: sixteen branches for each
vector of a register tile, which also take seconds to compile.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm_ext.tir.affine import linear
from tvm_ext.tir.read import terms
from tvm_ext.tvm_api import PrimFunc, s_tir, structural_map, substitute, tirx, uses, variables


def with_cut_vectors(func: PrimFunc) -> PrimFunc:
    """The scheduled function without predicates inside its vector loops, where they say no more
    than that an axis ends."""
    return func.with_body(structural_map(func.body, [(tirx.For, _in_parts)], order="post"))


def _in_parts(loop: Any) -> Any:
    block = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(block, s_tir.SBlockRealize):
        return loop
    lane, lanes = loop.loop_var, int(loop.extent)
    asked = list(terms(block.predicate))
    own = [term for term in asked if uses(term, lane)]
    outer = [term for term in asked if not uses(term, lane)]
    if len(own) != 1 or not _ends_an_axis(own[0], lane, lanes):
        return loop
    extent = int(own[0].b)
    begin = substitute(own[0].a, {lane: tirx.const(0, "int32")})
    parts, start = [], 0
    while left := extent % lanes - start:
        width = 1 << (left.bit_length() - 1)
        parts.append(_vector(loop, start, width))
        start += width
    cut = None
    if parts:
        shorter = tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]
        cut = tirx.IfThenElse(begin < extent, shorter, None)
    both = tirx.IfThenElse(begin + lanes <= extent, _vector(loop, 0, lanes), cut)
    return tirx.IfThenElse(reduce(tirx.And, outer), both, None) if outer else both


def _ends_an_axis(term: Any, lane: Any, lanes: int) -> bool:
    """Whether a condition is `position < extent`, the lane counting on from whole vectors."""
    if not (isinstance(term, tirx.LT) and isinstance(term.b, tirx.IntImm)):
        return False
    places = {variable: place for place, variable in enumerate(dict.fromkeys(variables(term.a)))}
    form = linear(term.a, places)
    if form is None or lane not in places:
        return False
    steps, offset = form
    own = steps.pop(places[lane])
    return own == 1 and not any(step % lanes for step in (*steps, offset))


def _vector(loop: Any, start: int, width: int) -> Any:
    """Lanes `start` to `start + width` of the loop, without its block's predicate."""
    block = loop.body
    lane = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    place = {loop.loop_var: lane + start}
    values = [substitute(value, place) for value in block.iter_values]
    inside = s_tir.SBlockRealize(values, tirx.const(True, "bool"), block.block)
    kind = tirx.ForKind.VECTORIZED if width > 1 else tirx.ForKind.SERIAL
    return tirx.For(lane, loop.min, width, kind, inside)
