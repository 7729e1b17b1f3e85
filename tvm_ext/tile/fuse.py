"""Stages that can run inside a tile of another: as its epilogue, or row by row with it."""

from __future__ import annotations

from math import prod

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.infer import propagate


def epilogue_of(graph: TileGraph, anchor: int) -> int | None:
    """The only consumer of the anchor, if it walks the anchor's output element by element, and no
    further: padding would be left out of every register tile."""
    consumers = graph.consumers(anchor)
    if len(consumers) != 1 or graph.nodes[anchor].kind != "reduce":
        return None
    node = graph.nodes[consumers[0]]
    written = graph.nodes[anchor].write.tensor
    shape = graph.tensors[written].shape
    rank = len(shape)
    reads = [access for access in node.reads if access.tensor == written]
    aligned = len(reads) == 1 and node.kind == "map" and len(node.axes) == rank
    for place, dim in enumerate(reads[0].dims) if aligned else ():
        unit = tuple(int(i == place) for i in range(rank))
        if dim is None or dim.coeffs != unit or dim.offset or dim.div > 1 or dim.mod:
            return None
        if node.extents[place] > shape[place]:
            return None
    return consumers[0] if aligned else None


def along_rows(graph: TileGraph) -> bool:
    """Whether every reduction goes along contiguous memory, so that a row of it is in vectors."""
    return all(
        access.stride(node.reduce[-1], graph.tensors[access.tensor].shape) in (0, 1)
        for node in graph.nodes
        if node.kind == "reduce"
        for access in node.reads
    )


def row_tile(graph: TileGraph) -> tuple[Tile, int, dict[int, Tile]] | None:
    """One row of the last stage, the number of axes that count rows, and what every stage computes
    for it; None if no choice of rows shares the work of all stages out without repeating any."""
    anchor = len(graph.nodes) - 1
    node = graph.nodes[anchor]
    if any(other.kind == "opaque" for other in graph.nodes):
        return None
    for rows in range(len(node.space), -1, -1):
        extents = tuple(1 if i in node.space[:rows] else a.extent for i, a in enumerate(node.axes))
        tiles = propagate(graph, anchor, Tile(extents))
        count = prod(node.axes[axis].extent for axis in node.space[:rows])
        if len(tiles) < len(graph.nodes):
            return None
        points = [(tile.points, prod(graph.nodes[i].extents)) for i, tile in tiles.items()]
        if all(count * own == whole for own, whole in points):
            return Tile(extents), rows, tiles
    return None
