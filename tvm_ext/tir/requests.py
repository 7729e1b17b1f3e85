"""Requests for cache lines in the steps of a scheduled loop: what `prefetch` and `ahead` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tvm_ext.tvm_api import (
    PrimFunc,
    block_values,
    element_bytes,
    loop_with,
    structural_map,
    tirx,
    uses,
)

LINE_BYTES = 64
MAX_LINES = 8
"""Lines one step may ask for; beyond it the requests themselves would hold up the loop."""


class Place(NamedTuple):
    """A block, and the loops around it, outermost first."""

    loops: list[Any]
    realize: Any


def places(statement: Any, loops: Sequence[Any] = ()) -> Iterator[Place]:
    """Every block but the root, in the order in which they run."""
    kind = type(statement).__name__
    if kind == "For":
        yield from places(statement.body, [*loops, statement])
    elif kind == "SeqStmt":
        for part in statement.seq:
            yield from places(part, loops)
    elif kind == "IfThenElse":  # around register tiles beyond a shorter last core tile
        yield from places(statement.then_case, loops)
    elif kind == "SBlockRealize":
        if statement.block.name_hint == "root":
            yield from places(statement.block.body, loops)
        else:
            yield Place(list(loops), statement)


def over_reduction(loops: Sequence[Any], realize: Any) -> list[Any]:
    """Those of the loops around a block that step through its reduction."""
    bound = block_values(realize)
    reduced = [
        bound[axis.var]
        for axis in realize.block.iter_vars
        if axis.iter_type == tirx.IterVar.CommReduce
    ]
    return [loop for loop in loops if any(uses(value, loop.loop_var) for value in reduced)]


def serial(loops: Sequence[Any]) -> list[Any]:
    """Those of the loops that step one by one, neither unrolled nor shared out."""
    return [loop for loop in loops if loop.kind == tirx.ForKind.SERIAL]


def flat(indices: Sequence[Any], extents: Sequence[Any]) -> Any:
    """The row-major position of a multi-dimensional index."""
    position = tirx.const(0, "int32")
    for index, extent in zip(indices, extents, strict=True):
        position = position * int(extent) + index
    return position


def next_place(outside: list[Any], indices: list[Any]) -> dict[Any, Any]:
    """Values of the loops that choose a place in a tensor, one step on; none if only tasks choose
    it.

    The outermost may run over its extent: what the next task wants follows in memory, or nothing
    is lost.
    """
    chosen: list[Any] = []
    for loop in reversed(outside):
        moves = any(uses(index, loop.loop_var) for index in indices)
        if loop.kind != tirx.ForKind.SERIAL or (chosen and not moves and int(loop.extent) > 1):
            break
        if moves and int(loop.extent) > 1:
            chosen.insert(0, loop)
    step = flat([loop.loop_var for loop in chosen], [loop.extent for loop in chosen]) + 1
    values = {}
    for place, loop in enumerate(reversed(chosen), 1):
        whole = place == len(chosen)
        values[loop.loop_var] = step if whole else step % int(loop.extent)
        step = step // int(loop.extent)
    return values


def line_elements(buffer: Any) -> int:
    """Elements of a buffer in a cache line."""
    return LINE_BYTES // element_bytes(buffer)


def with_requests(func: PrimFunc, requests: Mapping[Any, Sequence[Any]]) -> PrimFunc:
    """The function with statements at the start of each step of some loops, by loop variable."""

    def insert(loop: Any) -> Any:
        for variable, statements in requests.items():
            if statements and loop.loop_var.same_as(variable):
                return loop_with(loop, tirx.SeqStmt([*statements, loop.body]))
        return loop

    return func.with_body(structural_map(func.body, [(tirx.For, insert)], order="post"))
