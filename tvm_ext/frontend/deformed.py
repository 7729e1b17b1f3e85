"""Convolutions whose taps lie where another layer says: samples of an image, and their products.

rewrite:
    DeformConv(x, w, offsets, b, mask)  =>  Conv(Reshape(GridSample(x, grid)) mask, Reshape(w), b)

with the grid [n g, taps out, out, 2] of where the taps would lie, moved by the offsets. Samples
on the way from an image's edge to what lies beyond it, zeros, are in between, as in torchvision;
their channels with all taps of each are the channels of a convolution of one tap.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, extents_of, is_float, node_of


class _Deformed(NamedTuple):
    """What a `DeformConv` node asks for, of two dimensions."""

    batch: int
    channels: int
    groups: int
    """Groups of channels with offsets of their own."""
    image: tuple[int, int]
    taps: tuple[int, int]
    outer: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]
    """Those before the image."""

    def places(self) -> np.ndarray:
        """Where taps of no offset lie, [kh, kw, oh, ow, 2]: row and column."""
        along = [
            np.arange(self.outer[axis]) * self.strides[axis]
            + np.arange(self.taps[axis])[:, None] * self.dilations[axis]
            - self.pads[axis]
            for axis in (0, 1)
        ]
        rows, columns = along[0][:, None, :, None], along[1][None, :, None, :]
        return np.stack(np.broadcast_arrays(rows, columns), axis=-1)


def _asked(x: ir.Value, weights: ir.Value, offsets: ir.Value, y: ir.Value) -> _Deformed | None:
    """None where extents are not known, or are not those of images."""
    node = node_of(y)
    data, kernel, moved = (extents_of(value) for value in (x, weights, offsets))
    if not len(data) == len(kernel) == len(moved) == 4:
        return None

    def pair(name: str, default: int) -> tuple[int, int]:
        first, second = node.attributes.get_ints(name, [default] * 4)[:2]
        return first, second

    return _Deformed(
        batch=data[0],
        channels=data[1],
        groups=node.attributes.get_int("offset_group", 1),
        image=(data[2], data[3]),
        taps=(kernel[2], kernel[3]),
        outer=(moved[2], moved[3]),
        strides=pair("strides", 1),
        dilations=pair("dilations", 1),
        pads=pair("pads", 0),
    )


def _deform_conv(op: Any, x: Any, weights: Any, offsets: Any) -> Any:
    return op.DeformConv(x, weights, offsets, _allow_other_inputs=True, _outputs=["y"])


def _is_known(_: Any, x: ir.Value, weights: ir.Value, offsets: ir.Value, y: ir.Value) -> bool:
    return is_float(_, x) and _asked(x, weights, offsets, y) is not None


def _sampled(op: Any, x: ir.Value, weights: ir.Value, offsets: ir.Value, y: ir.Value) -> Any:
    node, asked = node_of(y), _asked(x, weights, offsets, y)
    assert asked is not None
    bias, mask = ([*node.inputs[3:], None, None])[:2]
    taps, outer = prod(asked.taps), asked.outer
    each = asked.channels // asked.groups

    def reshape(value: Any, name: str, *shape: int) -> Any:
        return op.Reshape(value, constant(op, f"{y.name}_{name}", np.array(shape, np.int64)))

    # -1 .. 1 of a grid are the outer edges of the first and the last element
    unit = 2 / np.array(asked.image)
    still = (asked.places() + 0.5) * unit - 1
    still = np.moveaxis(still, -1, 2).reshape(1, taps, 2, *outer)
    scale = constant(op, f"{y.name}_unit", unit.astype(np.float32).reshape(2, 1, 1))
    count = asked.batch * asked.groups
    moved = op.Mul(reshape(offsets, "moved", count, taps, 2, *outer), scale)
    moved = op.Add(moved, constant(op, f"{y.name}_still", still.astype(np.float32)))
    turned = op.Gather(moved, constant(op, f"{y.name}_xy", np.array([1, 0], np.int64)), axis=2)
    grid = op.Transpose(turned, perm=[0, 1, 3, 4, 2])
    grid = reshape(grid, "grid", count, taps * outer[0], outer[1], 2)
    columns = op.GridSample(reshape(x, "image", count, each, *asked.image), grid)
    if mask is not None:
        columns = reshape(columns, "apart", count, each, taps, *outer)
        columns = op.Mul(columns, reshape(mask, "mask", count, 1, taps, *outer))
    columns = reshape(columns, "columns", asked.batch, asked.channels * taps, *outer)
    rows = reshape(weights, "rows", 0, -1, 1, 1)
    group = node.attributes.get_int("group", 1)
    return op.Conv(columns, rows, *([] if bias is None else [bias]), group=group)


rules = (RewriteRule(_deform_conv, _sampled, _is_known, name="DeformConv"),)
