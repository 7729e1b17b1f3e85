"""Vectors of elements that lie a few places apart: whole vectors are loaded, and elements picked.

    x[ramp(i, 2, 16)]  →  shuffle(x[ramp(i, 1, 16)], x[ramp(i + 15, 1, 16)])

TVM loads such a vector element by element, 16 loads and as many instructions to put them together.
Nothing is read beyond the first and the last element: the last vector ends there.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    structural_map,
    structural_walk,
    tirx,
)
from tvm_ext.vectors import picks_elements


def _is_apart(load: Any) -> bool:
    index = load.indices[-1]
    known = isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm)
    return known and picks_elements(int(index.stride), int(index.lanes))


def _picked(load: Any) -> Any:
    """The same vector, a shuffle for every load after the first."""
    if not _is_apart(load) or str(load.source.dtype) == "bool":
        return load
    *outer, index = load.indices
    stride, lanes = int(index.stride), int(index.lanes)
    span = (lanes - 1) * abs(stride)  # from the first element in memory to the last
    first = index.base if stride > 0 else index.base - span
    places = [stride * lane + (span if stride < 0 else 0) for lane in range(lanes)]
    begins = [min(number * lanes, span + 1 - lanes) for number in range(abs(stride))]
    parts = [
        tirx.BufferLoad(load.source, [*outer, tirx.Ramp(first + begin, 1, lanes)])
        for begin in begins
    ]
    owners = [min(place // lanes, len(parts) - 1) for place in places]
    if len(parts) == 1:
        return tirx.Shuffle(parts, _constants(places))
    found = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        kept = places if number == 1 else range(lanes)
        indices = [
            lanes + place - begins[number] if owner == number else min(at, lanes - 1)
            for place, owner, at in zip(places, owners, kept, strict=True)
        ]
        found = tirx.Shuffle([found, part], _constants(indices))
    return found


def _constants(numbers: list[int]) -> list[Any]:
    return [tirx.const(number, "int32") for number in numbers]


@tirx.transform.prim_func_pass(opt_level=0, name="PickStrided")
def pick_strided(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Such vectors by whole loads, wherever a function has them."""
    found: list[bool] = []
    structural_walk(func.body, (TensorLoad, lambda load: found.append(_is_apart(load))))
    if not any(found):
        return func
    return func.with_body(structural_map(func.body, [(TensorLoad, _picked)], order="post"))
