"""The greatest of nothing is minus infinity, where TVM begins with the lowest finite number.

    y = -3.4e38; y = max(y, x[k])   →   y = -inf; y = max(y, x[k])      for min the other way round

A row of which all is minus infinity, as masks make them, has no greater element; what asks for
it (`where(max(mask) == -inf, 0, p)` in ONNX's own definition of attention) would not find it.
TVM's schedules know reductions by what they begin with, so this comes after them; those that
threads of a GPU do together are known by it until they are lowered, and begin as TVM does.
"""

from __future__ import annotations

from math import inf
from typing import Any

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    structural_map,
    structural_walk,
    tirx,
)

EXTREMES = (tirx.Max, tirx.Min)
_SIGNS = {tirx.Max: -1, tirx.Min: 1}


def _end(dtype: str, sign: int) -> float:
    """The finite number of a type that is farthest out on one side."""
    return float((tirx.max_value(dtype) if sign > 0 else tirx.min_value(dtype)).value)


def _updated(store: Any) -> int:
    """The sign of the extreme that a statement keeps in an element; 0 if it keeps none."""
    sign = _SIGNS.get(type(store.value), 0)
    if not sign:
        return 0
    sides = (store.value.a, store.value.b)
    own = (one.source.same_as(store.buffer) for one in sides if isinstance(one, TensorLoad))
    return sign if any(own) else 0


def of_a_number(extreme: Any) -> Any:
    """What is no number stays none beside one number for all, as in ONNX, in the same instruction,
    which gives its second operand then:

        max(x, 0)   →   max(0, x)
    """
    number = extreme.b.value if isinstance(extreme.b, tirx.Broadcast) else extreme.b
    whole = isinstance(number, TensorLoad) and all(
        isinstance(index, tirx.IntImm) for index in number.indices
    )
    if not str(extreme.ty.dtype).startswith("float") or not (
        whole or isinstance(number, tirx.FloatImm)
    ):
        return extreme
    return type(extreme)(extreme.b, extreme.a)


@tirx.transform.prim_func_pass(opt_level=0, name="InfiniteExtremes")
def infinite_extremes(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Reductions to the greatest or least of floats begin with an infinity, before blocks are
    lowered."""
    stores: list[Any] = []
    structural_walk(func.body, [(tirx.BufferStore, stores.append)])
    kept = {store.buffer: sign for store in stores if (sign := _updated(store))}
    if not kept:
        return func

    def widen(store: Any) -> Any:
        sign, value = kept.get(store.buffer), store.value
        if not sign or not isinstance(value, tirx.FloatImm):
            return store
        dtype = str(value.ty.dtype)
        if float(value.value) != _end(dtype, sign):
            return store
        infinite = tirx.const(sign * inf, dtype)
        return tirx.BufferStore(store.buffer, infinite, store.indices)

    return func.with_body(structural_map(func.body, [(tirx.BufferStore, widen)], order="post"))
