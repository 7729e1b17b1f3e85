"""`Resize` and `Upsample`, where TVM's importer would take them for others, or not at all.

rewrite:
    Upsample(x, scales)                    =>  Resize(x, scales), asymmetric, floor
    Resize(x), of planes, as TVM reads it  =>  Resize(x, sizes), of all axes
    Resize(x), to nearest elements         =>  Gather(Gather(x, rows), columns)
    Resize(x), of few elements each        =>  Gather(x, i) * a + Gather(x, j) * b, axis by axis
    Resize(x), of more                     =>  MatMul(MatMul(shares, x), shares)
    of what lies outside of x              =>  Where(inside, ..., extrapolation_value)

Interpolation is the same sum of elements for every row of an axis. A sum of gathers is one kernel,
of both axes; a product takes every element of an axis, but many at once (and makes no number of
what has no share in an infinity). Of cubic ones TVM sums 16 elements, where axis by axis they are
8. Whole factors to nearest elements stay one operator: `i * in // out`, in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.affine import FLOATS, constant_of, int_of, text_of
from tvm_ext.frontend.interpolate import Filter, taps
from tvm_ext.frontend.nearest import nearest, repeats
from tvm_ext.frontend.nodes import constant, extents_of, node_of
from tvm_ext.frontend.resize_axes import (
    CROP,
    Along,
    are_planes,
    is_old,
    is_read,
    places,
    resized_axes,
)

DENSE = 8
"""Elements that a product takes in the time of one that is gathered."""
MORE = ("axes", "antialias", "keep_aspect_ratio_policy")
"""Attributes that TVM's importer does not know."""
REPEATED = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""How every element is taken equally often, one after another, and in integers."""


def _resize(op: Any, x: Any) -> Any:
    return op.Resize(x, _allow_other_inputs=True, _outputs=["y"])


def _upsample(op: Any, x: Any) -> Any:
    return op.Upsample(x, _allow_other_inputs=True, _outputs=["y"])


def _placed(op: Any, x: ir.Value, y: ir.Value) -> Any:
    """Before opset 11: from the first element on; the nearest before it, or behind it in what
    becomes smaller, as ONNX Runtime takes them."""
    node = node_of(y)
    scales = constant_of(node.inputs[-1]) if is_old(node) else None
    if scales is None:
        return None
    return op.Resize(
        x,
        None,
        node.inputs[-1],
        mode=text_of(node, "mode", "nearest"),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="ceil" if (scales <= 1).all() else "floor",
    )


def _restated(op: Any, x: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    axes = resized_axes(node)
    mode = text_of(node, "mode", "nearest")
    to_nearest = mode == "nearest"
    if axes is None or (not to_nearest and x.dtype not in FLOATS):
        return None
    if not axes:
        return op.Identity(x)
    if mode == "linear" and is_read(node, axes):
        return _stated(op, x, y, axes)
    transform = text_of(node, "coordinate_transformation_mode", "half_pixel")
    at = [places(along, transform) for along in axes]
    inside = [(a >= 0) & (a <= along.extent - 1) for along, a in zip(axes, at, strict=True)]
    cropped = transform == CROP and not all(map(np.all, inside))
    if not to_nearest:
        made = _interpolated(op, x, y, axes, at)
    else:
        rounding = text_of(node, "nearest_mode", "round_prefer_floor")
        index = [nearest(a, along.extent, rounding) for along, a in zip(axes, at, strict=True)]
        repeated = all(repeats(i, along.extent) for along, i in zip(axes, index, strict=True))
        if repeated and not cropped and are_planes(node, axes):
            return _stated(op, x, y, axes, **REPEATED)
        made = _taken(op, x, y, axes, index)
    return _filled(op, made, x, y, axes, inside) if cropped else made


def _stated(op: Any, x: ir.Value, y: ir.Value, axes: Sequence[Along], **places: str) -> Any:
    """The same of all axes, with these attributes; None where it is so already."""
    given = node_of(y).attributes
    stated = {name: attribute.value for name, attribute in given.items() if name not in MORE}
    if len(stated) == len(given) and places.items() <= stated.items():
        return None
    extents = extents_of(x)
    for along in axes:
        extents[along.axis] = along.size
    sizes = constant(op, f"{y.name}_sizes", np.array(extents, np.int64))
    return op.Resize(x, None, None, sizes, **stated | places)


def _taken(
    op: Any, x: ir.Value, y: ir.Value, axes: Sequence[Along], indices: Sequence[np.ndarray]
) -> Any:
    """The elements of these indices along each axis."""
    value = op.Identity(x)
    for along, index in zip(axes, indices, strict=True):
        if not np.array_equal(index, np.arange(along.extent)):
            chosen = constant(op, f"{y.name}_index{along.axis}", index)
            value = op.Gather(value, chosen, axis=along.axis)
    return value


def _interpolated(
    op: Any, x: ir.Value, y: ir.Value, axes: Sequence[Along], at: Sequence[np.ndarray]
) -> Any:
    """Along one axis after another, those first that become smallest; half floats as floats."""
    node = node_of(y)
    cubic = node.attributes.get_float("cubic_coeff_a", -0.75)
    mixed = Filter(
        cubic if text_of(node, "mode", "nearest") == "cubic" else None,
        antialias=int_of(node, "antialias", 0) == 1,
        exclude_outside=int_of(node, "exclude_outside", 0) == 1,
    )
    narrow = x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    kind = np.float64 if x.dtype == ir.DataType.DOUBLE else np.float32
    value = op.Cast(x, to=ir.DataType.FLOAT) if narrow else x
    order = sorted(zip(axes, at, strict=True), key=lambda one: one[0].size / one[0].extent)
    for along, place in order:
        value = _summed(op, value, x, y, along, mixed.shares(along, place).astype(kind))
    return op.Cast(value, to=x.dtype) if narrow else value


def _summed(op: Any, value: Any, x: ir.Value, y: ir.Value, along: Along, table: np.ndarray) -> Any:
    """Sums of the elements of an axis, by what each has in them, [size, extent]."""
    index, shares = taps(table)
    rank = len(x.shape or ())
    behind = rank - 1 - along.axis
    if DENSE * len(index) ** 2 > along.extent:
        if not behind:
            return op.MatMul(value, constant(op, f"{y.name}_shares{along.axis}", table.T))
        left = constant(op, f"{y.name}_shares{along.axis}", table)
        turned = list(range(rank))
        turned[along.axis], turned[-2] = turned[-2], turned[along.axis]
        if behind == 1:
            return op.MatMul(left, value)
        return op.Transpose(op.MatMul(left, op.Transpose(value, perm=turned)), perm=turned)
    parts = []
    for tap, (chosen, share) in enumerate(zip(index, shares, strict=True)):
        name = f"{y.name}_{{}}{along.axis}_{tap}"
        taken = op.Gather(value, constant(op, name.format("index"), chosen), axis=along.axis)
        share = share.reshape(-1, *[1] * behind)
        parts.append(op.Mul(taken, constant(op, name.format("share"), share)))
    return reduce(op.Add, parts)


def _filled(
    op: Any,
    value: Any,
    x: ir.Value,
    y: ir.Value,
    axes: Sequence[Along],
    inside: Sequence[np.ndarray],
) -> Any:
    """What lies outside, along any axis, as the number that is said."""
    assert x.dtype is not None
    number = node_of(y).attributes.get_float("extrapolation_value", 0.0)
    filler = constant(op, f"{y.name}_filler", np.array(number, x.dtype.numpy()))
    for along, there in zip(axes, inside, strict=True):
        if not there.all():
            mask = there.reshape(-1, *[1] * (len(x.shape or ()) - 1 - along.axis))
            value = op.Where(constant(op, f"{y.name}_inside{along.axis}", mask), value, filler)
    return value


old = tuple(RewriteRule(p, _placed, name="OldResize") for p in (_resize, _upsample))
rules = (RewriteRule(_resize, _restated, name="Resize"),)
