"""Products by weights of a few bits, as Microsoft's operator packs them, as products of floats.

    MatMulNBits(x, B, scales, points)   →   MatMul(x, W)       W[k, n] = (B[n, k] - points) * scales

`B` holds blocks of the rows of `W` one after another, a byte several elements, the first of them in
its lowest bits; each block has a scale and, also packed, a zero point.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, constant_of, int_of
from tvm_ext.frontend.quantised import MICROSOFT

BITS = (2, 4, 8)
WEIGHT, SCALES, POINTS, ORDER, BIAS = range(1, 6)
"""Places of its inputs behind x."""


def unpack_weights(graph: ir.Graph) -> None:
    """Replace each such product by a constant by a product of floats, in place."""
    for node in list(graph):
        if (node.domain, node.op_type) != (MICROSOFT, "MatMulNBits"):
            continue
        weight = _unpacked(node)
        if weight is None:
            continue
        (old,) = node.outputs
        operands = [node.inputs[0], add_initialiser(graph, f"{old.name}_weight", weight)]
        made = [ir.Node("", "MatMul", operands, name=node.name)]
        bias = _input(node, BIAS)
        if bias is not None:
            made.append(ir.Node("", "Add", [made[0].outputs[0], bias], name=f"{node.name}_bias"))
        new = made[-1].outputs[0]
        new.shape, new.type = old.shape, old.type
        name = old.name
        graph.insert_before(node, made)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        new.name = name


def _unpacked(node: ir.Node) -> np.ndarray | None:
    """W [K, N]; None where something is not known, or has a form that is not read."""
    bits, block = int_of(node, "bits", 4), int_of(node, "block_size", 0)
    inner, columns = int_of(node, "K", 0), int_of(node, "N", 0)
    packed, scales = (constant_of(_input(node, place)) for place in (WEIGHT, SCALES))
    point = _input(node, POINTS)
    points = constant_of(point)
    if packed is None or scales is None or (point is not None) != (points is not None):
        return None
    if bits not in BITS or not block or _input(node, ORDER) is not None or packed.dtype != np.uint8:
        return None
    blocks = -(-inner // block)
    elements = _elements(packed.reshape(columns, blocks, -1), bits)[..., :block]
    scale = scales.reshape(columns, blocks, 1)
    middle = np.full((columns, blocks, 1), 1 << (bits - 1), np.float32)
    if points is not None and points.dtype == np.uint8:
        middle[..., 0] = _elements(points.reshape(columns, -1), bits)[:, :blocks]
    elif points is not None:
        middle[..., 0] = points.reshape(columns, blocks)
    weight = (elements - middle) * scale.astype(np.float32)
    rows = weight.reshape(columns, -1)[:, :inner]
    return np.ascontiguousarray(rows.T).astype(scales.dtype)


def _elements(packed: np.ndarray, bits: int) -> np.ndarray:
    """The elements of bytes [.., b], as floats [.., b * 8 / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*packed.shape[:-1], -1).astype(np.float32)


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None
