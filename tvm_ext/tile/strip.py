"""Groups computed strip by strip: some rows of all stages before the next rows of any.

    h = gelu(x @ w1); y = h @ w2
        →   for strips of 48 rows: h of 48 rows, in cache; y of 48 rows

What lies between the stages is then a strip high and stays in a core's caches: Welder's edges
lowered to the second level (OSDI'23, section 3.2). A strip is a group like any other, with fewer
rows, and its pieces have plans of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import prod
from typing import NamedTuple

import msgspec

from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.classify import has_reuse, is_padding, pads_window
from tvm_ext.tile.cut import Piece, cut
from tvm_ext.tile.graph import Access, Tensor, TileGraph, TileNode
from tvm_ext.tile.infer import propagate, region, regions
from tvm_ext.tile.remember import remembered

PIECE_RULES = ("tile", "rows")
"""Rules by which pieces of a strip can be computed."""


class Strip(NamedTuple):
    """Some rows of a group."""

    axis: int
    """The axis of the last stage that is cut; of those before it a strip takes one element."""
    tasks: int
    """Strips of the group."""
    graph: TileGraph
    """The group as it is over one strip."""
    pieces: tuple[Piece, ...]
    """Its products, each with its epilogue, and what lies between."""


MOST_AGAIN = 1.5
"""Times the work of a stage that strips may do: windows want rows of their neighbours again."""


@remembered
def row_axes(graph: TileGraph) -> int:
    """How many leading axes of the last stage count rows that all stages share: some of them need
    little that others need as well. 0 for a group that no strips can be cut from: one with other
    results beside the last, for one, since TVM moves none of them."""
    last = len(graph.nodes) - 1
    if graph.results != (last,):
        return 0
    node = graph.nodes[last]
    if any(other.kind == "opaque" or other.holes for other in graph.nodes):
        return 0
    if not all(_can_be_moved(other) for other in graph.nodes[:-1]):
        return 0
    leading = takewhile(lambda axis: axis in node.space, range(len(node.axes)))
    return max((axis + 1 for axis in leading if _can_be_cut(graph, axis)), default=0)


@remembered
def strip_tiles(graph: TileGraph) -> tuple[Tile, ...]:
    """What the last stage may compute of a strip: equal parts of one axis of the rows, one element
    of those before it, the highest first."""
    known = row_axes(graph)
    tiles = [tile for axis in range(known) for tile in _along(graph, axis)]
    return tuple(dict.fromkeys(tiles))


def _can_be_cut(graph: TileGraph, axis: int) -> bool:
    extent = graph.nodes[-1].axes[axis].extent
    parts = [rows for rows in divisors(extent) if rows < extent] or [extent]
    return any(_shared(graph, _rows(graph, axis, rows)) for rows in parts)


def _along(graph: TileGraph, axis: int) -> Iterator[Tile]:
    """Strips of which an axis is cut."""
    for rows in reversed(divisors(graph.nodes[-1].axes[axis].extent)):
        if _shared(graph, tile := _rows(graph, axis, rows)):
            yield tile


@remembered
def strip(graph: TileGraph, tile: Tile) -> Strip | None:
    """The strip of which the last stage computes that tile; None if it is none."""
    if tile not in strip_tiles(graph):
        return None
    last = len(graph.nodes) - 1
    node = graph.nodes[last]
    part = _part(graph, propagate(graph, last, tile))
    axis = next((axis for axis, size in enumerate(tile.extents) if size > 1), row_axes(graph))
    axis = min(axis, row_axes(graph) - 1)
    return Strip(axis, prod(tile.counts(node.axes)), part, cut(part, least=1))


def repeats(graph: TileGraph, tile: Tile) -> bool:
    """Whether tiles of the last stage do some work of other stages twice."""
    return not _shared(graph, tile, again=1.0)


def _can_be_moved(node: TileNode) -> bool:
    """Whether the stage writes element for element: of others (the mean of a group, written for
    each of its channels) TVM cannot tell which axes make a strip of what they write."""
    return all(dim is not None and dim.is_axis() for dim in node.write.dims)


def _rows(graph: TileGraph, axis: int, rows: int) -> Tile:
    extents = graph.nodes[-1].extents
    return Tile((*(1,) * axis, rows, *extents[axis + 1 :]))


def _shared(graph: TileGraph, tile: Tile, again: float = MOST_AGAIN) -> bool:
    """Whether tiles of the last stage share the work of all stages out, little of it repeated, and
    only where that is possible. Of columns that only fill a vector up nobody needs all."""
    last = len(graph.nodes) - 1
    count = prod(tile.counts(graph.nodes[last].axes))
    tiles = propagate(graph, last, tile)
    if len(tiles) < len(graph.nodes):
        return False
    times = {s: own.points * count / prod(graph.nodes[s].extents) for s, own in tiles.items()}
    return all(more <= 1 or _can_repeat(graph, stage) for stage, more in times.items()) and (
        max(times.values()) <= again
    )


def _can_repeat(graph: TileGraph, stage: int) -> bool:
    """Whether a stage may compute rows of the strips beside its own: it reads inputs alone, or what
    is padded in place, or is the epilogue of one that does. Before the first row and behind the
    last it computes nothing, and of what it reads TVM cannot tell how few rows are wanted."""
    return pads_window(graph, stage) or all(
        (has_reuse(graph.nodes[source]) or is_padding(graph, graph.nodes[source]))
        and _reads_inputs(graph, source)
        for source in graph.sources(stage)
    )


def _reads_inputs(graph: TileGraph, stage: int) -> bool:
    return all(
        is_padding(graph, graph.nodes[source]) and _reads_inputs(graph, source)
        for source in graph.sources(stage)
    )


def _unpadded(access: Access, whole: tuple[int, ...], part: tuple[int, ...]) -> Access:
    """A read of what is padded as a strip in the middle does it, that reaches no end of the axes
    that are cut: else all strips were taken for the first, of which padding is a third."""
    dims = (
        msgspec.structs.replace(dim, offset=0) if dim is not None and size < extent else dim
        for dim, extent, size in zip(access.dims, whole, part, strict=True)
    )
    return Access(access.tensor, tuple(dims))


def _part(graph: TileGraph, tiles: dict[int, Tile]) -> TileGraph:
    """The group over those tiles: tensors as large as what is touched of them."""
    shapes: dict[int, tuple[int, ...]] = {}

    def touch(tensor: int, box: tuple[int, ...]) -> None:
        shapes[tensor] = tuple(map(max, shapes.get(tensor, box), box))

    def node(place: int, one: TileNode) -> TileNode:
        tile = tiles[place]
        for access in one.reads:
            shape = graph.tensors[access.tensor].shape
            touch(access.tensor, regions(one, tile, access.tensor, shape))
        written = graph.tensors[one.write.tensor].shape
        touch(one.write.tensor, region(one.write, tile, written))
        axes = zip(one.axes, tile.extents, strict=True)
        shorter = tuple(msgspec.structs.replace(axis, extent=size) for axis, size in axes)
        reads = one.reads
        if is_padding(graph, one):
            reads = tuple(_unpadded(access, one.extents, tile.extents) for access in reads)
        return msgspec.structs.replace(one, axes=shorter, reads=reads)

    def tensor(place: int, one: Tensor) -> Tensor:
        return msgspec.structs.replace(one, shape=shapes.get(place, one.shape))

    nodes = tuple(node(place, one) for place, one in enumerate(graph.nodes))
    tensors = tuple(tensor(place, one) for place, one in enumerate(graph.tensors))
    return TileGraph(graph.name, tensors, nodes, graph.signature)
