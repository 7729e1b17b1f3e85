"""Requests for what comes next: what a chain's next task transforms and the lines its results go
to, or what the epilogue of a product's next register tile reads and writes.

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

The epilogue of a register tile takes all its lines at once, which no hardware foresees, and after a
short product there are many of them to a step:

    tile: for s: product; y[tile] = relu(acc + residual[tile])
        →
    tile: for s: prefetch(a share of residual[next tile] and y[next tile]); product
          y[tile] = relu(acc + residual[tile])

64 → 256 channels of 56 x 56, a residual: 8 images 3360 → 2220 us, one 216 → 208.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, takewhile
from math import ceil, prod
from typing import Any, NamedTuple

from tvm_ext.tir.requests import (
    MAX_LINES,
    Place,
    flat,
    line_elements,
    next_place,
    places,
    serial,
    with_requests,
)
from tvm_ext.tvm_api import (
    Analyzer,
    PrimFunc,
    block_values,
    prefetch_line,
    substitute,
    sums_up,
    tirx,
)


class _Box(NamedTuple):
    """A part of a tensor: where it begins and how far it goes on each axis."""

    tensor: Any
    begin: list[Any]
    extents: list[int]


def with_ahead(func: PrimFunc) -> PrimFunc:
    """The scheduled function with these requests in the innermost steps of its one reduction; as it
    was where it has several, or no tasks in parallel."""
    found = list(places(func.body))
    products = [number for number, place in enumerate(found) if sums_up(place.realize.block)]
    if len(products) != 1:
        return func
    anchor = products[0]
    product = found[anchor]
    task = next((x for x in product.loops if x.kind == tirx.ForKind.PARALLEL), None)
    if task is None:
        return func
    read = {region.source for region in product.realize.block.reads}
    outside = set(func.params) - read
    requests: list[Any] = []
    for number, place in enumerate(found):
        if task not in place.loops or number == anchor:
            continue
        shared = _shared(place.loops, product.loops)
        steps = serial(product.loops[shared:])
        following = {} if number > anchor else {task.loop_var: task.loop_var + 1}
        for box in _boxes(place, shared, outside, following):
            lines = _requests(box, steps)
            if len(requests) + len(lines) <= MAX_LINES:
                requests += lines
    return with_requests(func, {serial(product.loops)[-1].loop_var: requests})


def with_results_ahead(func: PrimFunc) -> PrimFunc:
    """The scheduled function whose reductions ask, in their innermost steps, for what the epilogue
    of the next register tile reads and writes."""
    found = list(places(func.body))
    requests: dict[Any, list[Any]] = {}
    for product, epilogue in pairwise(found):
        if not sums_up(product.realize.block) or sums_up(epilogue.realize.block):
            continue
        shared = _shared(epilogue.loops, product.loops)
        steps = serial(product.loops[shared:])
        if not steps:
            continue
        written, bound = epilogue.realize.block.writes[0], block_values(epilogue.realize)
        where = [substitute(part.min, bound) for part in written.region]
        following = next_place(product.loops[:shared], where)
        read = {region.source for region in product.realize.block.reads}
        own: list[Any] = []
        for box in _boxes(epilogue, shared, set(func.params) - read, following):
            lines = _requests(box, steps)
            if len(own) + len(lines) <= MAX_LINES:
                own += lines
        requests[steps[-1].loop_var] = own
    return with_requests(func, requests)


def _shared(one: list[Any], other: list[Any]) -> int:
    """How many of the outermost loops are the same."""
    same = (a.same_as(b) for a, b in zip(one, other, strict=False))
    return len(list(takewhile(bool, same)))


def _boxes(
    place: Place, shared: int, outside: set[Any], following: dict[Any, Any]
) -> Iterator[_Box]:
    """What a block reads and writes of tensors `outside` over all loops but those `shared`, some of
    which may have the values that follow. Only boxes of several rows that fill lines, and whose
    size is known."""
    block, bound = place.realize.block, block_values(place.realize)
    own = place.loops[shared:]
    if not all(isinstance(loop.extent, tirx.IntImm) for loop in own):
        return
    first = {loop.loop_var: tirx.const(0, "int32") for loop in own}
    last = {loop.loop_var: tirx.const(int(loop.extent) - 1, "int32") for loop in own}
    analyzer = Analyzer()

    def spans(least: Any, extent: Any) -> tuple[Any, int]:
        low = substitute(least, first)
        size = analyzer.simplify(substitute(least + extent, last) - low)
        return substitute(low, following), int(size) if isinstance(size, tirx.IntImm) else 0

    for region in (*block.reads, *block.writes):
        if region.source not in outside:
            continue
        least = [substitute(part.min, bound) for part in region.region]
        found = [spans(one, part.extent) for one, part in zip(least, region.region, strict=True)]
        row, step = len(found) - 2, 1
        for outer in reversed(range(row)):  # y[p // 56, p % 56] is the p-th of all rows
            if found[row][1]:
                break
            step *= int(region.source.shape[outer + 1])
            least[row] = analyzer.simplify(least[outer] * step + least[row])
            found[outer], found[row] = (tirx.const(0, "int32"), 1), spans(least[row], 1)
        begin, extents = [low for low, _ in found], [size for _, size in found]
        if prod(extents[:-1]) > 1 and extents[-1] >= line_elements(region.source):
            yield _Box(region.source, begin, extents)


def _requests(box: _Box, steps: list[Any]) -> list[Any]:
    """Each step's requests for its share of a box; none if that is too much for it."""
    extents = [*_rows(box), ceil(box.extents[-1] / line_elements(box.tensor))]
    share = ceil(prod(extents) / prod(int(loop.extent) for loop in steps))
    if share > MAX_LINES:
        return []
    visit = flat([loop.loop_var for loop in steps], [loop.extent for loop in steps])
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
            place = place * line_elements(box.tensor)
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
