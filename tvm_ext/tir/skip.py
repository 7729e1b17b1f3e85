"""Taps of a window that lie in padding for a whole register tile are left out (`tile.skip`).

for ky: for kx: for c: acc[..] += pad[y + 12 * ky, columns + 12 * kx, c] * w[ky, kx, c]
    →
for ky: if 12 <= y + 12 * ky < 45: for kx: if ..: for c: ..

Of padding that is read in place what a loop has asked is asked no more. Where a tile holds all of a
row, its places are numbers once its loops are unrolled, and no statement is left of what lies
outside:

acc[column] += if_then_else(0 <= column + kx - 2 < 7, x[.., column + kx - 2, c], 0) * w[kx, c]
    →
if 0 <= column + kx - 2 < 7: acc[column] += x[.., column + kx - 2, c] * w[kx, c]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm_ext.tir.affine import linear
from tvm_ext.tir.margins import block_with
from tvm_ext.tir.read import terms
from tvm_ext.tir.requests import Place, over_reduction, places, serial
from tvm_ext.tvm_api import (
    Analyzer,
    Call,
    PrimFunc,
    TensorLoad,
    block_values,
    loop_with,
    s_tir,
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
    reduction that reads no tensor padded by zeros in the function stays as it is, and so does one
    that does not sum products. What places alone tell is marked for `without_padding`."""
    found = list(places(func.body))
    padded = {}
    for place in found:
        if bounds := _padding(place.realize.block):
            padded[place.realize.block.body.buffer] = bounds
    conditions: dict[Any, Any] = {}
    bodies: dict[Any, Any] = {}
    for place in found:
        if sums_up(place.realize.block):
            asked, body = _asked(place, padded)
            conditions |= asked
            bodies[place.realize.block.iter_vars[0].var] = body

    def ask(loop: Any) -> Any:
        condition = conditions.get(loop.loop_var)
        if condition is None:
            return loop
        return loop_with(loop, tirx.IfThenElse(condition, loop.body, None))

    def left(block: Any) -> Any:
        body = bodies.get(block.iter_vars[0].var) if block.iter_vars else None
        return block if body is None else block_with(block, body)

    kinds = [(tirx.For, ask), (s_tir.SBlock, left)]
    return func.with_body(structural_map(func.body, kinds, order="post"))


def without_padding(func: PrimFunc) -> PrimFunc:
    """The function with a branch around each sum that `with_skips` has marked: none once its loops
    are unrolled."""

    def branch(block: Any) -> Any:
        store = block.body
        if not isinstance(store, tirx.BufferStore):
            return block
        conditions: list[Any] = []

        def chosen(call: Any) -> Any:
            if not _is_marked(call):
                return call
            conditions.append(call.args[0].args[0])
            return call.args[1]

        value = structural_map(store.value, [(Call, chosen)], order="post")
        if not conditions:
            return block
        sum_ = tirx.BufferStore(store.buffer, value, store.indices)
        return block_with(block, tirx.IfThenElse(tirx.all(*conditions), sum_, None))

    return func.with_body(structural_map(func.body, [(s_tir.SBlock, branch)], order="post"))


def _is_choice(expr: Any) -> bool:
    """Whether an expression is a value or, by a condition, zero."""
    if not (isinstance(expr, Call) and getattr(expr.op, "name", "").endswith("if_then_else")):
        return False
    return isinstance(expr.args[2], tirx.FloatImm) and expr.args[2].value == 0


def _marked(conditions: Sequence[Any], value: Any) -> Any:
    if not conditions:
        return value
    told = tirx.likely(tirx.all(*conditions))
    return tirx.if_then_else(told, value, tirx.const(0, str(value.ty.dtype)))


def _is_marked(call: Any) -> bool:
    told = call.args[0] if _is_choice(call) else None
    return isinstance(told, Call) and getattr(told.op, "name", "").endswith("likely")


def _padding(block: Any) -> Bounds:
    """The bounds of a block that sets zeros around what it reads; none of another block."""
    store = block.body
    if not (isinstance(store, tirx.BufferStore) and _is_choice(store.value)):
        return {}
    bounds: Bounds = {}
    for term in terms(store.value.args[0]):
        for dimension, index in enumerate(store.indices):
            low, high = bounds.get(dimension, (0, int(store.buffer.shape[dimension])))
            least, end = _bound(term, index)
            bounds[dimension] = (max(low, least), min(high, end))
    return bounds


def _bound(term: Any, index: Any) -> tuple[int, int]:
    """The numbers between which a comparison keeps an index."""
    none = (0, 1 << 30)
    places = {variable: i for i, variable in enumerate(variables(index))}
    form = _least_zero(term, places)
    if form is None or len(places) != 1:
        return none
    (step,), offset = form
    if step == 1:
        return -offset, 1 << 30
    return (0, offset + 1) if step == -1 else none


