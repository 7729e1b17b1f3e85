"""Tensors that are slices of larger ones: parameters become flat memory, strides go into the code.

    f(x[4, 8], y[4, 8]):  y[i, j] = 2 * x[i, j]
        →  f(x[4, 8], y[56]):  y[16 * i + j] = 2 * x[i, j]      rows of y lie 16 elements apart

The tensor handed over begins where the slice does, anywhere in memory. Until it has been scheduled
the function carries the dense one with it: what is computed, its signature and its plan do not
depend on where tensors lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_ext.errors import PlanError
from tvm_ext.tvm_api import (
    PrimFunc,
    TensorLoad,
    ir,
    structural_map,
    structural_walk,
    tirx,
)

DENSE = "tvm_ext.dense"
"""Attribute of a function with slices: the same without."""
SLICES = "tvm_ext.slices"
"""Attribute of a function with slices: the strides of each parameter; none of a dense one."""
Strides = tuple[int, ...]
"""Elements from one index to the next, for each axis."""
Place = tuple[Any, Strides | None, Any]
"""Where a tensor lies instead: in which other one, with which strides, from which element of it on;
without strides at the same indices."""


def sliced(func: PrimFunc, slices: Mapping[int, Strides]) -> PrimFunc:
    """`with_slices`, and the dense function kept for `dense`."""
    listed = [list(slices.get(place, ())) for place in range(len(func.params))]
    return with_slices(func, slices).with_attr({DENSE: func, SLICES: listed})


def dense(func: PrimFunc) -> tuple[PrimFunc, dict[int, Strides]]:
    """The function without slices, and the strides of its parameters that are some."""
    if not func.attrs or DENSE not in func.attrs:
        return func, {}
    found = {place: tuple(map(int, each)) for place, each in enumerate(func.attrs[SLICES])}
    return func.attrs[DENSE], {place: strides for place, strides in found.items() if strides}


def span(shape: Sequence[Any], strides: Strides) -> Any:
    """Elements from the first of a slice to its last; an expression where an extent is one."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def with_slices(func: PrimFunc, slices: Mapping[int, Strides]) -> PrimFunc:
    """The function with flat parameters in place of those that are slices.

    Raises PlanError with the reason `slice` where a parameter is used as anything but a tensor.
    """
    if not slices:
        return func
    places: dict[Any, Place] = {}
    for place, given in slices.items():
        old = func.params[place]
        index = str(old.shape[0].ty.dtype)
        known = all(isinstance(extent, tirx.IntImm) for extent in old.shape)
        shape = tuple(map(int, old.shape)) if known else tuple(old.shape)
        length = tirx.IntImm(index, span(shape, given)) if known else span(shape, given)
        flat = tirx.decl_buffer(
            (length,),
            old.dtype,
            old.name,
            elem_offset=tirx.Var(f"{old.name}_begin", index),
            offset_factor=1,
        )
        places[old] = (flat, given, 0)
    body = relocated(func.body, places)
    params = [places[param][0] if param in places else param for param in func.params]
    return PrimFunc(params, body, attrs=func.attrs, span=func.span)


def relocated(body: Any, places: Mapping[Any, Place]) -> Any:
    """The statement with tensors that lie elsewhere.

    Raises PlanError with the reason `slice` where one is used as anything but a tensor.
    """

    def at(old: Any, indices: Any) -> list[Any]:
        _, strides, begin = places[old]
        if strides is None:
            return list(indices)
        return [sum((i * s for i, s in zip(indices, strides, strict=True)), start=begin)]

    def load(node: Any) -> Any:
        if node.source not in places:
            return node
        return tirx.BufferLoad(places[node.source][0], at(node.source, node.indices))

    def store(node: Any) -> Any:
        if node.buffer not in places:
            return node
        new, indices = places[node.buffer][0], at(node.buffer, node.indices)
        return tirx.BufferStore(new, node.value, indices)

    def region(node: Any) -> Any:
        if node.source not in places:
            return node
        new, strides, _ = places[node.source]
        whole = node.region if strides is None else [ir.Range(0, new.shape[0])]
        return tirx.BufferRegion(new, whole)

    kinds = [(TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)]
    result = structural_map(body, kinds, order="post")
    left: list[Any] = []
    structural_walk(result, (ir.Var, lambda var: left.append(var) if var in places else None))
    if left:
        raise PlanError("slice", f"slice: {left[0].name} is used as more than a tensor")
    return result


def row_by_row(func: PrimFunc) -> PrimFunc:
    """The function with a loop for rows and one along them, where one goes over both: dense rows
    follow each other, those of a slice do not, and LLVM would make no vectors of their elements.

    for f in range(n * c): y[f // c, f % c]   →   for i in range(n): for j in range(c): y[i, j]
    """

    def apart(loop: Any) -> Any:
        sizes: set[int] = set()
        counts = {"all": 0, "divided": 0}

        def divided(node: Any) -> None:
            if node.a.same_as(loop.loop_var) and isinstance(node.b, tirx.IntImm):
                sizes.add(int(node.b))
                counts["divided"] += 1

        def used(var: Any) -> None:
            counts["all"] += var.same_as(loop.loop_var)

        kinds = [(tirx.FloorDiv, divided), (tirx.FloorMod, divided), (tirx.Var, used)]
        structural_walk(loop.body, kinds)
        size = sizes.pop() if len(sizes) == 1 else 0
        if loop.kind != tirx.ForKind.SERIAL or not size or counts["all"] != counts["divided"]:
            return loop
        if not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) % size:
            return loop
        dtype = str(loop.loop_var.ty.dtype)
        row, place = tirx.Var("row", dtype), tirx.Var("place", dtype)

        def quotient(node: Any) -> Any:
            return row if node.a.same_as(loop.loop_var) else node

        def remainder(node: Any) -> Any:
            return place if node.a.same_as(loop.loop_var) else node

        swaps = [(tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)]
        body = structural_map(loop.body, swaps, order="post")
        zero = tirx.const(0, dtype)
        inner = tirx.For(place, zero, tirx.const(size, dtype), tirx.ForKind.SERIAL, body)
        count = tirx.const(int(loop.extent) // size, dtype)
        return tirx.For(row, zero, count, tirx.ForKind.SERIAL, inner)

    return func.with_body(structural_map(func.body, [(tirx.For, apart)], order="post"))


def of_rows(scheduled: PrimFunc, slices: Mapping[int, Strides]) -> PrimFunc:
    """A scheduled function whose parameters are slices, if any are, its loops over their rows
    apart."""
    return row_by_row(with_slices(scheduled, slices)) if slices else scheduled


def spread(array: np.ndarray, strides: Strides) -> np.ndarray:
    """The array as a slice of flat memory that holds nothing else: the gaps are NaN, or 0."""
    filler = np.nan if array.dtype.kind == "f" else 0
    memory = np.full(span(array.shape, strides), filler, array.dtype)
    gathered(memory, array.shape, strides)[...] = array
    return memory


def gathered(memory: np.ndarray, shape: tuple[int, ...], strides: Strides) -> np.ndarray:
    """The view of a slice in flat memory."""
    steps = tuple(stride * memory.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(memory, shape, steps)
