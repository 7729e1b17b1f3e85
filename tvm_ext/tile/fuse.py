"""Stages that can run inside a tile of another: as its epilogue, or row by row with it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import has_reuse, split_axis, vector_axis, vectorisable
from tvm_ext.tile.graph import Access, AffineDim, TileGraph, TileNode
from tvm_ext.tile.infer import propagate
from tvm_ext.tile.remember import remembered


def epilogue_of(graph: TileGraph, anchor: int) -> int | None:
    """The only consumer of the anchor, if it walks the anchor's output element by element, and no
    further: padding would be left out of every register tile. None where the output leaves the
    group as well: it has to be written."""
    consumers = graph.consumers(anchor)
    if len(consumers) != 1 or graph.nodes[anchor].kind != "reduce" or anchor in graph.results:
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
    return not any(goes_across(graph, node) for node in graph.nodes)


def goes_across(graph: TileGraph, node: TileNode) -> bool:
    """Whether a stage is a reduction whose steps do not lie side by side."""
    return node.kind == "reduce" and not all(
        access.stride(node.reduce[-1], graph.tensors[access.tensor].shape) in (0, 1)
        for access in node.reads
    )


def in_lanes(graph: TileGraph, node: TileNode) -> bool:
    """Whether a stage is a reduction across memory whose results lie side by side, as what it reads
    does: neighbours are reduced in the lanes of a vector."""
    across = goes_across(graph, node) and vectorisable(graph, node)
    return across and vector_axis(node) == node.space[-1]


@remembered
def sums_columns(graph: TileGraph, node: TileNode) -> bool:
    """Whether a stage reduces the columns of what it reads, over all of its rows, in lanes: no
    element goes to several results, as of a product or a sliding window."""
    axis = split_axis(node)
    if axis is None or has_reuse(node) or not in_lanes(graph, node):
        return False
    rows = False
    for access in node.reads:
        if any(d is None or (d.uses(axis) and any(map(d.uses, node.space))) for d in access.dims):
            return False
        shape = graph.tensors[access.tensor].shape
        long = (dim for dim, size in zip(access.dims, shape, strict=True) if size > 1)
        first = next(long, None)
        rows |= first is not None and first.uses(axis)
    return rows


def in_vectors(graph: TileGraph) -> bool:
    """Whether every reduction goes along contiguous memory, or across it in lanes."""
    return all(in_lanes(graph, node) for node in graph.nodes if goes_across(graph, node))


def row_tile(graph: TileGraph) -> tuple[Tile, int, dict[int, Tile]] | None:
    """One row of the last stage, the number of axes that count rows, and what every stage computes
    for it; None if no choice of rows shares the work of all stages out without repeating any."""
    return next(row_tiles(graph), None)


def row_tiles(graph: TileGraph) -> Iterator[tuple[Tile, int, dict[int, Tile]]]:
    """As `row_tile`, for all choices of what a row is, the shortest first."""
    anchor = len(graph.nodes) - 1
    node = graph.nodes[anchor]
    if any(other.kind == "opaque" for other in graph.nodes):
        return
    for rows in range(len(node.space), -1, -1):
        extents = tuple(1 if i in node.space[:rows] else a.extent for i, a in enumerate(node.axes))
        tiles = tiles_of_row(graph, Tile(extents), rows)
        count = prod(node.axes[axis].extent for axis in node.space[:rows])
        if tiles is None:
            continue
        points = [(tile.points, prod(graph.nodes[i].extents)) for i, tile in tiles.items()]
        if all(count * own == whole for own, whole in points):
            yield Tile(extents), rows, tiles


def tiles_of_row(graph: TileGraph, row: Tile, rows: int) -> dict[int, Tile] | None:
    """What every stage computes for one row of the last, of which so many leading axes count rows;
    None where that is not told.

    Of a group with several results every stage has to have the same rows, and to read of others
    nothing but the row that it computes: results are written where they are computed, none of them
    for another's sake.
    """
    anchor = len(graph.nodes) - 1
    if len(graph.results) == 1:
        tiles = propagate(graph, anchor, row)
        return tiles if len(tiles) == len(graph.nodes) else None
    lead = graph.nodes[anchor].extents[:rows]
    if rows and rows == len(graph.nodes[anchor].axes):
        return None  # single elements
    if not all(_has_rows(graph, node, lead) for node in graph.nodes):
        return None
    ones = (1,) * rows
    return {i: Tile((*ones, *node.extents[rows:])) for i, node in enumerate(graph.nodes)}


def _has_rows(graph: TileGraph, node: TileNode, lead: tuple[int, ...]) -> bool:
    """Whether the leading axes of a stage count rows, those of what it writes and of what it reads
    of other stages, and leave a row to be computed in vectors."""
    rows = len(lead)
    if goes_across(graph, node) and rows >= len(node.space):
        return False
    inside = [read for read in node.reads if graph.tensors[read.tensor].role != "input"]
    return (
        node.extents[:rows] == lead
        and node.space[:rows] == tuple(range(rows))
        and all(_is_row(access, rows) for access in (node.write, *inside))
    )


def _is_row(access: Access, rows: int) -> bool:
    """Whether an access is to the row that the leading axes count, and no index else tells them."""
    own, rest = access.dims[:rows], access.dims[rows:]
    return (
        len(own) == rows
        and all(
            dim == AffineDim(tuple(int(axis == place) for axis in range(len(dim.coeffs))))
            for place, dim in enumerate(own)
            if dim is not None
        )
        and None not in own
        and not any(dim is None or dim.uses(axis) for dim in rest for axis in range(rows))
    )
