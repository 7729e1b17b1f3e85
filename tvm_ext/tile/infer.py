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


@remembered
def regions(node: TileNode, tile: Tile, tensor: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the box that all reads of one tensor touch together: what neighbours of an element
    are read by accesses of their own (`x[i - 1] + x[i + 1]`) lies side by side."""
    reads = [access for access in node.reads if access.tensor == tensor]
    boxes = [region(access, tile, shape) for access in reads]
    extents = []
    for place, extent in enumerate(shape):
        dims = [access.dims[place] for access in reads]
        alike = {(dim.coeffs, dim.div, dim.mod) for dim in dims if dim is not None}
        offsets = [dim.offset // dim.div for dim in dims if dim is not None]
        apart = max(offsets) - min(offsets) if len(alike) == 1 and offsets else 0
        extents.append(min(extent, max(box[place] for box in boxes) + apart))
    return tuple(extents)


def propagate(graph: TileGraph, node: int, tile: Tile) -> dict[int, Tile]:
    """Tiles that every producer must compute so that `node` can run `tile` (Welder §3.2).

    With several consumers a producer gets the hull of their demands, per axis the largest.
    Returns node index → tile, `node` itself included.
    """
    tiles: dict[int, Tile] = {node: tile}
    for index in range(node, -1, -1):
        if index not in tiles:
            continue
        reads = graph.nodes[index].reads
        for tensor in dict.fromkeys(access.tensor for access in reads):
            source = graph.producer(tensor)
            if source is None or source >= index:
                continue
            shape = graph.tensors[tensor].shape
            box = regions(graph.nodes[index], tiles[index], tensor, shape)
            demand = tile_of_region(graph.nodes[source], box)
            if source in tiles:
                pairs = zip(tiles[source].extents, demand.extents, strict=True)
                demand = Tile(tuple(max(a, b) for a, b in pairs))
            tiles[source] = demand
    return tiles
