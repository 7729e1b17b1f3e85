"""Constants that differ with an extent that is not known become calls that make them
(`constant_forms`): exporters fold the number of a sentence in its batch, what is repeated for each,
the batch itself, the positions of words and which of them see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tvm_ext.graph.constant_forms import Tables, form_of
from tvm_ext.tvm_api import GenericConst, array_of, constant_array, in_map_order, relax

LARGE = 1 << 16
"""Elements that no exporter works out of an extent without it showing in their shape."""


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
        first, *blocks = function.body.blocks or [relax.DataflowBlock([])]
        block = type(first)([*self.bindings, *first.bindings])
        body = relax.SeqExpr([block, *blocks], function.body.body)
        return relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs
        )


def grown_constants(
    one: Any, other: Any, symbol: Any, extents: Sequence[int], builder: Any, tables: Tables = tuple
) -> GrownConstants | None:
    """The constants of two functions that differ by an extent; None if some are of none of the
    forms. Kernels that make them are added by the builder.

    tables  makes arrays of which some may be the beginning
    """
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
                arrays = constant_array(a), constant_array(b)
                form = None if arrays[0] is None else form_of(arrays, extents, tables)
                if form is None:
                    return None
                call = form.call(symbol, builder, len(bindings))
                known[key] = relax.DataflowVar(f"grown{len(bindings)}", call.ty_args[0])
                bindings.append(relax.VarBinding(known[key], builder.normalize(call)))
        values.append(known[key])
    return GrownConstants(values, bindings)


def is_said_of(values: Mapping[tuple[int, ...], Any], point: Sequence[int], value: Any) -> bool:
    """Whether a constant for other numbers of some extents is what those for these say, as far as
    they say anything: of one extent, and up to a limit. Large ones of one shape are weights."""
    first = min(values)
    one = values[first]
    if not _is_array(one):
        return all(one == other for other in (*values.values(), value))
    shapes = {tuple(each.shape) for each in (*values.values(), value)}
    if len(shapes) == 1 and prod(shapes.pop()) > LARGE:
        return True
    others = {axis: _with(first, axis, max(values)[axis]) for axis in range(len(point))}
    grows = [
        axis
        for axis in others
        if any(
            not _are_equal(own, values[_with(at, axis, first[axis])]) for at, own in values.items()
        )
    ]
    if len(grows) != 1:
        return bool(grows) or _are_equal(one, value)
    (axis,) = grows
    extents = first[axis], others[axis][axis]
    form = form_of((array_of(one), array_of(values[others[axis]])), extents)
    if form is None or not (form.limit is None or form.limit.takes(point[axis])):
        return True
    return np.array_equal(form.made(point[axis]), array_of(value))


def _with(point: tuple[int, ...], axis: int, number: int) -> tuple[int, ...]:
    return *point[:axis], number, *point[axis + 1 :]


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two tensors are of equal type and bits, or two types are equal."""
    if not _is_array(one):
        return bool(one == other)
    if one.same_as(other):
        return True
    if tuple(one.shape) != tuple(other.shape) or str(one.dtype) != str(other.dtype):
        return False
    a, b = (np.ascontiguousarray(array_of(each)) for each in (one, other))
    return bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))


def _is_array(value: Any) -> bool:
    """Whether a constant is a tensor; the type that a view reads one as is another kind."""
    return hasattr(value, "shape")
