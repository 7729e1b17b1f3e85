"""Vectors of elements that lie a known way apart: whole vectors are loaded, and elements picked.

    x[ramp(i, 2, 16)]                 →  shuffle(x[ramp(i, 1, 16)], x[ramp(i + 15, 1, 16)])
    x[broadcast(i) + ramp(0..15) / 2] →  shuffle(x[ramp(i, 1, 8)])

TVM loads such vectors element by element, and puts as many together. Nothing is read beyond the
first and the last element: the last vector ends there.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    structural_map,
    structural_walk,
    tirx,
)
from tvm_ext.vectors import whole_loads

_KINDS = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Div: operator.floordiv,
    tirx.Mod: operator.mod,
}
"""Of numbers that are not negative, as lanes are."""
_DIVIDE = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


class _Places(NamedTuple):
    """Where the elements of a vector lie: at numbers behind a place that is not known."""

    base: Any
    offsets: tuple[int, ...]


def _places(index: Any) -> _Places | None:
    """Those of a vector's index; None where they are data, or the vector is a whole one."""
    if isinstance(index, tirx.Ramp):
        stride = int(index.stride) if isinstance(index.stride, tirx.IntImm) else 1
        if stride == 1:
            return None
        return _Places(index.base, tuple(stride * lane for lane in range(int(index.lanes))))
    if isinstance(index, tirx.Add):
        for base, rest in ((index.a, index.b), (index.b, index.a)):
            if isinstance(base, tirx.Broadcast) and (numbers := _numbers(rest)):
                return _Places(base.value, numbers)
    return None


def _numbers(expr: Any) -> tuple[int, ...] | None:
    """A vector that is known, none of its elements negative."""
    found: tuple[int, ...] | None = None
    if isinstance(expr, tirx.Broadcast) and isinstance(expr.value, tirx.IntImm):
        found = (int(expr.value),) * int(expr.lanes)
    elif isinstance(expr, tirx.Ramp):
        if isinstance(expr.base, tirx.IntImm) and isinstance(expr.stride, tirx.IntImm):
            begin, step = int(expr.base), int(expr.stride)
            found = tuple(begin + step * lane for lane in range(int(expr.lanes)))
    elif step_of := _KINDS.get(type(expr)):
        left, right = _numbers(expr.a), _numbers(expr.b)
        if left and right and not (0 in right and type(expr) in _DIVIDE):
            found = tuple(map(step_of, left, right))
    return found if found and min(found) >= 0 else None


def _picked(load: Any) -> Any:
    """The same vector, a shuffle for every load after the first; the load itself where whole ones
    do not serve."""
    *outer, index = load.indices
    places = _places(index) if str(load.source.dtype) != "bool" else None
    loads = whole_loads(places.offsets) if places else None
    if places is None or loads is None:
        return load
    width, begins = loads
    owners = [next(n for n, at in enumerate(begins) if o < at + width) for o in places.offsets]
    step = tirx.const(1, str(places.base.ty.dtype))
    parts = [
        tirx.BufferLoad(load.source, [*outer, tirx.Ramp(places.base + begin, step, width)])
        for begin in begins
    ]
    within = [o - begins[owner] for o, owner in zip(places.offsets, owners, strict=True)]
    first = [
        at + width * owner if owner < 2 else 0 for at, owner in zip(within, owners, strict=True)
    ]
    # what is shuffled has to have as many elements
    given = [*parts[:2], *(parts[0] for _ in range(len(first) // width - len(parts)))]
    found = tirx.Shuffle(given, _constants(first))
    for number, part in enumerate(parts[2:], start=2):  # they are as wide as the vector
        picked = [
            width + at if owner == number else lane
            for lane, (at, owner) in enumerate(zip(within, owners, strict=True))
        ]
        found = tirx.Shuffle([found, part], _constants(picked))
    return found


def _constants(numbers: list[int]) -> list[Any]:
    return [tirx.const(number, "int32") for number in numbers]


def _may_be_apart(ramp: Any) -> bool:
    """Whether a vector's places may be others than one behind the other: there are fewer ramps than
    loads to look at."""
    return isinstance(ramp.base, tirx.IntImm) or not (
        isinstance(ramp.stride, tirx.IntImm) and int(ramp.stride) == 1
    )


@tirx.transform.prim_func_pass(opt_level=0, name="PickStrided")
def pick_strided(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Such vectors by whole loads, wherever a function has them."""
    found: list[bool] = []
    structural_walk(func.body, (tirx.Ramp, lambda ramp: found.append(_may_be_apart(ramp))))
    if not any(found):
        return func
    return func.with_body(structural_map(func.body, [(TensorLoad, _picked)], order="post"))
