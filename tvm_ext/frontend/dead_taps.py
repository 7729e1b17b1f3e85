"""Convolutions without the taps that lie in padding wherever they are.

rewrite:
    Conv(x[14, 14], w[3, 3]), dilations 24, pads 24   =>   Conv(x, w[1:2, 1:2]), pads 0

Pyramids of dilated convolutions (DeepLab, Chen et al. 2017, section 3.3: "the filter degenerates to
a simple 1x1 filter") have them where an image is smaller than it was in training.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, extents_of, node_of


class _Axis(NamedTuple):
    """A spatial axis: what it keeps of the taps, and the padding then."""

    first: int
    taps: int
    before: int
    after: int
    dilation: int


def _axis(extent: int, taps: int, stride: int, dilation: int, before: int, after: int) -> _Axis:
    """From the first tap to the last that ever reads an element; all, if that is none."""
    reach = dilation * (taps - 1) + 1
    outputs = (extent + before + after - reach) // stride + 1
    places = np.arange(outputs) * stride - before
    alive = [
        tap
        for tap in range(taps)
        if ((places + tap * dilation >= 0) & (places + tap * dilation < extent)).any()
    ]
    first, last = (alive[0], alive[-1]) if alive else (0, taps - 1)
    cut = (first * dilation, (taps - 1 - last) * dilation)
    if cut[0] > before or cut[1] > after:
        return _Axis(0, taps, before, after, dilation)
    kept = last - first + 1
    return _Axis(first, kept, before - cut[0], after - cut[1], dilation if kept > 1 else 1)


def _axes(x: ir.Value, weights: ir.Value, node: ir.Node) -> list[_Axis]:
    """The axes after the cut; none if something is not known, or nothing to be cut."""
    extents, taps = extents_of(x, 2), extents_of(weights, 2)
    if weights.const_value is None or not len(extents) == len(taps) > 0:
        return []
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return []
    ones = [1] * len(taps)
    strides, dilations = (node.attributes.get_ints(key, ones) for key in ("strides", "dilations"))
    pads = node.attributes.get_ints("pads", [0] * 2 * len(taps))
    before, after = pads[: len(taps)], pads[len(taps) :]
    axes = list(map(_axis, extents, taps, strides, dilations, before, after))
    return axes if [axis.taps for axis in axes] != taps else []


def _convolution(op: Any, x: Any, weights: Any) -> Any:
    return op.Conv(x, weights, _allow_other_inputs=True, _outputs=["y"])


def _has_dead_taps(_: Any, x: ir.Value, weights: ir.Value, y: ir.Value, **__: Any) -> bool:
    return bool(_axes(x, weights, node_of(y)))


def _without(op: Any, x: ir.Value, weights: ir.Value, y: ir.Value, **_: Any) -> Any:
    node = node_of(y)
    axes = _axes(x, weights, node)
    assert weights.const_value is not None
    kept = tuple(slice(axis.first, axis.first + axis.taps) for axis in axes)
    places = (slice(None), slice(None), *kept)
    array = np.ascontiguousarray(weights.const_value.numpy()[places])
    attributes = {key: attribute.value for key, attribute in node.attributes.items()}
    attributes["kernel_shape"] = [axis.taps for axis in axes]
    attributes["dilations"] = [axis.dilation for axis in axes]
    attributes["pads"] = [axis.before for axis in axes] + [axis.after for axis in axes]
    return op.Conv(x, constant(op, f"{y.name}_taps", array), *node.inputs[2:], **attributes)


rules = (RewriteRule(_convolution, _without, _has_dead_taps, name="DeadTaps"),)
"""The rule above."""
