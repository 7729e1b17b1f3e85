"""Tensors of no elements, which no kernel makes: a slice to nothing, what is padded by nothing.

what has no elements   →   a constant of none
Concat(none, x)        →   x
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser


def leave_out_nothing(graph: ir.Graph) -> None:
    """Leaves out what makes no elements, and what joins them to others, in place."""
    for node in list(graph):
        if all(_is_none(value) for value in node.outputs):
            for value in node.outputs:
                assert value.shape is not None
                assert value.dtype is not None
                none = np.empty(tuple(value.shape.numpy()), value.dtype.numpy())
                new = add_initialiser(graph, f"{value.name}_none", none)
                ir.convenience.replace_all_uses_with(value, new, replace_graph_outputs=True)
            graph.remove(node, safe=True)
        elif node.op_type == "Concat" and not node.domain:
            some = [value for value in node.inputs if not _is_none(value)]
            if some and len(some) < len(node.inputs):
                _join(graph, node, some)


def _is_none(value: ir.Value | None) -> bool:
    """Whether a tensor is known to have no elements."""
    if value is None or value.dtype is None or value.shape is None or not value.shape.is_static():
        return False
    extents = value.shape.numpy()
    return min(extents, default=1) >= 0 and not prod(extents)


def _join(graph: ir.Graph, node: ir.Node, some: list[ir.Value | None]) -> None:
    """Has a `Concat` read these alone."""
    (old,) = node.outputs
    if len(some) > 1:
        made = ir.node("Concat", some, {"axis": node.attributes.get_int("axis")}, name=node.name)
    else:
        made = ir.node("Identity", some, name=node.name)
    (new,) = made.outputs
    new.type, new.shape = old.type, old.shape
    graph.insert_before(node, made)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    new.name = old.name
