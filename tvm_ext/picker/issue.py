"""What one pass over a register tile issues: multiply-adds, loads and shuffles, on any machine."""

from __future__ import annotations

from math import log2, prod
from typing import NamedTuple

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import (
    WINDOW_TAPS,
    group_size,
    is_square,
    leaves_holes_out,
    reads_groups,
    taps_along_vectors,
    vector_axis,
    window_weights,
)
from tvm_ext.tile.footprint import touched
from tvm_ext.tile.graph import Access, TileGraph, TileNode
from tvm_ext.tile.remember import remembered
from tvm_ext.vectors import picks_elements

LINES_CROSSED = 2.0
"""Loads that a vector takes which begins anywhere in a cache line."""


class RegisterPass(NamedTuple):
    """One pass over a register tile, its unrolled reduce extents included, on any machine."""

    points: float
    """Vectors of multiply-adds, those by zeros between elements among them."""
    loads: float
    vectors: float
    """Accumulators, in vectors."""
    chain: int
    """Multiply-adds that wait for each other."""
    shuffles: float
    taps: int
    """Taps of a window whose weights are alive at once, of which each output takes one after
    another, 0 of others. LLVM unrolls a short row of them also where it is taken tap by tap."""
    side: float
    """Vectors side by side."""
    picked: float
    """Loads of whole vectors that elements are picked from."""
    spread: float
    """Vectors of elements of several groups, each made by a shuffle beside the arithmetic."""


def picked_loads(graph: TileGraph, node: TileNode, access: Access, tile: Tile, lanes: int) -> float:
    """Loads of whole vectors that elements a few places apart are picked from, in a tile; 0 where
    none are. They begin anywhere in a line."""
    vector = vector_axis(node)
    if vector is None or tile.extents[vector] < lanes:
        return 0.0
    stride = access.stride(vector, graph.tensors[access.tensor].shape)
    if stride is None or not picks_elements(stride, lanes):
        return 0.0
    used = (extent for axis, extent in enumerate(tile.extents) if access.uses(axis))
    return prod(used) / lanes * abs(stride) * LINES_CROSSED


def picks(graph: TileGraph, node: TileNode, lanes: int) -> bool:
    """Whether vectors of a stage are picked from others."""
    whole = Tile(node.extents)
    return any(picked_loads(graph, node, access, whole, lanes) for access in node.reads)


@remembered
def register_pass(graph: TileGraph, node: TileNode, tile: Tile, lanes: int) -> RegisterPass:
    """What one pass over a register tile issues."""
    wasted = 1 if leaves_holes_out(node, tile) else prod(hole.step for hole in node.holes)
    points = prod(tile.extents) / max(1, lanes) * wasted
    steps = prod(tile.extents[axis] for axis in node.reduce)
    vectors = points / max(1, steps) / wasted
    loads = 0.0
    square = is_square(node, tile, lanes)
    own = [axis for axis in (vector_axis(node),) if axis is not None]
    wide = node.space if node.kind == "reduce" or square else own
    shuffles, picked = lanes * log2(lanes) if square else 0.0, 0.0
    spread = 0.0
    for access in node.reads:
        shape = graph.tensors[access.tensor].shape
        if reads_groups(node, access):
            elements = float(prod(touched(access, tile, shape)))
            loads += elements / lanes
            spread += elements * group_size(node) / lanes
            continue
        if apart := picked_loads(graph, node, access, tile, lanes):
            picked += apart
            shuffles += apart / LINES_CROSSED
            continue
        vectors_wide = any(
            tile.extents[axis] > 1 and access.stride(axis, shape) == 1 for axis in wide
        )
        # an element that several unrolled iterations read is loaded once (a sliding window)
        elements = float(min(prod(touched(access, tile, shape)), tile.points))
        if vectors_wide and (taps := taps_along_vectors(node, access)):  # each loads its own
            rest = (1 if a in taps else e for a, e in enumerate(tile.extents))
            elements = LINES_CROSSED * prod(touched(access, Tile(tuple(rest)), shape))
            elements *= prod(tile.extents[axis] for axis in taps)
        # a vector of 3 elements is loaded as 2 and 1, one of 7 as 4, 2 and 1
        loads += elements / lanes * lanes.bit_count() if vectors_wide else elements
        if not vectors_wide and any(access.stride(axis, shape) != 0 for axis in own):
            shuffles += elements * (lanes - 1) / lanes  # each goes to a lane of its own
    alone = steps // prod(hole.step for hole in node.holes) if wasted == 1 else steps
    side = prod(tile.extents[axis] for axis in own) / lanes
    row = max(steps, node.axes[node.reduce[-1]].extent) if window_weights(node) else 0
    row = row if 1 < row <= WINDOW_TAPS else 0
    return RegisterPass(points, loads, vectors, alone, shuffles, row, side, picked, spread)
