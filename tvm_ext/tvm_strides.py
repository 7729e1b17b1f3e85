"""Vectors of elements that lie a known way apart: whole vectors are loaded, and elements picked.

    x[ramp(i, 2, 16)]                         →  shuffle(x[ramp(i, 1, 16)], x[ramp(i + 15, 1, 16)])
    x[broadcast(i) + ramp(0..15) / 2]         →  shuffle(x[ramp(i, 1, 8)])
    x[broadcast(i) + ramp(0..15) / 4 * 4]     →  shuffle(x[ramp(i, 1, 16)])
    x[broadcast(i) + ramp(0..15) / 4 * 4 + 3] →  shuffle(x[ramp(i, 1, 16)])    beside the one before

TVM loads such vectors element by element, and puts as many together. Nothing is read beyond the
first and the last element: the last vector ends there. What statements that follow each other read
of one place is there for all of them.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple

from tvm_ffi import StructuralKey

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    structural_map,
    structural_walk,
    tirx,
)
from tvm_ext.tvm_masks import has_choice
from tvm_ext.vectors import whole_loads

_SUMS = {tirx.Add: operator.add, tirx.Sub: operator.sub}
_KINDS = {
    **_SUMS,
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


def _places(load: Any) -> _Places | None:
    """Those of a vector that is loaded; None where they are data, or the vector is a whole one."""
    index = load.indices[-1]
    if str(load.source.dtype) == "bool":
        return None
    if isinstance(index, tirx.Ramp):
        stride = int(index.stride) if isinstance(index.stride, tirx.IntImm) else 1
        if stride == 1:
            return None
        return _Places(index.base, tuple(stride * lane for lane in range(int(index.lanes))))
    return _added(index) if type(index) in _SUMS else None


def _added(expr: Any) -> _Places | None:
    """Those of a sum of numbers that all elements have in common and of vectors that are known."""
    if numbers := _numbers(expr):
        return _Places(tirx.const(0, str(expr.ty.dtype).partition("x")[0]), numbers)
    if isinstance(expr, tirx.Broadcast):
        return _Places(expr.value, (0,) * int(expr.lanes))
    join = _SUMS.get(type(expr))
    left, right = (_added(expr.a), _added(expr.b)) if join else (None, None)
    if join is None or left is None or right is None:
        return None
    return _Places(join(left.base, right.base), tuple(map(join, left.offsets, right.offsets)))


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


def _place(load: Any, places: _Places) -> tuple[StructuralKey, ...]:
    """A key for the buffer and the place in it that a load's elements lie behind."""
    return tuple(map(StructuralKey, (load.source, *load.indices[:-1], places.base)))


def _run_picked(run: Any) -> Any:
    """Statements that follow each other, each vector picked from loads that serve all of them;
    those stay that choose what they read."""
    reached: dict[tuple[StructuralKey, ...], set[int]] = defaultdict(set)
    stores = [isinstance(one, tirx.BufferStore) and not has_choice(one.value) for one in run.seq]

    def noted(load: Any) -> None:
        if (places := _places(load)) is not None:
            reached[_place(load, places)].update(places.offsets)

    def picked(load: Any) -> Any:
        places = _places(load)
        return _picked(load, places, reached[_place(load, places)]) if places else load

    for one, is_store in zip(run.seq, stores, strict=True):
        if is_store:
            structural_walk(one.value, (TensorLoad, noted))
    if not reached:
        return run
    return tirx.SeqStmt(
        [
            structural_map(one, [(TensorLoad, picked)], order="post") if is_store else one
            for one, is_store in zip(run.seq, stores, strict=True)
        ]
    )


def _picked_alone(load: Any) -> Any:
    return _picked(load, places) if (places := _places(load)) else load


def _picked(load: Any, places: _Places, beside: Collection[int] = ()) -> Any:
    """The same vector, a shuffle for every load after the first; the load itself where whole ones
    do not serve. What lies at numbers `beside` its own may be read too."""
    *outer, _ = load.indices
    loads = whole_loads(places.offsets, tuple(beside)) or whole_loads(places.offsets)
    if loads is None:
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
    body = structural_map(func.body, [(tirx.SeqStmt, _run_picked)], order="post")
    return func.with_body(structural_map(body, [(TensorLoad, _picked_alone)], order="post"))
