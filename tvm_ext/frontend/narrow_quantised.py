"""Quantising to narrow numbers, and by blocks, as arithmetic: TVM's importer does neither.

rewrite:
    QuantizeLinear(x, scale, point)    =>  Cast(Clip(Round(x / scale) + point)), or of narrow floats
                                           those nearest to x / scale
    DequantizeLinear(x, scale, point)  =>  (x - point) scale

Scales and points of blocks are given to each of their elements: `Gather(scale, (0, 0, .., 1, 1))`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.narrow_casts import rounded
from tvm_ext.frontend.narrow_types import BYTE, HELD
from tvm_ext.frontend.nodes import constant, extents_of, node_of


def _quantise(op: Any, x: Any, scale: Any) -> Any:
    return op.QuantizeLinear(x, scale, _allow_other_inputs=True, _outputs=["y"])


def _dequantise(op: Any, x: Any, scale: Any) -> Any:
    return op.DequantizeLinear(x, scale, _allow_other_inputs=True, _outputs=["y"])


def _is_apart(_: Any, x: ir.Value, scale: ir.Value, y: ir.Value) -> bool:
    """Whether TVM's importer does not read a node whose shapes are known."""
    by_blocks = node_of(y).attributes.get_int("block_size", 0)
    known = x.shape is not None and x.shape.is_static() and scale.shape is not None
    return known and y.dtype is not None and bool(by_blocks or x.dtype in HELD or y.dtype in HELD)


def _spread(op: Any, given: ir.Value, x: ir.Value, y: ir.Value) -> Any:
    """Scales or points as they are broadcast to x."""
    attributes, extents = node_of(y).attributes, extents_of(x)
    rank, size = len(extents), extents_of(given)
    axis = attributes.get_int("axis", 1) % rank if rank else 0
    block = attributes.get_int("block_size", 0)
    if block and len(size) == rank:
        places = np.arange(extents[axis]) // block
        return op.Gather(given, constant(op, f"{given.name}_{y.name}_places", places), axis=axis)
    shape = [] if size in ([], [1]) else [-1 if place == axis else 1 for place in range(rank)]
    target = constant(op, f"{given.name}_{y.name}_shape", np.array(shape, np.int64))
    return op.Reshape(given, target)


def _shifts(op: Any, x: ir.Value, y: ir.Value) -> list[Any]:
    """The zero points as floats; none without."""
    inputs = node_of(y).inputs
    points = [point for point in inputs[2:] if point is not None]
    return [op.Cast(_spread(op, point, x, y), to=ir.DataType.FLOAT) for point in points]


def _quantised(op: Any, x: ir.Value, scale: ir.Value, y: ir.Value) -> Any:
    attributes, kind = node_of(y).attributes, y.dtype
    assert kind is not None
    precision = attributes.get_int("precision", 0) or scale.dtype
    parts = [op.Cast(value, to=precision) for value in (x, _spread(op, scale, x, y))]
    steps = op.Cast(op.Div(*parts), to=ir.DataType.FLOAT)
    whole = not kind.is_floating_point()
    steps = op.Round(steps) if whole else steps
    for shift in _shifts(op, x, y):
        steps = op.Add(steps, shift)
    if not whole:
        saturate = bool(attributes.get_int("saturate", 1)) or kind.bitwidth < BYTE
        return rounded(op, steps, y, kind, saturate=saturate)
    info = ml_dtypes.iinfo(kind.numpy())
    limits = [constant(op, f"{y.name}_{n}", np.float32(n)) for n in (info.min, info.max)]
    return op.Cast(op.Clip(steps, *limits), to=HELD.get(kind, kind))


def _dequantised(op: Any, x: ir.Value, scale: ir.Value, y: ir.Value) -> Any:
    wide = op.Cast(x, to=ir.DataType.FLOAT)
    for shift in _shifts(op, x, y):
        wide = op.Sub(wide, shift)
    factor = op.Cast(_spread(op, scale, x, y), to=ir.DataType.FLOAT)
    return op.Cast(op.Mul(wide, factor), to=y.dtype)


rules = (
    RewriteRule(_quantise, _quantised, _is_apart, name="QuantiseApart"),
    RewriteRule(_dequantise, _dequantised, _is_apart, name="DequantiseApart"),
)
