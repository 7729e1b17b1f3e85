"""Loads that stay inside their tensors: padding read in place, values chosen by their place.

    if 1 <= h + k < 57 and 1 <= w + l < 57: x[n, h + k - 1, w + l - 1, c]   else 0
        →
    select(1 <= h + k < 57 and .., x[n, clamp(h + k - 1, 0, 55), clamp(w + l - 1, 0, 55), c], 0)

A conditional load is a branch around every vector. A load that is always legal is a masked one, its
mask known at compile time where the index is, and otherwise the same for a whole vector.

    y[a, c] = select(a == 0, x[0, c] - x[2, c], x[1, c] + x[2, c])
        →
    y[a, c] = if a == 0: x[0, c] - x[2, c]   else x[1, c] + x[2, c]

Both values of a `Select` are computed, but TVM simplifies the first as if its condition held: where
`a` is `f // 2 + k`, an index `f % 2` becomes `f`, far outside when `a` is not 0. Most places are
unrolled, and neither remains.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tir.affine import linear, loads
from tvm_ext.tir.margins import Margins
from tvm_ext.tir.read import terms
from tvm_ext.tvm_api import (
    Call,
    PrimFunc,
    TensorLoad,
    opaque,
    structural_map,
    tirx,
    variables,
)

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def with_guards(func: PrimFunc) -> PrimFunc:
    """The function with every conditional load of padding made a guarded one."""
    margins = Margins(func)
    kinds = [(Call, lambda call: guarded(call, margins))]
    return margins.made(func.with_body(structural_map(func.body, kinds, order="post")))


def with_choices(func: PrimFunc) -> PrimFunc:
    """The function with no value computed where a place says that it is not chosen."""
    stores = [(tirx.BufferStore, _chosen_first)]
    return func.with_body(structural_map(func.body, stores, order="post"))


def _chosen_first(store: Any) -> Any:
    """The statement with a branch for every choice by a place that is the same for a whole vector;
    others compute both values, and nothing is taken for granted in either."""
    along = variables(store.indices[-1]) if store.indices else []

    def choice(select: Any) -> Any:
        condition = select.condition
        if not isinstance(condition, tirx.EQ) or loads(condition) or not loads(select.true_value):
            return select
        if any(variable.same_as(other) for variable in variables(condition) for other in along):
            return tirx.Select(opaque(condition), select.true_value, select.false_value)
        return tirx.if_then_else(condition, select.true_value, select.false_value)

    value = structural_map(store.value, [(tirx.Select, choice)], order="post")
    return tirx.BufferStore(store.buffer, value, store.indices)


def guarded(call: Any, margins: Margins | None = None) -> Any:
    """The guarded load, its indices clamped where there can be no margins; the call itself if it is
    no choice between a load and a constant by bounds on the load's indices."""
    if not getattr(call.op, "name", "").endswith("if_then_else"):
        return call
    condition, load, otherwise = call.args
    constant = isinstance(otherwise, tirx.FloatImm | tirx.IntImm)
    if not (constant and isinstance(load, TensorLoad)):
        return call
    bounded: list[Any] = []
    for term in terms(condition):
        if not isinstance(term, _COMPARISONS) or not (_is_linear(term.a) and _is_linear(term.b)):
            return call
        bounded += variables(term)
    if margins is not None and margins.cover(load):
        return tirx.Select(opaque(condition), load, otherwise)
    indices = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        if any(variable.same_as(other) for variable in variables(index) for other in bounded):
            index = tirx.max(tirx.min(index, extent - 1), 0)
        indices.append(index)
    return tirx.Select(opaque(condition), tirx.BufferLoad(load.source, indices), otherwise)


def _is_linear(expr: Any) -> bool:
    return linear(expr, {variable: i for i, variable in enumerate(variables(expr))}) is not None
