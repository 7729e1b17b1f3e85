"""Attention as a group: two products with a softmax down the columns between them."""

from __future__ import annotations

from typing import NamedTuple

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import TileGraph, TileNode

ROW, COLUMN = 2, 3
"""The axes of both products, b, h, j or e, i and the reduced one, that count keys or the width of
values, and queries."""
_KINDS = ("map", "reduce", "reduce", "map", "reduce", "reduce", "map")
_PRODUCT_RANK = 5


class Attention(NamedTuple):
    """The stages of a group that is attention; `biased` is None where nothing is added, `values`
    where they are multiplied as they come."""

    turned: int
    scores: int
    biased: int | None
    top: int
    power: int
    total: int
    mixed: int
    last: int
    values: int | None = None

    @property
    def copies(self) -> tuple[tuple[int, ...], ...]:
        """Choices of `TilePlan.staged`: of keys (0) and values (1) those that are copied for each
        task. Values that a stage makes are."""
        return ((), (0, 1), (0,), (1,)) if self.values is None else ((), (0,))


def attention_stages(graph: TileGraph) -> Attention | None:
    """The stages of `compute.attention` or `compute.half_attention` in the group; None for any
    other group."""
    nodes, rest = graph.nodes, list(range(len(graph.nodes)))
    values = next((place for place in rest if _are_values(graph, place)), None)
    if values is not None:
        rest.remove(values)
    biased = next((place for place in rest[2:3] if nodes[place].kind == "map"), None)
    if biased is not None:
        rest.remove(biased)
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
    if values is not None:
        feeds[values] = (mixed,)
    if any(graph.consumers(stage) != found for stage, found in feeds.items()):
        return None
    return Attention(turned, scores, biased, top, power, total, mixed, last, values)


def _are_values(graph: TileGraph, place: int) -> bool:
    """Whether a stage makes values from what comes from outside: alone those of a product both of
    whose factors are made here."""
    node = graph.nodes[place]
    readers = [graph.nodes[reader] for reader in graph.consumers(place)]
    if node.kind != "map" or len(readers) != 1 or len(readers[0].axes) != _PRODUCT_RANK:
        return False
    return all(graph.tensors[access.tensor].role != "input" for access in readers[0].reads)


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
