"""What rewriting rules ask of nodes and values, and what they write besides operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def node_of(value: ir.Value) -> ir.Node:
    """The node that makes a value which a rule has matched as a result."""
    node = value.producer()
    assert node is not None
    return node


def extents_of(value: ir.Value, first: int = 0) -> list[int]:
    """The extents from an axis on; none if one of them is not known."""
    extents = list(value.shape or ())[first:]
    numbers = [extent for extent in extents if isinstance(extent, int)]
    return numbers if len(numbers) == len(extents) else []


def is_float(_: Any, x: ir.Value, **__: Any) -> bool:
    """The condition of a rule that its `x` is float32."""
    return x.dtype == ir.DataType.FLOAT


def opset_of(node: ir.Node) -> int:
    """The operator set that a node is read by; 0 if that is not known."""
    return node.graph.opset_imports.get("", 0) if node.graph is not None else 0


def filler_of(node: ir.Node) -> np.ndarray:
    """The element that `ConstantOfShape` fills with, of no dimensions."""
    filler = node.attributes.get("value")
    value = np.zeros(1, np.float32) if filler is None else filler.as_tensor().numpy()
    return value.reshape(())


def parted(total: int, late: bool) -> tuple[int, int]:
    """Pads before and after, of so many; an odd one lies behind if it comes `late`."""
    half = max(0, total) // 2
    before = half if late else max(0, total) - half
    return before, max(0, total) - before


def constant(op: Any, name: str, value: Any) -> ir.Value:
    """An initialiser of the graph that is being written."""
    made: ir.Value = op.initializer(ir.tensor(np.asarray(value), name=name))
    return made


def mean_of(op: Any, node: ir.Node, value: Any, axes: list[int]) -> Any:
    """The mean along axes, which stay, as the operator set of a node that it replaces writes it."""
    if opset_of(node) < 18:
        return op.ReduceMean(value, axes=axes, keepdims=1)
    given = constant(op, f"{node.outputs[0].name}_axes", np.array(axes, np.int64))
    return op.ReduceMean(value, given, keepdims=1)


def from_the_front(op: Any, index: Any, extent: int, name: str) -> Any:
    """Indices, those that count from the end as what they are from the front, in 64 bits."""
    index = op.Cast(index, to=ir.DataType.INT64)
    negative = op.Less(index, constant(op, f"{name}_zero", np.int64(0)))
    ahead = op.Add(index, constant(op, f"{name}_extent", np.int64(extent)))
    return op.Where(negative, ahead, index)


def own_results(graph: ir.Graph) -> None:
    """Has every branch in a graph make what it hands on from outside: an `Identity` did, until it
    was tidied away, and nobody asks a branch's results what they are read by."""
    for node in graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _make_results(attribute.as_graph())


def _make_results(branch: ir.Graph) -> None:
    made = {value for node in branch for value in node.outputs} | set(branch.inputs)
    for place, value in enumerate(branch.outputs):
        if value not in made and not value.is_initializer():
            node = ir.node("Identity", [value], name=f"{value.name}/result_{place}")
            (result,) = node.outputs
            result.name, result.type, result.shape = node.name, value.type, value.shape
            branch.append(node)
            branch.outputs[place] = result