def _least_zero(term: Any, axes: dict[Any, int]) -> tuple[list[int], int] | None:
    """The linear form that a comparison of whole numbers wants to be no less than zero."""
    if not isinstance(term, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return None
    left, right = linear(term.a, axes), linear(term.b, axes)
    if left is None or right is None:
        return None
    if isinstance(term, tirx.LT | tirx.LE):
        left, right = right, left
    strict = isinstance(term, tirx.LT | tirx.GT)
    coeffs = [a - b for a, b in zip(left[0], right[0], strict=True)]
    return coeffs, left[1] - right[1] - strict


def _asked(place: Place, padded: dict[Any, Bounds]) -> tuple[dict[Any, Any], Any]:
    """By loops over taps, whether some element of the register tile needs this one; and what is
    left to do in each step."""
    store = place.realize.block.body
    conditions: dict[Any, Any] = {}
    asker = _Asker(place)

    def settle(wanted: Sequence[Any], value: Any, kept: Callable[[Sequence[Any]], Any]) -> Any:
        open_terms, told = [], []
        for term in wanted:
            loop, condition, whole = asker.ask(term)
            if loop is not None:
                known = conditions.get(loop)
                conditions[loop] = condition if known is None else tirx.all(known, condition)
            elif whole:
                told.append(term)
            if not whole:
                open_terms.append(term)
        return _marked(told, kept(open_terms))

    def factor(expr: Any) -> Any:
        if isinstance(expr, tirx.Mul):
            return tirx.Mul(factor(expr.a), factor(expr.b))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(str(expr.ty.dtype), factor(expr.value))
        if _is_choice(expr):
            condition, value, zero = expr.args
            wanted = list(terms(condition))
            return settle(
                wanted,
                value,
                lambda left: tirx.if_then_else(tirx.all(*left), value, zero) if left else value,
            )
        if isinstance(expr, TensorLoad) and expr.source in padded:
            return settle(list(_inside(expr, padded[expr.source])), expr, lambda _: expr)
        return expr

    added = store.value if isinstance(store, tirx.BufferStore) else None
    if not isinstance(added, tirx.Add):
        return {}, None
    if isinstance(added.a, TensorLoad) and added.a.source.same_as(store.buffer):
        value = tirx.Add(added.a, factor(added.b))
    elif isinstance(added.b, TensorLoad) and added.b.source.same_as(store.buffer):
        value = tirx.Add(factor(added.a), added.b)
    else:
        return {}, None
    return conditions, tirx.BufferStore(store.buffer, value, store.indices)


def _inside(load: Any, bounds: Bounds) -> Iterator[Any]:
    for dimension, (low, high) in bounds.items():
        yield load.indices[dimension] >= low
        yield load.indices[dimension] < high


class _Asker:
    """Where around a block one can tell whether a comparison of its indices holds."""

    def __init__(self, place: Place) -> None:
        self._bound = block_values(place.realize)
        self._axes = {axis.var: i for i, axis in enumerate(place.realize.block.iter_vars)}
        self._loops = place.loops
        over = over_reduction(place.loops, place.realize)
        self._steps = [loop for loop in serial(over) if int(loop.extent) > 1]
        self._analyzer = Analyzer()

    def ask(self, term: Any) -> tuple[Any, Any, bool]:
        """The variable of the loop over taps that asks whether the term holds of any element, None
        if none does; what it asks; and whether nothing is left to ask of each."""
        form = _least_zero(term, self._axes)
        if form is None:
            return None, None, False
        coeffs, offset = form
        parts = [(c, self._bound[axis]) for axis, c in zip(self._axes, coeffs, strict=True) if c]
        moving = [
            loop
            for loop in self._loops
            if int(loop.extent) > 1 and any(uses(value, loop.loop_var) for _, value in parts)
        ]
        taps = [loop for loop in moving if loop in self._steps]
        if len(taps) != 1:
            told = all(loop.kind == tirx.ForKind.UNROLLED for loop in moving)
            return None, None, told
        inside = self._loops[self._loops.index(taps[0]) + 1 :]
        first = {loop.loop_var: loop.loop_var * 0 for loop in inside}
        last = {loop.loop_var: loop.extent - 1 for loop in inside}
        most = sum(
            (c * substitute(value, last if c > 0 else first) for c, value in parts),
            tirx.const(offset, "int32"),
        )
        whole = not any(loop in moving for loop in inside)
        return taps[0].loop_var, self._analyzer.simplify(most) >= 0, whole
