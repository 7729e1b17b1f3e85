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


Span = tuple[int, int]
"""Where a box begins along an axis of a tensor, from where its node's tile does, and where it
ends."""


@remembered
def spans(node: TileNode, tile: Tile, tensor: int, shape: tuple[int, ...]) -> tuple[Span, ...]:
    """The box that all reads of one tensor touch together: what neighbours of an element are read
    by accesses of their own (`x[i - 1] + x[i + 1]`) lies side by side."""
    reads = [access for access in node.reads if access.tensor == tensor]
    boxes = [region(access, tile, shape) for access in reads]
    found = []
    for place, extent in enumerate(shape):
        dims = [access.dims[place] for access in reads]
        alike = {(dim.coeffs, dim.div, dim.mod) for dim in dims if dim is not None}
        offsets = [dim.offset // dim.div for dim in dims if dim is not None] or [0]
        apart = max(offsets) - min(offsets) if len(alike) == 1 else 0
        size = min(extent, max(box[place] for box in boxes) + apart)
        begin = min(offsets) if size < extent else 0
        found.append((begin, begin + size))
    return tuple(found)


def regions(node: TileNode, tile: Tile, tensor: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the box of `spans`."""
    return tuple(end - begin for begin, end in spans(node, tile, tensor, shape))


def propagate(graph: TileGraph, node: int, tile: Tile) -> dict[int, Tile]:
    """Tiles that every producer must compute so that `node` can run `tile` (Welder §3.2).

    With several consumers a producer gets the hull of their demands: of one that takes the first 48
    columns and one that takes the other 12, all 60.
    Returns node index → tile, `node` itself included.
    """
    tiles: dict[int, Tile] = {node: tile}
    demanded: dict[int, list[tuple[Span, ...]]] = {}
    for index in range(node, -1, -1):
        own = graph.nodes[index]
        if index in demanded:
            shape = graph.tensors[own.write.tensor].shape
            tiles[index] = tile_of_region(own, _hull(demanded[index], shape))
        if index not in tiles:
            continue
        for tensor in dict.fromkeys(access.tensor for access in own.reads):
            source = graph.producer(tensor)
            if source is not None and source < index:
                box = spans(own, tiles[index], tensor, graph.tensors[tensor].shape)
                demanded.setdefault(source, []).append(box)
    return tiles


def _hull(boxes: list[tuple[Span, ...]], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the smallest box that contains several."""
    return tuple(
        min(extent, max(end for _, end in own) - min(begin for begin, _ in own))
        for extent, own in zip(shape, zip(*boxes, strict=True), strict=True)
    )
