"""What any machine asks before it tiles: which stage, and how wide its elements are."""

from __future__ import annotations

from math import prod

from tvm_ext.tile.graph import TileGraph, TileNode


def choose_anchor(graph: TileGraph) -> int | None:
    """The stage worth tiling: the reduction with the most arithmetic, else the last map stage."""
    reductions = [i for i, node in enumerate(graph.nodes) if node.kind == "reduce"]
    if reductions:
        return max(reductions, key=lambda i: prod(graph.nodes[i].extents))
    maps = [i for i, node in enumerate(graph.nodes) if node.kind == "map"]
    return maps[-1] if maps else None


def hidden_work(graph: TileGraph) -> int:
    """Iterations of the largest stage that no rule understands."""
    return max((prod(n.extents) for n in graph.nodes if n.kind == "opaque"), default=0)


def widest_bytes(graph: TileGraph, node: TileNode) -> int:
    """Bytes of the widest element the node touches: vectors hold as many as that allows."""
    tensors = [graph.tensors[access.tensor] for access in (*node.reads, node.write)]
    return max(tensor.dtype_bytes for tensor in tensors)
