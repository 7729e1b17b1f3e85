"""Nodes in an order in which each comes after what it reads.

ONNX asks for it; ONNX Runtime and OpenVINO do not, and tools that add nodes to a graph put them at
its end (`convert_float_to_float16` all its casts).
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import onnx


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself if its nodes are in order, or cannot be; else a copy of it."""
    nodes = model.graph.node
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    sources = {
        place: {makers[name] for name in _read(node) if name in makers}
        for place, node in enumerate(nodes)
    }
    if all(source < place for place, before in sources.items() for source in before):
        return model
    try:
        order = [*TopologicalSorter(sources).static_order()]
    except CycleError:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes[place] for place in order)
    return copy


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, by its branches as well."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (output.name for output in graph.output)
