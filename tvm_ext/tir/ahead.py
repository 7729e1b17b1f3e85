"""Requests for what a chain's next task transforms, and for the lines its results go to.

A transform reads and writes memory as fast as it comes, and the product after it leaves memory at
rest. So the steps of the product ask for the data of the task that follows, and for the places
that this one's results (and what is added to them) have:

    parallel task: transform x[box of the task]; for s: product; y[box of the task] = transform
        →
    parallel task: transform x[box of the task]
                   for s: prefetch(a share of x[box of the next task] and of y[box of this one])
                          product
                   y[box of the task] = transform

Measured with data out of cache, 2 cores: F(4x4) of 64 to 32 channels over 224 x 224 1583 → 1260 us,
32 to 32 874 → 644; with data in the last cache as before (0.97 to 1.03).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import ceil, prod
from typing import Any, NamedTuple

from tvm_ext.tir.prefetch import LINE_BYTES
from tvm_ext.tvm_api import (
    Analyzer,
    PrimFunc,
    element_bytes,
    loop_with,
    prefetch_line,
    structural_map,
    substitute,
    sums_up,
    tirx,
)

MAX_LINES = 8
"""Lines one step may ask for. Many at once hold the product up (25 before each register tile: 1162
us where one a step takes 1030)."""


class _Place(NamedTuple):
    """A block, and the loops around it, outermost first."""

    loops: list[Any]
    realize: Any


class _Box(NamedTuple):
    """A part of a tensor: where it begins and how far it goes on each axis."""

    tensor: Any
    begin: list[Any]
    extents: list[int]


def with_ahead(func: PrimFunc) -> PrimFunc:
    """The scheduled function with these requests in the loops of its one reduction; as it was where
    it has several, or no tasks in parallel."""
    places = list(_places(func.body, []))
    products = [number for number, place in enumerate(places) if sums_up(place.realize.block)]
    if len(products) != 1:
        return func
    product = places[products[0]]
    task = next((x for x in product.loops if x.kind == tirx.ForKind.PARALLEL), None)
    if task is None:
        return func
    sweep = [x for x in product.loops if x.kind == tirx.ForKind.SERIAL][-1]
    requests: list[Any] = []
    read = {region.source for region in product.realize.block.reads}
    for number, place in enumerate(places):
        if task not in place.loops or number == products[0]:
            continue
        shared = _shared(place.loops, product.loops)
        steps = [loop for loop in product.loops[shared:] if loop.kind == tirx.ForKind.SERIAL]
        following = {} if number > products[0] else {task.loop_var: task.loop_var + 1}
        for box in _boxes(place, shared, following):
            if box.tensor in func.params and box.tensor not in read and prod(box.extents[:-1]) > 1:
                requests += _requests(box, steps)
    if not requests:
        return func

    def insert(loop: Any) -> Any:
        if not loop.loop_var.same_as(sweep.loop_var):
            return loop
        return loop_with(loop, tirx.SeqStmt([*requests, loop.body]))

    return func.with_body(structural_map(func.body, [(tirx.For, insert)], order="post"))


def _places(statement: Any, loops: list[Any]) -> Iterator[_Place]:
    """Every block but the root, in the order in which they run."""
    kind = type(statement).__name__
    if kind == "For":
        yield from _places(statement.body, [*loops, statement])
    elif kind == "SeqStmt":
        for part in statement.seq:
            yield from _places(part, loops)
    elif kind == "IfThenElse":
        yield from _places(statement.then_case, loops)
    elif kind == "SBlockRealize":
        if statement.block.name_hint == "root":
            yield from _places(statement.block.body, loops)
        else:
            yield _Place(loops, statement)


def _shared(one: list[Any], other: list[Any]) -> int:
    """How many of the outermost loops are the same."""
    same = (a.same_as(b) for a, b in zip(one, other, strict=False))
    return len(list(takewhile(bool, same)))


def _boxes(place: _Place, shared: int, following: dict[Any, Any]) -> Iterator[_Box]:
    """What a block reads and writes over all loops but those `shared`, of which some may have the
    values that follow. Only tensors whose rows fill lines, and whose box has a known size."""
    block, values = place.realize.block, place.realize.iter_values
    bound = dict(zip((axis.var for axis in block.iter_vars), values, strict=True))
    own = place.loops[shared:]
    first = {loop.loop_var: tirx.const(0, "int32") for loop in own}
    last = {loop.loop_var: tirx.const(int(loop.extent) - 1, "int32") for loop in own}
    analyzer = Analyzer()
    for region in (*block.reads, *block.writes):
        begin, extents = [], []
        for part in region.region:
            least = substitute(part.min, bound)
            low = substitute(least, first)
            size = analyzer.simplify(substitute(least + part.extent, last) - low)
            begin.append(substitute(low, following))
            extents.append(int(size) if isinstance(size, tirx.IntImm) else 0)
        if min(extents) > 0 and extents[-1] * element_bytes(region.source) >= LINE_BYTES:
            yield _Box(region.source, begin, extents)


def _requests(box: _Box, steps: list[Any]) -> list[Any]:
    """Each step's requests for its share of a box; none if that is too much for it."""
    line = LINE_BYTES // element_bytes(box.tensor)
    extents = [*_rows(box), ceil(box.extents[-1] / line)]
    share = ceil(prod(extents) / prod(int(loop.extent) for loop in steps))
    if share > MAX_LINES:
        return []
    visit = tirx.const(0, "int32")
    for loop in steps:
        visit = visit * int(loop.extent) + loop.loop_var
    last = tirx.const(prod(extents) - 1, "int32")  # asked for again by the steps left over
    numbers = (tirx.min(visit * share + place, last) for place in range(share))
    return [_line(box, extents, number) for number in numbers]


def _line(box: _Box, extents: list[int], number: Any) -> Any:
    """The request for the line of a box with that number, in so many lines along each axis."""
    first = next(axis for axis, extent in enumerate(extents) if extent > 1)
    at = list(box.begin)
    for axis in reversed(range(first, len(extents))):
        place = number if axis == first else number % extents[axis]
        number = number // extents[axis]
        if axis == len(extents) - 1:
            place = place * (LINE_BYTES // element_bytes(box.tensor))
        at[axis] = at[axis] + place
    return prefetch_line(box.tensor, at)


def _rows(box: _Box) -> list[int]:
    """The extents but for the last, those that go over whole axes counted by the last of them: what
    follows one another in memory needs no division (6 rows of 224 points: 1344 in a row)."""
    shape = [int(extent) for extent in box.tensor.shape]
    extents = list(box.extents[:-1])
    place = len(extents) - 1
    count = extents[place]
    while place > 0 and extents[place] >= shape[place]:
        count += (extents[place - 1] - 1) * prod(shape[place : len(extents)])
        extents[place] = 1
        place -= 1
    extents[place] = 1
    return [*extents[:-1], count]
