"""Joined axes: rows of outputs that lie one after another in all tensors are counted by one axis.

    y[n, h, w, o] += x[n, h, w, k] * W[k, o]     rows of 7: register tiles of 4 and 3
        →
    y[n, hw // 7, hw % 7, o] += x[n, hw // 7, hw % 7, k] * W[k, o]     49: nine of 5, one of 4

A 1x1 convolution is a product, whose tiles need not end where a row of the image does. The tensors
are the caller's: in memory their two indices are one again.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

from tvm_ext.tile.classify import has_reuse
from tvm_ext.tile.fuse import epilogue_of
from tvm_ext.tile.graph import Access, AffineDim, TileGraph, TileNode
from tvm_ext.tile.strassen import products_of_quarters
from tvm_ext.tvm_api import SBlockRV, Schedule, ScheduleError, tirx


def join_axes(schedule: Schedule, graph: TileGraph, blocks: list[SBlockRV]) -> bool:
    """Joins the axes of a product and its epilogue where all tensors allow; whether the schedule is
    another. A product without an epilogue gets a copy of what it makes, as its plan would."""
    product, last = graph.nodes[0], graph.nodes[-1]
    rank = len(product.write.dims)
    if not has_reuse(product) or any(node.space != tuple(range(rank)) for node in graph.nodes):
        return False
    if last is not product and (len(graph.nodes) > 2 or epilogue_of(graph, 0) != 1):
        return False
    if any(dim is None or not dim.uses(place) for place, dim in enumerate(product.write.dims)):
        return False
    accesses = [(node, access) for node in graph.nodes for access in (*node.reads, node.write)]
    joined = [
        all(_in_a_row(graph, node, access, axis) for node, access in accesses)
        for axis in range(rank - 1)
    ]
    if not any(joined):
        return False
    extents = [last.axes[axis].extent for axis in range(rank)]
    every = _index_map(extents, joined, len(product.axes) - rank)
    try:
        if [axis.extent for axis in product.axes[:rank]] == extents:
            schedule.transform_block_layout(blocks[0], every)
            schedule.reindex(blocks[0], ("write", 0))
            if last is not product:
                schedule.reverse_compute_inline(blocks[1])
        else:  # columns are left out; of this TVM writes no trace
            flat = _index_map(extents, joined, 0)
            schedule.transform_layout(blocks[0], ("write", 0), flat)
            schedule.transform_block_layout(blocks[0], every)
            schedule.transform_block_layout(blocks[1], flat)
    except ScheduleError:
        pass  # what was done so far computes the same
    return True


def join_rows(schedule: Schedule, graph: TileGraph, blocks: list[SBlockRV]) -> bool:
    """What is made of sums of products of quarters is made where they are, by rows and halves.
    Whether the schedule is another.

        sums[r, half, o] = ...; y[n, h, w, c] = sums[(n * H + h) * W + w, c // C, c % C] + b[c]
            →
        y[r // (H * W), r // W % H, r % W, half * C + o] = ... + b[half * C + o]
    """
    changed = False
    for found in products_of_quarters(graph):
        sums, readers = graph.nodes[found.last], graph.consumers(found.last)
        if len(readers) != 1 or not _follows(graph.nodes[readers[0]], sums):
            continue
        with suppress(ScheduleError):  # it reads sums in several places, say
            schedule.reverse_compute_inline(blocks[readers[0]])
            changed = True
    return changed


def _follows(node: TileNode, sums: TileNode) -> bool:
    """Whether a stage makes something of each sum."""
    return node.kind == "map" and prod(node.extents) == prod(sums.extents)


def _index_map(extents: list[int], joined: list[bool], more: int) -> Any:
    """Each run of joined axes as one; `more` axes after them stay."""
    before = [tirx.Var(f"i{place}", "int32") for place in range(len(extents) + more)]
    after = [before[0]]
    for place, (extent, join) in enumerate(zip(extents[1:], joined, strict=True), start=1):
        if join:
            after[-1] = after[-1] * extent + before[place]
        else:
            after.append(before[place])
    return tirx.IndexMap(before, [*after, *before[len(extents) :]], None)


def _in_a_row(graph: TileGraph, node: TileNode, access: Access, axis: int) -> bool:
    """Whether an access goes from the end of one axis straight to the start of the next row, or
    uses neither axis."""
    outer, inner = axis, axis + 1
    if min(node.axes[outer].extent, node.axes[inner].extent) == 1:
        return False
    places = [
        place
        for place, dim in enumerate(access.dims)
        if dim is None or dim.uses(outer) or dim.uses(inner)
    ]
    if not places:
        return True
    first, last = places[0], places[-1]
    return (
        places == [first, first + 1]
        and graph.tensors[access.tensor].shape[last] == node.axes[inner].extent
        and _is_axis(node, access.dims[first], outer)
        and _is_axis(node, access.dims[last], inner)
    )


def _is_axis(node: TileNode, dim: AffineDim | None, axis: int) -> bool:
    """Whether an index is an axis and nothing else, but for axes of one element."""
    if dim is None or (dim.offset, dim.div, dim.mod) != (0, 1, 0):
        return False
    steps = enumerate(dim.coeffs)
    return [(a, s) for a, s in steps if s and node.axes[a].extent > 1] == [(axis, 1)]
