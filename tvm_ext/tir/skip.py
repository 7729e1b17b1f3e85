"""Taps of a window that lie in padding for a whole register tile are left out (`tile.skip`).

for ky: for kx: for c: acc[..] += pad[y + 12 * ky, columns + 12 * kx, c] * w[ky, kx, c]
    →
for ky: if 12 <= y + 12 * ky < 45: for kx: if ..: for c: ..
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tir.read import linear, loads, terms
from tvm_ext.tir.requests import Place, over_reduction, places, serial
from tvm_ext.tvm_api import (
    Analyzer,
    PrimFunc,
    block_values,
    loop_with,
    structural_map,
    substitute,
    sums_up,
    tirx,
    uses,
    variables,
)

Bounds = dict[int, tuple[int, int]]
"""By dimension of a padded tensor: where what is none of padding begins and ends."""


def with_skips(func: PrimFunc) -> PrimFunc:
    """The scheduled function whose reductions ask, tile by tile, whether a tap is in the image. A
    reduction that reads no tensor padded by zeros in the function stays as it is."""
    found = list(places(func.body))
    padded = {}
    for place in found:
        if bounds := _padding(place.realize.block):
            padded[place.realize.block.body.buffer] = bounds
    conditions: dict[Any, Any] = {}
    for place in found:
        if sums_up(place.realize.block):
            conditions |= _conditions(place, padded)

    def ask(loop: Any) -> Any:
        condition = conditions.get(loop.loop_var)
        if condition is None:
            return loop
        return loop_with(loop, tirx.IfThenElse(condition, loop.body, None))

    return func.with_body(structural_map(func.body, [(tirx.For, ask)], order="post"))


def _padding(block: Any) -> Bounds:
    """The bounds of a block that sets zeros around what it reads; none of another block."""
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        return {}
    call = store.value
    if not getattr(getattr(call, "op", None), "name", "").endswith("if_then_else"):
        return {}
    condition, _, otherwise = call.args
    if not isinstance(otherwise, tirx.FloatImm) or otherwise.value != 0:
        return {}
    bounds: Bounds = {}
    for term in terms(condition):
        for dimension, index in enumerate(store.indices):
            low, high = bounds.get(dimension, (0, int(store.buffer.shape[dimension])))
            least, end = _bound(term, index)
            bounds[dimension] = (max(low, least), min(high, end))
    return bounds


def _bound(term: Any, index: Any) -> tuple[int, int]:
    """The numbers between which a comparison keeps an index."""
    none = (0, 1 << 30)
    if not isinstance(term, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return none
    places = {variable: i for i, variable in enumerate(variables(index))}
    left, right = linear(term.a, places), linear(term.b, places)
    if left is None or right is None or len(places) != 1:
        return none
    (step,), offset = [a - b for a, b in zip(left[0], right[0], strict=True)], right[1] - left[1]
    strict = isinstance(term, tirx.LT | tirx.GT)
    if step < 0:
        step, offset = -step, -offset
        below = isinstance(term, tirx.GT | tirx.GE)
    else:
        below = isinstance(term, tirx.LT | tirx.LE)
    if step != 1:
        return none
    if below:
        return 0, offset + (not strict)
    return offset + strict, 1 << 30


def _conditions(place: Place, padded: dict[Any, Bounds]) -> dict[Any, Any]:
    """By loops over taps: whether some element of the register tile needs this one."""
    bound = block_values(place.realize)
    over = over_reduction(place.loops, place.realize)
    steps = [loop for loop in serial(over) if int(loop.extent) > 1]
    analyzer = Analyzer()
    found: dict[Any, Any] = {}
    for load in loads(place.realize.block.body.value):
        for dimension, (low, high) in padded.get(load.source, {}).items():
            index = substitute(load.indices[dimension], bound)
            taps = [loop for loop in steps if uses(index, loop.loop_var)]
            if len(taps) != 1:
                continue
            inside = place.loops[place.loops.index(taps[0]) + 1 :]
            first = analyzer.simplify(
                substitute(index, {x.loop_var: x.loop_var * 0 for x in inside})
            )
            last = analyzer.simplify(
                substitute(index, {loop.loop_var: loop.extent - 1 for loop in inside})
            )
            asked = tirx.all(first < high, last >= low)
            known = found.get(taps[0].loop_var)
            found[taps[0].loop_var] = asked if known is None else tirx.all(known, asked)
    return found
