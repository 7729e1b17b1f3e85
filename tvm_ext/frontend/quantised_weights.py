"""Quantised constants as the floats that they stand for.

    Conv(x, DequantizeLinear(w of 8 bits, scale, point))   →   Conv(x, w)

onnxscript leaves these as they are, to keep what a quantiser has written; a product would then have
weights that nobody knows before a run. Weights that a model quantises itself (quantisation-aware
training leaves them in floats) are rounded here.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, constant_of, int_of
from tvm_ext.frontend.narrow_types import HELD

INTEGERS = frozenset(ir.DataType[name] for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32"))
"""Types of quantised tensors, besides those of `HELD`."""


def fold_quantised(graph: ir.Graph) -> None:
    """Replace each `QuantizeLinear` and `DequantizeLinear` of constants by its result, in place."""
    folded = {"QuantizeLinear": _quantised, "DequantizeLinear": _dequantised}
    for node in list(graph):
        if node.domain or node.op_type not in folded:
            continue
        array = folded[node.op_type](node)
        if array is None:
            continue
        (old,) = node.outputs
        new = add_initialiser(graph, f"{old.name}_known", array)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(node, safe=True)


def _dequantised(node: ir.Node) -> np.ndarray | None:
    """(x - point) * scale"""
    given, quantised = _operands(node), node.inputs[0]
    if given is None or quantised is None or quantised.dtype not in INTEGERS | HELD.keys():
        return None
    x, scale, point = given
    wide = np.dtype(np.float32 if quantised.dtype.is_floating_point() else np.int64)
    steps = x.astype(wide)
    steps = steps if point is None else np.subtract(steps, point.astype(wide))
    floats = np.result_type(scale.dtype, np.float32)  # a bias is more than 16 bits hold
    result = steps.astype(floats) * scale.astype(floats)
    return result.astype(_stated(node, scale.dtype))


def _quantised(node: ir.Node) -> np.ndarray | None:
    """round(x / scale) + point, within the type of the point; of narrow floats the nearest."""
    given = _operands(node)
    if given is None or "precision" in node.attributes:
        return None
    x, scale, point = given
    dtype = point.dtype if point is not None else _stated(node, np.dtype(np.uint8))
    if ir.DataType.from_numpy(dtype).is_floating_point():
        floats = np.asarray(x / scale, np.float32)
        floats = floats if point is None else floats + point.astype(np.float32)
        ends = ml_dtypes.finfo(dtype)
        saturates = int_of(node, "saturate", 1)
        return (np.clip(floats, ends.min, ends.max) if saturates else floats).astype(dtype)
    steps = np.rint(x / scale) + (0 if point is None else point.astype(np.int64))
    limits = ml_dtypes.iinfo(dtype)
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def _stated(node: ir.Node, usual: np.dtype) -> np.dtype:
    """The type that a node says its result is of; the usual one if it says none."""
    stated = int_of(node, "output_dtype", 0)
    return ir.DataType(stated).numpy() if stated else usual


def _operands(node: ir.Node) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """A tensor, its scales and its zero points, as they are broadcast to it; None if one of them is
    not known."""
    x, scale, point = (*map(constant_of, node.inputs), None)[:3]
    has_point = len(node.inputs) > 2 and node.inputs[2] is not None
    if x is None or scale is None or has_point != (point is not None):
        return None
    axis, block = int_of(node, "axis", 1), int_of(node, "block_size", 0)

    def broadcast(array: np.ndarray) -> np.ndarray:
        if array.size == 1:
            return array.reshape(())
        if block:
            return np.repeat(array, block, axis).take(np.arange(x.shape[axis]), axis)
        return array.reshape([-1 if place == axis % x.ndim else 1 for place in range(x.ndim)])

    return x, broadcast(scale), None if point is None else broadcast(point)
