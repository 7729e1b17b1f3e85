"""Weights of a few bits, as Microsoft's operators pack them, as floats.

    MatMulNBits(x, B, scales, points)            →   MatMul(x, W)     W[k, n] = W'[n, k]
    GatherBlockQuantized(B, at, scales, points)  →   Gather(W', at)   W' = (B - points) * scales

`B` holds blocks of the rows of `W'` one after another, a byte several elements, the first of them
in its lowest bits; each block has a scale and, also packed, a zero point.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, constant_of, int_of
from tvm_ext.frontend.quantised import MICROSOFT

BITS = (2, 4, 8)
WEIGHT, SCALES, POINTS, ORDER, BIAS = range(1, 6)
"""Places of a product's inputs behind x."""


def unpack_weights(graph: ir.Graph) -> None:
    """Replace each such operator on a constant by one on floats, in place."""
    ways = {"MatMulNBits": _product, "GatherBlockQuantized": _gathered}
    for node in list(graph):
        way = ways.get(node.op_type) if node.domain == MICROSOFT else None
        made = way(graph, node) if way is not None else None
        if made is None:
            continue
        (old,) = node.outputs
        new = made[-1].outputs[0]
        new.shape, new.type = old.shape, old.type
        name = old.name
        graph.insert_before(node, made)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        new.name = name


def _product(graph: ir.Graph, node: ir.Node) -> list[ir.Node] | None:
    """A product of floats; None where something is not known, or has a form that is not read."""
    inner, columns = int_of(node, "K", 0), int_of(node, "N", 0)
    rows = _rows(node, (WEIGHT, SCALES, POINTS), columns, inner)
    if rows is None or _input(node, ORDER) is not None:
        return None
    weight = np.ascontiguousarray(rows.T)
    operands = [node.inputs[0], add_initialiser(graph, f"{node.outputs[0].name}_weight", weight)]
    made = [ir.Node("", "MatMul", operands, name=node.name)]
    bias = _input(node, BIAS)
    if bias is not None:
        made.append(ir.Node("", "Add", [made[0].outputs[0], bias], name=f"{node.name}_bias"))
    return made


def _gathered(graph: ir.Graph, node: ir.Node) -> list[ir.Node] | None:
    """Rows of a table of floats; None as for a product."""
    packed = constant_of(node.inputs[0])
    bits = int_of(node, "bits", 4)
    if packed is None or packed.ndim != 2 or int_of(node, "gather_axis", 0) != 0:
        return None
    if int_of(node, "quantize_axis", 1) not in (1, -1):
        return None
    count, size = packed.shape
    rows = _rows(node, (0, 2, 3), count, size * 8 // bits, default_block=128)
    if rows is None:
        return None
    table = add_initialiser(graph, f"{node.outputs[0].name}_table", rows)
    return [ir.Node("", "Gather", [table, node.inputs[1]], name=node.name)]


def _rows(
    node: ir.Node, places: tuple[int, int, int], count: int, size: int, default_block: int = 0
) -> np.ndarray | None:
    """W' [count, size] of what is packed, its scales and its zero points."""
    bits, block = int_of(node, "bits", 4), int_of(node, "block_size", default_block)
    point = _input(node, places[2])
    packed, scales = (constant_of(_input(node, place)) for place in places[:2])
    points = constant_of(point)
    if packed is None or scales is None or (point is not None) != (points is not None):
        return None
    if bits not in BITS or not block or packed.dtype != np.uint8:
        return None
    blocks = -(-size // block)
    apart = _elements(packed.reshape(count, -1), bits)
    padded = np.pad(apart, ((0, 0), (0, blocks * block - apart.shape[1])))
    elements = padded.reshape(count, blocks, block)
    scale = scales.reshape(count, blocks, 1)
    middle = np.full((count, blocks, 1), 1 << (bits - 1), np.float32)
    if points is not None and points.dtype == np.uint8:
        middle[..., 0] = _elements(points.reshape(count, -1), bits)[:, :blocks]
    elif points is not None:
        middle[..., 0] = points.reshape(count, blocks)
    rows = ((elements - middle) * scale.astype(np.float32)).reshape(count, -1)[:, :size]
    return np.ascontiguousarray(rows).astype(scales.dtype)


def _elements(packed: np.ndarray, bits: int) -> np.ndarray:
    """The elements of bytes [.., b], as floats [.., b * 8 / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*packed.shape[:-1], -1).astype(np.float32)


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None
