"""Types of numbers of eight bits and less that machines lack, and whether a graph has them."""

from __future__ import annotations

import onnx_ir as ir

from tvm_ext.frontend.affine import int_of

BYTE = 8
SAYS = ("to", "output_dtype")
"""Attributes by which a node says of what type its result is."""
_INTEGERS = {"INT": ir.DataType.INT8, "UINT": ir.DataType.UINT8}
HELD: dict[ir.DataType, ir.DataType] = {
    kind: _INTEGERS.get(kind.name.rstrip("0123456789"), ir.DataType.FLOAT)
    for kind in ir.DataType
    if kind.name.startswith(("INT2", "INT4", "UINT2", "UINT4", "FLOAT4", "FLOAT6", "FLOAT8"))
}
"""Such types, and what holds their numbers."""


def has_narrow(graph: ir.Graph) -> bool:
    """Whether a graph has such numbers, or takes others to them and back by blocks."""
    given = (*graph.inputs, *(value for value in graph.initializers.values() if value.uses()))
    return any(value.dtype in HELD for value in given) or any(
        int_of(node, "block_size", 0) or {int_of(node, name, 0) for name in SAYS} & HELD.keys()
        for node in graph.all_nodes()
        if not node.domain
    )
