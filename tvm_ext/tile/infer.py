"""Region propagation: from a tile of one node to the regions it reads, back through the graph."""

from __future__ import annotations

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import Access, TileGraph, TileNode
from tvm_ext.tile.remember import remembered


@remembered
def region(access: Access, tile: Tile, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the box of the tensor that `access` touches while its node runs over `tile`."""
    return tuple(
        extent if dim is None else min(extent, dim.hull(tile.extents))
        for dim, extent in zip(access.dims, shape, strict=True)
    )


def tile_of_region(node: TileNode, box: tuple[int, ...]) -> Tile:
    """The smallest tile of `node` that writes a box of those extents; reduce axes run in full.

    Each space axis is sized by the written index it appears in.
    """
    extents = list(node.extents)
    for axis in node.space:
        for dim, size in zip(node.write.dims, box, strict=True):
            if dim is not None and dim.coeffs[axis]:
                step = abs(dim.coeffs[axis])
                extents[axis] = min(extents[axis], -(-size * dim.div // step))
    return Tile(tuple(extents))


def propagate(graph: TileGraph, node: int, tile: Tile) -> dict[int, Tile]:
    """Tiles that every producer must compute so that `node` can run `tile` (Welder §3.2).

    With several consumers a producer gets the hull of their demands, per axis the largest.
    Returns node index → tile, `node` itself included.
    """
    tiles: dict[int, Tile] = {node: tile}
    for index in range(node, -1, -1):
        if index not in tiles:
            continue
        for access in graph.nodes[index].reads:
            source = graph.producer(access.tensor)
            if source is None or source >= index:
                continue
            box = region(access, tiles[index], graph.tensors[access.tensor].shape)
            demand = tile_of_region(graph.nodes[source], box)
            if source in tiles:
                pairs = zip(tiles[source].extents, demand.extents, strict=True)
                demand = Tile(tuple(max(a, b) for a, b in pairs))
            tiles[source] = demand
    return tiles
