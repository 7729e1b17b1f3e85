"""Operators that take more elements than there are: with shapes that are known they are refused."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from tvm_ext.frontend.affine import constant_of


def too_few(nodes: Iterable[ir.Node]) -> str | None:
    """The first of them and what is wrong, None if none is.

    An index known to lie outside, a mirror image of more than there is beside the edge.
    """
    for node in nodes:
        reason = _index(node) or _mirror(node)
        if reason:
            return f"{node.op_type} (node {node.name!r}) {reason}"
    return None


def _extents(value: ir.Value | None) -> list[int] | None:
    shape = None if value is None else value.shape
    return [int(e) for e in shape.numpy()] if shape is not None and shape.is_static() else None


def _index(node: ir.Node) -> str | None:
    if node.op_type != "Gather" or node.domain:
        return None
    data, places = _extents(node.inputs[0]), constant_of(node.inputs[1])
    if not data or places is None:
        return None
    known = data[node.attributes.get_int("axis", 0)]
    outside = places[(places < -known) | (places >= known)]
    return f"reads element {int(outside[0])} of {known}" if outside.size else None


def _mirror(node: ir.Node) -> str | None:
    if node.op_type != "Pad" or node.attributes.get_string("mode", "constant") != "reflect":
        return None
    data, pads = _extents(node.inputs[0]), constant_of(node.inputs[1])
    if data is None or pads is None or pads.size != 2 * len(data):
        return None  # of some axes only
    for extent, more in zip((*data, *data), pads.reshape(-1), strict=True):
        if more >= extent:
            return f"mirrors {int(more)} elements beside the first of {extent}"
    return None
