"""Constants with an axis of an extent that is not known: numbers that count its elements.

    c[499, 2] = [[0, 7], [1, 7], [2, 7], ..]   →   c = call_tir(count, [[0, 7]], [[1, 0]]), [n, 2]
    c[2] = [499, 128]                          →   c = call_tir(count, [0, 128], [1, 0], n)

Exporters fold the number of a sentence in its batch, what is repeated for each, and the batch
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.tvm_api import (
    GenericConst,
    array_of,
    constant,
    in_map_order,
    relax,
    te,
    tirx,
)

_ZERO = tirx.const(0, "int64")


@dataclass
class GrownConstants:
    """The constants of a function, in the order in which a map comes to them: each as it is, or the
    variable of what takes its place."""

    values: Sequence[Any]
    bindings: list[Any] = field(default_factory=list)
    """What makes the variables."""

    def in_turn(self) -> Callable[[Any], Any]:
        """What a map should call with each constant."""
        left = iter(self.values)
        return lambda _: next(left)

    def made_in(self, function: Any) -> Any:
        """The function with the bindings in front of all others."""
        if not self.bindings:
            return function
        first, *blocks = function.body.blocks
        block = type(first)([*self.bindings, *first.bindings])
        body = relax.SeqExpr([block, *blocks], function.body.body)
        return relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs
        )


def grown_constants(
    one: Any, other: Any, symbol: Any, extents: Sequence[int], builder: Any
) -> GrownConstants | None:
    """The constants of two functions that differ by an extent; None if some differ by more than how
    far they count, or by how much. Kernels that count are added by the builder."""
    found, others = (in_map_order(function, GenericConst) for function in (one, other))
    if len(found) != len(others):
        return None
    known: dict[tuple[int, int], Any] = {}
    bindings: list[Any] = []
    values = []
    for a, b in zip(found, others, strict=True):
        key = id(a), id(b)
        if key not in known:
            if _are_equal(a.value, b.value):
                known[key] = a
            else:
                count = count_of((array_of(a.value), array_of(b.value)), extents)
                if count is None:
                    return None
                call = count.call(symbol, builder)
                known[key] = relax.DataflowVar(f"counted{len(bindings)}", call.ty_args[0])
                bindings.append(relax.VarBinding(known[key], builder.normalize(call)))
        values.append(known[key])
    return GrownConstants(values, bindings)


@dataclass(frozen=True)
class Count:
    """A constant whose elements are `start + step * i`, of `i` along an axis of an extent that is
    not known, or that extent itself where there is no such axis."""

    start: np.ndarray
    step: np.ndarray
    axis: int | None

    def call(self, symbol: Any, builder: Any) -> Any:
        """The call that makes it."""
        own = tirx.Var(str(symbol.name), "int64")
        given = [te.placeholder(self.start.shape, str(self.start.dtype), n) for n in ("a", "b")]

        def body(*at: Any) -> Any:
            first = tuple(_ZERO if place == self.axis else i for place, i in enumerate(at))
            count = own if self.axis is None else at[self.axis]
            return given[0][first] + given[1][first] * count.astype(given[0].dtype)

        def shape(extent: Any) -> list[Any]:
            sizes = enumerate(self.start.shape)
            return [extent if place == self.axis else tirx.const(e, "int64") for place, e in sizes]

        out = te.compute(shape(own), body, name="count")
        told = [] if self.axis is not None else [own]
        func = te.create_prim_func([*given, *told, out]).without_attr("global_symbol")
        operands = [constant(np.ascontiguousarray(array)) for array in (self.start, self.step)]
        taken = relax.Tuple([*operands, *([] if self.axis is not None else [symbol])])
        ty = relax.TensorType(shape(symbol), str(self.start.dtype))
        return relax.call_tir(builder.add_func(func, "count"), taken, ty)


def count_of(pair: Sequence[np.ndarray], extents: Sequence[int]) -> Count | None:
    """What two constants are for those extents; None if they do not count evenly, in integers.
    Along an axis anything may be repeated."""
    one, other = pair
    if one.ndim != other.ndim or one.dtype != other.dtype or one.dtype == np.bool_:
        return None
    differing = [axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis]]
    counts = all(np.array_equal(array, np.rint(array)) for array in pair)
    if not differing:
        if not counts:
            return None
        step, left = np.divmod(other - one, extents[1] - extents[0])
        found = Count(one - step * extents[0], step, None)
        return None if left.any() else found
    axis = differing[0]
    if len(differing) > 1 or (one.shape[axis], other.shape[axis]) != tuple(extents):
        return None
    start, following = (one.take([place], axis) for place in (0, 1))
    step = following - start if counts else np.zeros_like(start)
    for array in pair:
        sizes = [-1 if place == axis else 1 for place in range(array.ndim)]
        places = np.arange(array.shape[axis]).reshape(sizes).astype(array.dtype)
        if not np.array_equal(array, start + step * places):
            return None
    return Count(start, step, axis)


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two tensors are of equal type and bits."""
    if one.same_as(other):
        return True
    if tuple(one.shape) != tuple(other.shape) or str(one.dtype) != str(other.dtype):
        return False
    a, b = (np.ascontiguousarray(array_of(each)) for each in (one, other))
    return bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))
