"""`MultiplyFewest`: what takes the channels of each point by itself is computed where points are
fewest.

    conv(concat(x, broadcast_to(g)), W)   →   conv(x, W[:, :c]) + conv(g, W[:, c:])
    conv(concat(x, resize2d(g)), W)       →   conv(x, W[:, :c]) + resize2d(conv(g, W[:, c:]))
    avg_pool2d(conv(x, W) + b)            →   conv(avg_pool2d(x), W) + b

A network that joins a summary of all points to each of them (PointNet, the pooled branch of an
atrous pyramid, a latent code beside coordinates) multiplies it anew at every point; one that joins
coarse maps to fine ones (the heads of SegFormer and DeepLab, the necks of detectors) at every fine
point; one that pools afterwards (DenseNet) at points that vanish. A point of an enlarged or pooled
image is a sum of other points by shares that are the same for all channels: a product of channels
may come before or after.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
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
    call_of,
    constant,
    count_uses,
    op_name,
    relax,
    rewritten,
    static_extents,
    tvm,
)

ENLARGING = "relax.image.resize2d"
REPEATING = frozenset({"relax.broadcast_to", ENLARGING, "relax.tile"})
"""What repeats a tensor along an axis of one element."""
POOLING = "relax.nn.avg_pool2d"
CHANNELS = 1
"""The axis of an image's."""
LEAST_CHANNELS = 48
"""Multiplications for each number that take longer than to write and read two more: an enlarged
result is added, and what is pooled may have more channels."""


class _Early(NamedTuple):
    """What is multiplied in place of a part, and the call that enlarges the product; None where a
    broadcast does."""

    source: Any
    enlarging: Any = None

    def pays(self, product: Product, columns: np.ndarray, points: int) -> bool:
        """Whether enough is not multiplied, of the points that the whole has, by these weights."""
        shape = static_extents(self.source.ty) or ()
        fewer = points - prod(shape) // shape[product.axis]
        few = self.enlarging is not None and shape[product.axis] * fewer < LEAST_CHANNELS * points
        return not few and 2.0 * columns.size * fewer >= LEAST_FLOPS


