"""Operators that the importer refuses as exporters of TensorFlow's write them, as it reads them.

rewrite:
    OneHot(i, depth, (off, on))         =>   Where(i == (0, 1, .., depth - 1), on, off), of negative
                                             i + depth
    ConvTranspose(x, w), output_shape   =>   ConvTranspose(x, w), pads and output_padding
    Pow(x, e) of two types              =>   Pow(x, Cast(e)), or of integers Cast(Pow(Cast(x), e))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, extents_of, from_the_front, node_of, opset_of, parted


def _one_hot(op: Any, x: Any, depth: Any, values: Any) -> Any:
    return op.OneHot(x, depth, values, _outputs=["y"])


def _of_known_depth(_: Any, x: ir.Value, depth: ir.Value, values: ir.Value, **__: Any) -> bool:
    return None not in (depth.const_value, values.const_value, x.shape)


def _compared(op: Any, x: ir.Value, depth: ir.Value, values: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    assert depth.const_value is not None
    assert values.const_value is not None
    count = int(depth.const_value.numpy().item())
    off, on = values.const_value.numpy()
    rank = len(x.shape or ())
    axis = node.attributes.get_int("axis", -1) % (rank + 1)
    row = np.arange(count, dtype=np.int64).reshape([-1] + [1] * (rank - axis))

    def known(name: str, value: Any) -> ir.Value:
        return constant(op, f"{y.name}_{name}", value)

    index = from_the_front(op, x, count, y.name or "")
    if opset_of(node) < 13:
        index = op.Unsqueeze(index, axes=[axis])
    else:
        index = op.Unsqueeze(index, known("axes", np.array([axis], np.int64)))
    return op.Where(op.Equal(index, known("row", row)), known("on", on), known("off", off))


def _conv_transpose(op: Any, x: Any, weights: Any) -> Any:
    return op.ConvTranspose(x, weights, _allow_other_inputs=True, _outputs=["y"])


def _pads(node: ir.Node, x: ir.Value, weights: ir.Value) -> tuple[list[int], ...] | None:
    """Pads before and after, and output padding, of what gives the wanted extents.

    An odd number of pads has one more at the end with SAME_UPPER, at the beginning else. None
    where an extent is not known, or wanted past what a stride adds (the importer's limit).
    """
    extents, sizes = extents_of(x, 2), extents_of(weights, 2)
    wanted = node.attributes.get_ints("output_shape", [])
    if not len(wanted) == len(extents) == len(sizes) > 0:
        return None
    ones = [1] * len(sizes)
    strides, dilations = (list(node.attributes.get_ints(a, ones)) for a in ("strides", "dilations"))
    more = list(node.attributes.get_ints("output_padding", [0] * len(sizes)))
    late = node.attributes.get_string("auto_pad", "NOTSET") == "SAME_UPPER"
    begins, ends = [], []
    for axis, extent in enumerate(wanted):
        reach = strides[axis] * (extents[axis] - 1) + (sizes[axis] - 1) * dilations[axis] + 1
        total = reach + more[axis] - extent
        more[axis] += max(0, -total)
        begin, end = parted(total, late)
        begins.append(begin)
        ends.append(end)
    if any(added >= stride for added, stride in zip(more, strides, strict=True)):
        return None
    return begins, ends, more


def _to_a_shape(_: Any, x: ir.Value, weights: ir.Value, y: ir.Value, **__: Any) -> bool:
    node = y.producer()
    return node is not None and _pads(node, x, weights) is not None


def _padded(op: Any, x: ir.Value, weights: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    pads = _pads(node, x, weights)
    assert pads is not None
    begins, ends, more = pads
    others = {
        name: attribute.value
        for name, attribute in node.attributes.items()
        if name not in ("output_shape", "auto_pad", "pads", "output_padding")
    }
    return op.ConvTranspose(*node.inputs, pads=begins + ends, output_padding=more, **others)


def _power(op: Any, x: Any, exponent: Any) -> Any:
    return op.Pow(x, exponent, _outputs=["y"])


def _of_two_types(_: Any, x: ir.Value, exponent: ir.Value, **__: Any) -> bool:
    return None not in (x.dtype, exponent.dtype) and x.dtype != exponent.dtype


def _of_one_type(op: Any, x: ir.Value, exponent: ir.Value, **_: Any) -> Any:
    assert exponent.dtype is not None
    assert x.dtype is not None
    if exponent.dtype.is_floating_point() and not x.dtype.is_floating_point():
        return op.Cast(op.Pow(op.Cast(x, to=exponent.dtype), exponent), to=x.dtype)
    return op.Pow(x, op.Cast(exponent, to=x.dtype))


rules = (
    RewriteRule(_one_hot, _compared, _of_known_depth, name="OneHot"),
    RewriteRule(_conv_transpose, _padded, _to_a_shape, name="ConvTransposeToAShape"),
    RewriteRule(_power, _of_one_type, _of_two_types, name="PowerOfOneType"),
)
