"""Requests for the next panel of a constant operand, spread over the work on the present one.

Weights of a model rarely stay in cache from one run to the next. A panel (the weights of one
register tile's columns) is used by all rows of a core tile, pass after pass: the first pass waits
for memory, any others find the panel in cache, and memory rests. So each step of each pass asks for
its share of the next panel:

    for o: for rows: for k: acc += x[rows, k] * w[o, k]
        →
    for o: for rows: for k: prefetch(a share of w[o + 1]); acc += x[rows, k] * w[o, k]

Which panel is next follows from the loops that choose it, the inner ones going round first.

Measured with weights out of cache, 2 cores: Winograd at 14 x 14 x 256 353 → 264 us, a 1 x 1
convolution 512 → 2048 at 7 x 7 276 → 232 us; with weights in cache nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from typing import Any

from tvm_ext.tir.read import loads
from tvm_ext.tvm_api import (
    PrimFunc,
    element_bytes,
    loop_with,
    prefetch_line,
    structural_map,
    substitute,
    sums_up,
    tirx,
    uses,
)

LINE_BYTES = 64
MAX_LINES = 8
"""Lines one step may ask for; beyond it the requests themselves would hold up the loop."""


def with_prefetch(func: PrimFunc) -> PrimFunc:
    """The scheduled function, asking for panels ahead in every reduction that has such an operand.

    A reduction without a packed operand stays as it is.
    """
    requests: list[tuple[Any, list[Any]]] = []
    for loops, realize in _reductions(func.body, []):
        found = _requests(loops, realize, set(func.params))
        if found is not None:
            requests.append(found)

    def insert(loop: Any) -> Any:
        for variable, statements in requests:
            if loop.loop_var.same_as(variable):
                body = tirx.SeqStmt([*statements, loop.body])
                return loop_with(loop, body)
        return loop

    return func.with_body(structural_map(func.body, [(tirx.For, insert)], order="post"))


def _reductions(statement: Any, loops: list[Any]) -> Iterator[tuple[list[Any], Any]]:
    """Every block that adds up, with the loops around it."""
    kind = type(statement).__name__
    if kind == "For":
        yield from _reductions(statement.body, [*loops, statement])
    elif kind == "SeqStmt":
        for part in statement.seq:
            yield from _reductions(part, loops)
    elif kind == "IfThenElse":  # around register tiles beyond a shorter last core tile
        yield from _reductions(statement.then_case, loops)
    elif kind == "SBlockRealize":
        block = statement.block
        if sums_up(block):
            yield loops, statement
        elif block.name_hint == "root":
            yield from _reductions(block.body, loops)


def _requests(loops: list[Any], realize: Any, parameters: set[Any]) -> tuple[Any, list[Any]] | None:
    """The loop variable of the innermost step, and the statements to run in each of its steps."""
    block = realize.block
    bound = dict(zip((iv.var for iv in block.iter_vars), realize.iter_values, strict=True))
    reduced = [bound[iv.var] for iv in block.iter_vars if iv.iter_type == tirx.IterVar.CommReduce]
    over = [loop for loop in loops if any(uses(value, loop.loop_var) for value in reduced)]
    sweep = [loop for loop in over if loop.kind == tirx.ForKind.SERIAL]
    if not sweep or loops[-1].kind != tirx.ForKind.VECTORIZED:
        return None
    outside = loops[: loops.index(sweep[0])]
    inside = loops[loops.index(sweep[0]) :]
    for load in loads(block.body.value):
        indices = [substitute(index, bound) for index in load.indices]
        lanes = loops[-1].loop_var
        if load.source not in parameters or not indices or not uses(indices[-1], lanes):
            continue
        tile = [loop for loop in inside if any(uses(i, loop.loop_var) for i in indices)]
        width = prod(int(loop.extent) for loop in tile if loop not in over)
        if width % int(load.source.shape[-1]):
            continue  # not packed in panels of this width
        passes = _passes(outside, indices)
        steps = prod(int(loop.extent) for loop in sweep)
        panel = width * prod(int(loop.extent) for loop in over)
        visits = steps * prod(int(loop.extent) for loop in passes)
        line = LINE_BYTES // element_bytes(load.source)
        lines = ceil(panel / line / visits)
        if lines > MAX_LINES:
            continue
        begin = {loop.loop_var: tirx.const(0, "int32") for loop in inside}
        chosen = _next_panel(outside, indices)
        start = [substitute(index, begin | chosen) for index in indices]
        first = _flat(start, load.source.shape) + (0 if chosen else panel)
        visit = _flat(
            [loop.loop_var for loop in (*passes, *sweep)],
            [loop.extent for loop in (*passes, *sweep)],
        )
        inner = [tirx.const(0, "int32")] * (len(load.source.shape) - 1)
        return sweep[-1].loop_var, [
            prefetch_line(load.source, [*inner, first + (visit * lines + place) * line])
            for place in range(lines)
        ]
    return None


def _passes(outside: list[Any], indices: list[Any]) -> list[Any]:
    """The innermost serial loops that leave the operand in place."""
    passes: list[Any] = []
    for loop in reversed(outside):
        moves = any(uses(index, loop.loop_var) for index in indices)
        if loop.kind != tirx.ForKind.SERIAL or (moves and int(loop.extent) > 1):
            break
        if not moves:
            passes.insert(0, loop)
    return passes


def _next_panel(outside: list[Any], indices: list[Any]) -> dict[Any, Any]:
    """Values of the loops that choose the panel, one step on; none if only tasks choose it.

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
    step = _flat([loop.loop_var for loop in chosen], [loop.extent for loop in chosen]) + 1
    values = {}
    for place, loop in enumerate(reversed(chosen), 1):
        whole = place == len(chosen)
        values[loop.loop_var] = step if whole else step % int(loop.extent)
        step = step // int(loop.extent)
    return values


def _flat(indices: list[Any], extents: Any) -> Any:
    """The row-major position of a multi-dimensional index."""
    position = tirx.const(0, "int32")
    for index, extent in zip(indices, extents, strict=True):
        position = position * int(extent) + index
    return position