@tvm.transform.module_pass(opt_level=0, name="MultiplyFewest")
@dataclass(frozen=True)
class MultiplyFewest:
    """Rewrites products by a constant matrix, and convolutions of one tap: over a concatenation of
    which a part is the same along some axis, of an enlarged image or a concatenation of some, and
    before an average of windows."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; concatenations that nothing uses are dead."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses: Counter[Any] = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        alone = call.args and self._uses[call.args[0]] == 1
        call = self.visit_expr_post_order(call)
        if op_name(call) == POOLING and alone and _averages_whole_windows(call):
            return self._pooled_first(call)
        product, shape = Product.of(call), static_extents(call.args[0].ty) if call.args else None
        if product is None or shape is None:
            return call
        parts = self._parts(call.args[0], product.axis)
        shapes = [static_extents(part.ty) for part in parts]
        if not all(shapes):
            return call
        ends = np.cumsum([(each or ())[product.axis] for each in shapes])
        taken = np.split(product.weights, ends[:-1], product.summed)
        points = prod(shape) // shape[product.axis]
        early: dict[int, _Early] = {}
        for place, part in enumerate(parts):
            one = self._enlarged(part, call) or self._alike(part, product.axis)
            if one is not None and one.pays(product, taken[place], points):
                early[place] = one
        rest = [place for place in range(len(parts)) if place not in early]
        large = [place for place, one in early.items() if one.enlarging is not None]
        if not early or not (rest or large):
            return call
        terms = []
        if rest:
            kept = [parts[place] for place in rest]
            operand = kept[0] if len(rest) == 1 else relax.op.concat(kept, product.axis)
            weights = np.concatenate([taken[place] for place in rest], product.summed)
            terms.append(self._product(call, operand, weights))
        for place in (*large, *(place for place in early if place not in large)):
            source, enlarging = early[place]
            one = self._product(call, source, taken[place])
            terms.append(one if enlarging is None else self.builder_.emit(call_of(enlarging, one)))
        return reduce(lambda total, one: self.builder_.emit(relax.op.add(total, one)), terms)

    def _parts(self, operand: Any, axis: int) -> list[Any]:
        """What is concatenated along the axis; the operand itself if nothing is."""
        whole = bound(self, operand)
        if op_name(whole) != "relax.concat" or whole.attrs.axis is None:
            return [operand]
        given, shape = bound(self, whole.args[0]), static_extents(whole.ty)
        if shape is None or int(whole.attrs.axis) % len(shape) != axis:
            return [operand]
        return list(given.fields) if isinstance(given, relax.Tuple) else [operand]

    def _product(self, call: Any, operand: Any, weights: np.ndarray) -> Any:
        given = [self.builder_.emit(operand), constant(np.ascontiguousarray(weights))]
        return self.builder_.emit(with_attrs(call, given))

    def _alike(self, part: Any, axis: int) -> _Early | None:
        """What a tensor repeats along other axes; None if it repeats nothing, or channels."""
        call = bound(self, part)
        if op_name(call) not in REPEATING or _crops(call):
            return None
        source, after = call.args[0], static_extents(part.ty)
        before = static_extents(source.ty)
        if not before or not after or len(before) != len(after) or before[axis] != after[axis]:
            return None
        pairs = list(zip(before, after, strict=True))
        alike = all(one in (1, many) for one, many in pairs) and before != after
        return _Early(source) if alike else None

    def _enlarged(self, part: Any, call: Any) -> _Early | None:
        """The image that a part of what a convolution takes point by point is enlarged from."""
        made = bound(self, part)
        if op_name(made) != ENLARGING or op_name(call) == "relax.matmul" or _crops(made):
            return None
        before, after = static_extents(made.args[0].ty), static_extents(part.ty)
        if not before or not after or prod(before[2:]) == 1 or not takes_all_points(call):
            return None
        floats = is_float32(made.args[0]) and is_float32(call)
        larger = str(made.attrs.layout) == "NCHW" and prod(after) > prod(before)
        return _Early(made.args[0], made) if floats and larger else None

    def _pooled_first(self, call: Any) -> Any:
        """pool(conv(x) + b)  →  conv(pool(x)) + b"""
        made, bias = bound(self, call.args[0]), None
        if (found := with_bias(made, CHANNELS)) is not None:
            if self._uses[found.operand] != 1:
                return call
            made, bias = bound(self, found.operand), found.bias
        product, before, after = Product.of(made), static_extents(made.ty), static_extents(call.ty)
        if product is None or before is None or after is None or not takes_all_points(made):
            return call
        if product.axis != CHANNELS or not all(map(is_float32, (made, made.args[0]))):
            return call
        fewer = (prod(before) - prod(after)) // before[1]
        few = before[1] * fewer < LEAST_CHANNELS * prod(before) // before[1]
        if few or 2.0 * product.weights.size * fewer < LEAST_FLOPS:
            return call
        pooled = self.builder_.emit(call_of(call, made.args[0]))
        total = call_of(made, pooled)
        return total if bias is None else relax.op.add(self.builder_.emit(total), bias)


def _averages_whole_windows(call: Any) -> bool:
    """Whether a pool counts nothing beside its picture, and nothing twice."""
    attrs = call.attrs
    padded = any(int(pad) for pad in attrs.padding) or bool(attrs.ceil_mode)
    return not padded and str(attrs.layout) == "NCHW" and str(attrs.out_layout) in ("", "NCHW")


def _crops(call: Any) -> bool:
    """Whether a resizing may show what lies beside its picture."""
    mode = getattr(call.attrs, "coordinate_transformation_mode", "")
    return str(mode) == "tf_crop_and_resize"
