"""Padding read in place: a load that stays inside its tensor, and the padding chosen after it.

    if 1 <= h + k < 57 and 1 <= w + l < 57: x[n, h + k - 1, w + l - 1, c]   else 0
        →
    select(1 <= h + k < 57 and .., x[n, clamp(h + k - 1, 0, 55), clamp(w + l - 1, 0, 55), c], 0)

A conditional load is a branch around every vector. A load that is always legal is a masked one, its
mask known at compile time where the index is, and otherwise the same for a whole vector.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tir.read import linear, terms
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
    return func.with_body(structural_map(func.body, [(Call, guarded)], order="post"))


def guarded(call: Any) -> Any:
    """The guarded load; the call itself if it is no choice between a load and a constant by bounds
    on the load's indices."""
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
    indices = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        if any(variable.same_as(other) for variable in variables(index) for other in bounded):
            index = tirx.max(tirx.min(index, extent - 1), 0)
        indices.append(index)
    return tirx.Select(opaque(condition), tirx.BufferLoad(load.source, indices), otherwise)


def _is_linear(expr: Any) -> bool:
    return linear(expr, {variable: i for i, variable in enumerate(variables(expr))}) is not None
