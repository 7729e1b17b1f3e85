"""`SplitBroadcasts`: what a product does with channels that are the same everywhere is done once.

    conv(concat(x, broadcast_to(g)), W)   →   conv(x, W[:, :c]) + conv(g, W[:, c:])

A network that joins a summary of all points to each of them (PointNet, the pooled branch of an
atrous pyramid, a latent code beside coordinates) multiplies it anew at every point.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.channels_last import CONVOLUTIONS
from tvm_ext.graph.layout_rules import is_plain_conv, with_attrs
from tvm_ext.tvm_api import (
    IRModule,
    bound,
    constant,
    constant_array,
    op_name,
    relax,
    rewritten,
    static_extents,
    tvm,
)

REPEATING = frozenset({"relax.broadcast_to", "relax.image.resize2d", "relax.tile"})
"""What repeats a tensor along an axis of one element."""
LEAST_FLOPS = 1e6
"""Arithmetic that is worth a kernel of its own: some microseconds."""


class Product(NamedTuple):
    """A product by constant weights, and the axes of operand and weights that it sums over."""

    weights: np.ndarray
    axis: int
    summed: int

    @classmethod
    def of(cls, call: Any) -> Product | None:
        """That of a call, if it takes every point of its operand by itself; None of others."""
        name = op_name(call)
        if name != "relax.matmul" and name not in CONVOLUTIONS:
            return None
        weights, shape = constant_array(call.args[1]), static_extents(call.args[0].ty)
        if weights is None or shape is None:
            return None
        if name == "relax.matmul":
            return cls(weights, len(shape) - 1, 0) if weights.ndim == 2 else None
        alone = call.attrs.groups == 1 and prod(weights.shape[2:]) == 1
        plain = is_plain_conv(call) and not any(int(pad) for pad in call.attrs.padding)
        return cls(weights, 1, 1) if alone and plain else None


@tvm.transform.module_pass(opt_level=0, name="SplitBroadcasts")
@dataclass(frozen=True)
class SplitBroadcasts:
    """Rewrites products by a constant matrix, and convolutions of one tap, over a concatenation of
    which a part is the same along some axis."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; concatenations that nothing uses are dead."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        product = Product.of(call)
        if product is None:
            return call
        whole = bound(self, call.args[0])
        if op_name(whole) != "relax.concat" or whole.attrs.axis is None:
            return call
        shape, operands = static_extents(whole.ty), bound(self, whole.args[0])
        if not shape or int(whole.attrs.axis) % len(shape) != product.axis:
            return call
        parts = list(operands.fields) if isinstance(operands, relax.Tuple) else []
        shapes = [static_extents(part.ty) for part in parts]
        if not all(shapes):
            return call
        ends = np.cumsum([(each or ())[product.axis] for each in shapes])
        taken = np.split(product.weights, ends[:-1], product.summed)
        sources = [self._alike(part, product.axis) for part in parts]
        points = prod(shape) // shape[product.axis]
        rest = [
            place
            for place, source in enumerate(sources)
            if source is None or _saved(source, product.axis, taken[place], points) < LEAST_FLOPS
        ]
        if not rest or len(rest) == len(parts):
            return call
        kept = [parts[place] for place in rest]
        operand = kept[0] if len(rest) == 1 else relax.op.concat(kept, product.axis)
        weights = np.concatenate([taken[place] for place in rest], product.summed)
        total = self._product(call, operand, weights)
        for place, source in enumerate(sources):
            if place not in rest:
                one = self._product(call, source, taken[place])
                total = self.builder_.emit(relax.op.add(total, one))
        return total

    def _product(self, call: Any, operand: Any, weights: np.ndarray) -> Any:
        given = [self.builder_.emit(operand), constant(np.ascontiguousarray(weights))]
        return self.builder_.emit(with_attrs(call, given))

    def _alike(self, part: Any, axis: int) -> Any:
        """What a tensor repeats along other axes; None if it repeats nothing, or channels."""
        call = bound(self, part)
        if op_name(call) not in REPEATING or _crops(call):
            return None
        source, after = call.args[0], static_extents(part.ty)
        before = static_extents(source.ty)
        if not before or not after or len(before) != len(after) or before[axis] != after[axis]:
            return None
        pairs = list(zip(before, after, strict=True))
        return source if all(one in (1, many) for one, many in pairs) and before != after else None


def _crops(call: Any) -> bool:
    """Whether a resizing may show what lies beside its picture."""
    mode = getattr(call.attrs, "coordinate_transformation_mode", "")
    return str(mode) == "tf_crop_and_resize"


def _saved(source: Any, axis: int, weights: np.ndarray, points: int) -> float:
    """Arithmetic that is not done if what repeats is multiplied once."""
    shape = static_extents(source.ty) or ()
    return 2.0 * weights.size * (points - prod(shape) // shape[axis])
