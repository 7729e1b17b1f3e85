"""Bytes a tile touches and holds (Roller §3.3). What it moves is in `nest`."""

from __future__ import annotations

from math import prod

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import Access, TileGraph, TileNode
from tvm_ext.tile.remember import remembered


@remembered
def access_bytes(graph: TileGraph, access: Access, tile: Tile, line_bytes: int = 1) -> int:
    """Bytes of the region one access touches; rows rounded up to whole `line_bytes`.

    An access that is not affine (a gather) touches at most one row for each point of the tile;
    points of one row count once.
    """
    tensor = graph.tensors[access.tensor]
    box = touched(access, tile, tensor.shape)
    run, outer = 1, len(box)
    while outer and access.dims[outer - 1] is not None:
        outer -= 1
        run *= box[outer]
        if box[outer] < tensor.shape[outer]:
            break
    rows = prod(box[:outer])
    if None in access.dims:
        rows = min(rows, -(-tile.points // max(1, run)))
    lines = -(-run * tensor.dtype_bytes // line_bytes)
    return rows * lines * line_bytes


def touched(access: Access, tile: Tile, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements touched along each dim (`Access.box`)."""
    return access.box(tile.extents, shape)


def footprint_bytes(graph: TileGraph, node: TileNode, tile: Tile) -> int:
    """Bytes that must be resident for `node` to run `tile` once: inputs and output regions."""
    return sum(access_bytes(graph, access, tile) for access in (*node.reads, node.write))
