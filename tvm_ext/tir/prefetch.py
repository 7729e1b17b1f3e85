"""Requests for the next panel of a constant operand, spread over the work on the present one.

Weights of a model rarely stay in cache from one run to the next. A panel (the weights of one
register tile's columns) is used by all rows of a core tile, pass after pass: the first pass waits
for memory, any others find the panel in cache, and memory rests. So each step of each pass asks for
its share of the next panel:

    for o: for rows: for k: acc += x[rows, k] * w[o, k]
        →
    for o: for rows: for k: prefetch(a share of w[o + 1]); acc += x[rows, k] * w[o, k]

Which panel is next follows from the loops that choose it, the inner ones going round first. One of
a chunk of the reduction lies in pieces, one for each block of columns and each tap of a window, and
each is asked for where it lies.

Measured with weights out of cache, 2 cores: Winograd at 14 x 14 x 256 353 → 264 us, a 1 x 1
convolution 512 → 2048 at 7 x 7 276 → 232 us; with weights in cache nothing is lost.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from tvm_ext.tir.affine import loads
from tvm_ext.tir.requests import (
    MAX_LINES,
    flat,
    line_elements,
    next_place,
    over_reduction,
    places,
    serial,
    with_requests,
)
from tvm_ext.tvm_api import PrimFunc, block_values, prefetch_line, substitute, sums_up, tirx, uses


def with_prefetch(func: PrimFunc) -> PrimFunc:
    """The scheduled function, asking for panels ahead in every reduction that has such an operand.

    A reduction without a packed operand stays as it is.
    """
    requests: dict[Any, list[Any]] = {}
    for place in places(func.body):
        if sums_up(place.realize.block):
            found = _requests(place.loops, place.realize, set(func.params))
            if found is not None:
                requests[found[0]] = found[1]
    return with_requests(func, requests)


def _requests(loops: list[Any], realize: Any, parameters: set[Any]) -> tuple[Any, list[Any]] | None:
    """The loop variable of the innermost step, and the statements to run in each of its steps."""
    block = realize.block
    bound = block_values(realize)
    over = over_reduction(loops, realize)
    sweep = serial(over)
    if not sweep or loops[-1].kind != tirx.ForKind.VECTORIZED:
        return None
    outside = loops[: loops.index(sweep[0])]
    inside = loops[loops.index(sweep[0]) :]
    for load in loads(block.body.value):
        indices = [substitute(index, bound) for index in load.indices]
        lanes = loops[-1].loop_var
        own = any(region.source.same_as(load.source) for region in block.writes)
        if own or load.source not in parameters or not indices or not uses(indices[-1], lanes):
            continue  # sums so far, or no operand in vectors
        tile = [
            loop
            for loop in inside
            if loop not in over and any(uses(index, loop.loop_var) for index in indices)
        ]
        width = prod(int(loop.extent) for loop in tile)
        others = any(
            any(uses(index, loop.loop_var) for index in indices) and int(loop.extent) > 1
            for loop in outside
        )
        if width % int(load.source.shape[-1]) or not others:
            continue  # not packed in panels of this width, or in a single one
        run, apart, stride = _pieces(over, tile, indices, load.source.shape)
        panel = width * prod(int(loop.extent) for loop in over)
        chosen = next_place(outside, indices)
        inner_apart = any(loop not in sweep and int(loop.extent) > 1 for loop in apart)
        if inner_apart or (stride and not chosen):
            continue  # what follows in memory is no panel
        line = line_elements(load.source)
        steps = [loop for loop in sweep if loop not in apart]
        pieces = width // int(load.source.shape[-1]) if stride else 1
        lines_along = ceil((run if stride else panel) / line)
        over_it = [*_passes(outside, indices), *steps]
        asking = over_it if apart else _asking(over_it, lines_along, MAX_LINES // pieces)
        visits = prod(int(loop.extent) for loop in asking)
        lines = ceil(lines_along / visits)
        if not asking or pieces * lines > MAX_LINES:
            continue
        below = loops[loops.index(asking[-1]) + 1 :]
        if any(loop in apart and int(loop.extent) > 1 for loop in below):
            continue  # which piece is next is said further inside
        begin = {
            loop.loop_var: tirx.const(0, "int32")
            for loop in [*inside, *below]
            if loop in below or loop not in apart or loop not in sweep
        }
        start = [substitute(index, begin | chosen) for index in indices]
        first = flat(start, load.source.shape) + (0 if chosen else panel)
        visit = flat([loop.loop_var for loop in asking], [loop.extent for loop in asking])
        inner = [tirx.const(0, "int32")] * (len(load.source.shape) - 1)
        along = [visit * lines + place for place in range(lines)]
        if stride and visits * lines > lines_along:
            along = [tirx.min(at, lines_along - 1) for at in along]
        return asking[-1].loop_var, [
            prefetch_line(load.source, [*inner, first + piece * stride + at * line])
            for piece in range(pieces)
            for at in along
        ]
    return None


def _pieces(
    over: list[Any], tile: list[Any], indices: list[Any], shape: list[Any]
) -> tuple[int, list[Any], int]:
    """Of a panel that takes a part of an axis: the elements that lie in a row, the loops of the
    reduction that go from one row to another, and how far apart the blocks of columns are, which
    the loops of the tile go through. A panel of whole axes lies in one row, blocks and all: nothing
    is apart, and the distance is 0."""
    extents = [int(extent) for extent in shape]
    moving = [[loop for loop in over if uses(index, loop.loop_var)] for index in indices]
    taken = [prod(int(loop.extent) for loop in loops) for loops in moving]
    cut = [axis for axis, loops in enumerate(moving) if loops and taken[axis] < extents[axis]]
    if not cut:
        return 0, [], 0
    apart = [loop for loop in over if any(loop in loops for loops in moving[: cut[-1]])]
    run = extents[-1] * prod(int(loop.extent) for loop in over if loop not in apart)
    used = [any(uses(index, loop.loop_var) for loop in tile) for index in indices[:-1]]
    blocks = max((axis for axis, moved in enumerate(used) if moved), default=0)
    return run, apart, prod(extents[blocks + 1 :])


def _asking(loops: list[Any], lines: int, most: int) -> list[Any]:
    """The outermost of the loops over one panel in whose steps so many lines are asked for: no more
    steps than lines, if that leaves at `most` so many to each.

    Steps beyond the last line ask for panels after the next. Of many rows these come long before
    their turn, and take the place of what is in use: 3000 rows of 384 by 1280 10.1 ms, 7.1 so.
    """
    for count in range(1, len(loops)):
        steps = prod(int(loop.extent) for loop in loops[: count + 1])
        if steps > lines and lines <= most * prod(int(loop.extent) for loop in loops[:count]):
            return loops[:count]
    return loops


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
