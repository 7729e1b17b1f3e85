"""Attention as a group: two products with a softmax down the columns between them."""

from __future__ import annotations

from typing import NamedTuple

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import TileGraph, TileNode

ROW, COLUMN = 2, 3
"""The axes of both products, b, h, j or e, i and the reduced one, that count keys or the width of
values, and queries."""
COPIED = ((), (0, 1), (0,), (1,))
"""Choices of `TilePlan.staged`: of keys (0) and values (1) those that are copied for each task."""
_KINDS = ("map", "reduce", "reduce", "map", "reduce", "reduce", "map")
_PRODUCT_RANK = 5


class Attention(NamedTuple):
    """The stages of a group that is attention; `biased` is None where nothing is added."""

    turned: int
    scores: int
    biased: int | None
    top: int
    power: int
    total: int
    mixed: int
    last: int


def attention_stages(graph: TileGraph) -> Attention | None:
    """The stages of `compute.attention` in the group; None for any other group."""
    nodes = graph.nodes
    maps = [place for place, node in enumerate(nodes) if node.kind == "map"]
    biased = 2 if maps[1:2] == [2] else None
    rest = [place for place in range(len(nodes)) if place != biased]
    if tuple(nodes[place].kind for place in rest) != _KINDS:
        return None
    turned, scores, top, power, *sums, last = rest
    products = [place for place in sums if len(nodes[place].axes) == _PRODUCT_RANK]
    columns = [place for place in sums if place not in products]
    if len(products) != 1 or len(nodes[scores].axes) != _PRODUCT_RANK:
        return None
    (mixed,), (total,) = products, columns
    added = scores if biased is None else biased
    feeds = {
        turned: (scores,),
        added: (top, power),
        top: (power,),
        power: tuple(sums),
        mixed: (last,),
        total: (last,),
    }
    if biased is not None:
        feeds[scores] = (biased,)
    if any(graph.consumers(stage) != found for stage, found in feeds.items()):
        return None
    return Attention(turned, scores, biased, top, power, total, mixed, last)


def last_axes(graph: TileGraph, found: Attention) -> tuple[int, ...]:
    """The axes of the last stage that count batches, heads, queries and the width of values, in
    whatever order it writes them."""
    node, written = graph.nodes[found.last], graph.nodes[found.mixed].write.tensor
    read = next(access for access in node.reads if access.tensor == written)
    places = [
        next((axis for axis, step in enumerate(dim.coeffs) if step), None) if dim else None
        for dim in read.dims
    ]
    left = iter(axis for axis in node.space if axis not in places)  # of one element
    batch, head, width, query = (next(left) if axis is None else axis for axis in places)
    return batch, head, query, width


def of_queries(scores: TileNode, count: int) -> Tile:
    """The tile of the first product that is all keys of so many queries of a head."""
    return Tile((1, 1, scores.extents[ROW], count, scores.extents[-1]))
