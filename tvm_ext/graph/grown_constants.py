"""Constants that differ with an extent that is not known become calls that make them
(`constant_forms`): exporters fold the number of a sentence in its batch, what is repeated for each,
the batch itself, the positions of words and which of them see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def is_as_grown(values: Sequence[Any], extents: Sequence[int], extent: int) -> bool:
    """Whether the third of three tensors, for another extent, is what the first two say, as far as
    they say anything. Large ones of one shape are weights."""
    one, other, third = values
    if not _is_array(one):
        return bool(one == other == third)
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) == 1 and prod(shapes.pop()) > LARGE:
        return True
    if _are_equal(one, other):
        return _are_equal(one, third)
    form = form_of((array_of(one), array_of(other)), extents)
    return form is None or np.array_equal(form.made(extent), array_of(third))


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
