"""`LowerSplit`: the parts of a split are slices, each of which its reader can take in.

    a, b = split(x, 2)           →   a = x[:n]; b = x[n:]
    take(x, [3, 4, 5])           →   x[3:6]
    concat(x[:n], x[n:], y)      →   concat(x, y)

A split is a kernel that copies every part, a gather one that looks every index up. A slice is
inlined by what reads it element by element, and `AbsorbViews` lets products read it where it lies.
Each slice is a kernel of its own, though, where a gather is one for any index: what is taken apart
into many parts (the steps of a sequence) stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.tvm_api import (
    IRModule,
    bound,
    constant_array,
    op_name,
    relax,
    rewritten,
    static_extents,
    tirx,
    tvm,
)

MOST_PARTS = 4
"""Slices that are made of one tensor."""


class Part(NamedTuple):
    """Elements `begin` to `end` of an axis of a tensor."""

    whole: Any
    axis: int
    begin: int
    end: int

    @property
    def is_all(self) -> bool:
        """Whether nothing of the axis is left out."""
        return (self.begin, self.end) == (0, (static_extents(self.whole.ty) or ())[self.axis])


def part_of(value: Any) -> Part | None:
    """The part of a tensor of static shape that a slice of one axis takes; None for any other
    expression."""
    if op_name(value) != "relax.strided_slice":
        return None
    whole, *given = value.args
    numbers = [_numbers(one) for one in given]
    before, after = static_extents(whole.ty), static_extents(value.ty)
    if before is None or after is None or None in numbers:
        return None
    (axes, begins), steps = [one or [] for one in numbers[:2]], numbers[3:] or [[1]]
    if len(axes) != 1 or steps[0] != [1]:
        return None
    axis = axes[0] % len(before)
    extent = before[axis]
    begin = min(max(begins[0] + extent if begins[0] < 0 else begins[0], 0), extent)
    return Part(whole, axis, begin, begin + after[axis])


def parts_of(value: Any) -> list[Part]:
    """The parts that a split of static shape makes; none for any other expression."""
    if op_name(value) != "relax.split":
        return []
    whole = value.args[0]
    shape, shapes = static_extents(whole.ty), [static_extents(one) for one in value.ty.fields]
    if not shape or None in shapes:
        return []
    axis = int(value.attrs.axis) % len(shape)
    ends = [0, *accumulate((one or ())[axis] for one in shapes)]
    return [Part(whole, axis, begin, end) for begin, end in pairwise(ends)]


def _numbers(expr: Any) -> list[int] | None:
    fields = getattr(expr, "fields", ())
    known = all(isinstance(field, tirx.IntImm) for field in fields)
    return [int(field) for field in fields] if isinstance(expr, relax.Tuple) and known else None


@tvm.transform.module_pass(opt_level=0, name="LowerSplit")
@dataclass(frozen=True)
class LowerSplit:
    """Rewrites splits of static shape and gathers of neighbours that are known; concatenations take
    back together what lies together."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with slices in place of splits."""
        return rewritten(mod, _Rewriter(mod))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._gathers: Counter[Any] = Counter()
        """By the tensor that they are of."""
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, self._count)

    def _count(self, node: Any) -> None:
        if op_name(node) == "relax.take" and isinstance(node.args[0], relax.Var):
            self._gathers[node.args[0]] += 1

    def visit_call_(self, call: Any) -> Any:
        few = op_name(call) == "relax.take" and self._gathers[call.args[0]] <= MOST_PARTS
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.split" and len(call.ty.fields) <= MOST_PARTS:
            return self._apart(call)
        if few and call.attrs.axis is not None:
            return self._gathered(call)
        if op_name(call) == "relax.concat" and call.attrs.axis is not None:
            return self._together(call)
        return call

    def visit_tuple_getitem_(self, item: Any) -> Any:
        given = self.visit_expr(item.tuple_value)
        parts = bound(self, given)
        if isinstance(parts, relax.Tuple):
            return parts.fields[item.index]
        return relax.TupleGetItem(given, item.index)

    def _apart(self, call: Any) -> Any:
        """split(x)  →  the tuple of its parts as slices"""
        slices = [
            self.builder_.emit(relax.op.strided_slice(whole, [axis], [begin], [end]))
            for whole, axis, begin, end in parts_of(call)
        ]
        return relax.Tuple(slices) if slices else call

    def _gathered(self, call: Any) -> Any:
        """take(x, neighbours)  →  the slice from the first to the last of them"""
        whole, indices = call.args[0], constant_array(bound(self, call.args[1]))
        before, after = static_extents(whole.ty), static_extents(call.ty)
        if indices is None or not before or after is None or not indices.size:
            return call
        axis = int(call.attrs.axis) % len(before)
        places = indices.reshape(-1)
        begin, end = int(places[0]), int(places[0]) + places.size
        neighbours = np.array_equal(places, np.arange(begin, end))
        if not neighbours or begin < 0 or end > before[axis]:
            return call
        part = self._taken(Part(whole, axis, begin, end))
        return part if indices.ndim == 1 else relax.op.reshape(part, after)

    def _together(self, call: Any) -> Any:
        """concat(x[a:b], x[b:c], y)  →  concat(x[a:c], y)"""
        operands = bound(self, call.args[0])
        shape = static_extents(call.ty)
        if not isinstance(operands, relax.Tuple) or shape is None:
            return call
        axis = int(call.attrs.axis) % len(shape)
        given = list(operands.fields)
        merged = _merged([part_of(bound(self, one)) for one in given], given, axis)
        if len(merged) == len(given):
            return call
        fields = [self._taken(one) if isinstance(one, Part) else one for one in merged]
        return fields[0] if len(fields) == 1 else relax.op.concat(fields, axis)

    def _taken(self, part: Part) -> Any:
        whole, axis, begin, end = part
        if part.is_all:
            return whole
        return self.builder_.emit(relax.op.strided_slice(whole, [axis], [begin], [end]))


def _merged(parts: Sequence[Part | None], given: Sequence[Any], axis: int) -> list[Any]:
    """What is concatenated: neighbours of one tensor as one part, everything else as it was."""
    found: list[Any] = []
    for part, operand in zip(parts, given, strict=True):
        last = found[-1] if found else None
        if part is None or part.axis != axis:
            found.append(operand)
        elif isinstance(last, Part) and last.whole.same_as(part.whole) and last.end == part.begin:
            found[-1] = last._replace(end=part.end)
        else:
            found.append(part)
    return found
