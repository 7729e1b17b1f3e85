"""Nodes in an order in which each comes after what it reads.

ONNX asks for it; ONNX Runtime and OpenVINO do not, and tools that add nodes to a graph put them at
its end (`convert_float_to_float16` all its casts).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import onnx


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself if its nodes are in order, or cannot be; else a copy of it."""
    order = _order(model.graph)
    if order == sorted(order) or len(order) < len(model.graph.node):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = [copy.graph.node[place] for place in order]
    ordered = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(ordered)
    return copy


def _order(graph: onnx.GraphProto) -> list[int]:
    """The places of the nodes, of those that could come next always the first; those that wait for
    each other are left out."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    missing = []
    for place, node in enumerate(graph.node):
        sources = {makers[name] for name in _read(node) if name in makers}
        missing.append(len(sources))
        for source in sources:
            readers.setdefault(source, []).append(place)
    ready = [place for place, count in enumerate(missing) if not count]
    heapify(ready)
    found = []
    while ready:
        place = heappop(ready)
        found.append(place)
        for reader in readers.get(place, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return found


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, by its branches as well."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (output.name for output in graph.output)
