"""`FoldProducts`: two products by constants in a row are one, where that multiplies less.

    conv(view(matmul(x, A) + b), W)   →   view(matmul(x, A W) + b W)

A network that brings its maps to one width before a layer without an activation in between (the
head of SegFormer: 32, 64, 160 and 256 channels, each to 256 and to 256 again) could have been given
one matrix for both. Views are permutations and reshapes that leave a point's channels together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.layout_rules import with_attrs
from tvm_ext.graph.point_product import (
    LEAST_FLOPS,
    Product,
    is_float32,
    takes_all_points,
    with_bias,
)
from tvm_ext.tvm_api import (
    IRModule,
    bound,
    constant,
    constant_array,
    count_uses,
    op_name,
    relax,
    rewritten,
    static_extents,
    tvm,
)

PERMUTE, RESHAPE = "relax.permute_dims", "relax.reshape"


@tvm.transform.module_pass(opt_level=0, name="FoldProducts")
@dataclass(frozen=True)
class FoldProducts:
    """Rewrites products by a constant matrix, and convolutions of one tap, of another such."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; first products that nothing uses are dead."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


class _View(NamedTuple):
    """A permutation or reshape, and the axis of the channels before and after it."""

    call: Any
    before: int
    after: int

    @classmethod
    def of(cls, call: Any, after: int) -> _View | None:
        """That of a call, by the axis after it; None of one that takes channels apart, or of
        another operator."""
        if op_name(call) not in (PERMUTE, RESHAPE):
            return None
        was, now = static_extents(call.args[0].ty), static_extents(call.ty)
        if was is None or now is None:
            return None
        if op_name(call) == PERMUTE:
            axes = call.attrs.axes
            order = range(len(was))[::-1] if axes is None else [int(one) for one in axes]
            return cls(call, order[after] % len(was), after)
        for place, extent in enumerate(was):
            if extent == now[after] and prod(was[:place]) == prod(now[:after]):
                return cls(call, place, after)
        return None

    def __call__(self, operand: Any) -> Any:
        """The same view of a tensor that may have other channels."""
        if op_name(self.call) == PERMUTE:
            return with_attrs(self.call, [operand])
        extents = list(static_extents(self.call.ty) or ())
        extents[self.after] = (static_extents(operand.ty) or ())[self.before]
        return relax.op.reshape(operand, extents)


class _Way(NamedTuple):
    """From the first product to the second: a bias, then views, the first of them last."""

    first: Any
    bias: np.ndarray | None
    views: list[_View]


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses: Counter[Any] = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        second, shape = Product.of(call), static_extents(call.ty)
        if second is None or shape is None or not takes_all_points(call):
            return call
        way = self._way(call.args[0], second.axis)
        first = Product.of(way.first) if way is not None else None
        if way is None or first is None or not takes_all_points(way.first):
            return call
        if not all(map(is_float32, (call, way.first, *call.args, *way.first.args))):
            return call
        matrix = second.matrix()
        between, after = matrix.shape
        before = first.weights.size // between
        saved = before * between + between * after - before * after
        if 2.0 * saved * prod(shape) / after < LEAST_FLOPS:
            return call
        weights = first.shaped(first.matrix() @ matrix)
        total = self.builder_.emit(with_attrs(way.first, [way.first.args[0], constant(weights)]))
        if way.bias is not None:
            place = [1] * way.bias.ndim
            place[first.axis - len(static_extents(way.first.ty) or ())] = after
            bias = (way.bias.reshape(-1).astype(np.float64) @ matrix).astype(np.float32)
            total = self.builder_.emit(relax.op.add(total, constant(bias.reshape(place))))
        for view in reversed(way.views):
            total = self.builder_.emit(view(total))
        return total

    def _way(self, operand: Any, axis: int) -> _Way | None:
        """What lies between a product and the one before it, whose results nothing else uses;
        `axis` is that of the channels in what the second one is given."""
        views: list[_View] = []
        while self._uses[operand] == 1:
            value = bound(self, operand)
            view = _View.of(value, axis)
            if view is None:
                return self._begun(value, axis, views)
            views.append(view)
            operand, axis = value.args[0], view.before
        return None

    def _begun(self, value: Any, axis: int, views: list[_View]) -> _Way | None:
        bias = None
        if (found := with_bias(value, axis)) is not None:
            if self._uses[found.operand] != 1:
                return None
            value, bias = bound(self, found.operand), constant_array(found.bias)
        first = Product.of(value)
        return _Way(value, bias, views) if first is not None and first.axis == axis else None
