"""The order of a tile's loops: what stays in cache, and that memory is walked as it lies.

A vector of each pixel in turn is a cache line here and there, which no prefetcher follows, in
reading as in writing. So the plain order, channels innermost, is best wherever it costs no traffic.
"""

from __future__ import annotations

from math import prod

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tile.amx import has_unit
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import slides, transposed_axis, whole_reduction
from tvm_ext.tile.footprint import access_bytes
from tvm_ext.tile.graph import Access, TileGraph, TileNode

NEAR = 1.5
"""Weights of up to so many first levels are read again for each row. 56 x 56 points of 64 to 256
channels, 64 KiB: 1.06 times faster; 27 x 27 of 32 to 128, 8 KiB: 1.4 times; beyond, nothing."""

HELD = 0.5
"""Part of a core's own caches that counts as room: weights that have it are read again for each row
where the rows have not (3136 rows of 256 by 160: 1.14 times faster)."""

SHORT_SUM = 8
"""Steps of a sum that LLVM turns into straight code (4096 rows of 3 by 256: columns inside 74 us,
rows 44)."""

FEW = 8
"""Channels of a first layer, whose taps LLVM sees unrolled (3 to 32 channels of 112 x 112 by 3 x 3:
212 us, taps along rows outside 163; 3 to 64 of 111 x 111: 357 and 274)."""


def plain_order(node: TileNode) -> tuple[int, ...]:
    """Space axes as the output lies in memory, reduction innermost."""
    return (*node.space, *reduce_order(node))


def square_order(
    graph: TileGraph, node: TileNode, register: Tile, hw: HardwareModel
) -> tuple[int, ...]:
    """The order of a transposition by squares: the nearest axis innermost, by how far a step of the
    register tile along it goes in what is read and written. What the cores' own caches hold goes
    row by row of an image, which stays in the first level (128 planes of 35 x 35 to channels last
    9.4 us, plane by plane 19; back 11 and 32). Beyond them all axes go by their steps, and few
    pages are walked along (96 planes of 56 x 56 43 us, channels innermost 60; 64 of 112 x 112 140
    and 213).
    """
    accesses = (*node.reads, node.write)
    tensors = [graph.tensors[access.tensor] for access in accesses]

    def step(axis: int) -> int:
        apart = (one.stride(axis, t.shape) for one, t in zip(accesses, tensors, strict=True))
        return register.extents[axis] * sum(abs(stride or 0) for stride in apart)

    pair = {transposed_axis(node), node.space[-1]}
    held = graph.io_bytes <= hw.own_cache_bytes * hw.cores
    rows = [axis for axis in node.space if held and axis not in pair]
    rest = sorted((axis for axis in node.space if axis not in rows), key=step, reverse=True)
    return (*rows, *rest, *node.reduce)


def reduce_order(node: TileNode) -> tuple[int, ...]:
    """Reduce axes as they are, but over few channels taps along rows outside those down columns.

    LLVM unrolls an inner loop over taps that is short. Taps along a row share what they read with
    the register tile's other points, and all of it is kept alive: more than there are registers.
    """
    taps = [axis for axis in node.reduce if slides(node, axis)]
    rest = [axis for axis in node.reduce if axis not in taps]
    if not rest or prod(node.axes[axis].extent for axis in rest) > FEW:
        return node.reduce
    return (*reversed(taps), *rest)


def loop_order(
    graph: TileGraph, node: TileNode, vector: int | None, core: Tile, hw: HardwareModel
) -> tuple[int, ...]:
    """The plain order where data with all axes of the output is summed up along, or read in vectors
    (scale and shift of 56 x 56 x 128 points 2 times faster, MobileNetV2 1.08 times), where a map
    takes whole rows from somewhere (images enlarged to 56 x 56 points of 256 among 1024 channels:
    200 → 50 us), where weights are better read again than rows, and where all groups' weights have
    room: rows are cut into pieces by groups (28 x 28 by 4 groups of 34 to 136: 328 → 271 us). Else
    the axes of the operand read in vectors outermost, its weights stay in cache, rows inside.
    """
    used = [axis for axis in node.space if node.axes[axis].extent > 1]
    weights = _read_in_vectors(graph, node, vector)
    if vector is None or (node.kind == "map" and _moves_rows(node, vector)):
        return plain_order(node)
    along = node.reads if node.kind == "reduce" else weights
    along = [read for read in along if read.stride(vector, graph.tensors[read.tensor].shape)]
    if any(all(read.uses(axis) for axis in used) for read in along):
        return plain_order(node)
    others = [axis for axis in node.space if axis != vector]
    shared = [axis for axis in others if not all(read.uses(axis) for read in node.reads)]
    if shared and weights and _are_read_again(graph, node, weights, core, hw):
        return plain_order(node)
    head = [a for a in others if shared and a not in shared and any(w.uses(a) for w in weights)]
    grouped, room = any(node.axes[axis].extent > 1 for axis in head), HELD * hw.own_cache_bytes
    if grouped and _bytes(graph, weights, whole_reduction(node, core)) <= room:
        return plain_order(node)
    return (*head, vector, *(a for a in others if a not in head), *reduce_order(node))


def _moves_rows(node: TileNode, vector: int) -> bool:
    """Whether a map reads along its vectors and transposes nothing, wherever its rows lie. Where a
    place along the vectors has to be worked out (planes enlarged), it is for all rows at once."""
    last = [read.dims[-1] for read in node.reads if read.dims]
    along = any(dim is not None and dim.coeffs[vector] == 1 for dim in last)
    return along and transposed_axis(node) is None


def _read_in_vectors(graph: TileGraph, node: TileNode, vector: int | None) -> list[Access]:
    if vector is None:
        return []
    shapes = [tensor.shape for tensor in graph.tensors]
    return [read for read in node.reads if read.stride(vector, shapes[read.tensor]) == 1]


def _bytes(graph: TileGraph, reads: list[Access], tile: Tile) -> int:
    """What several reads of a tile touch."""
    return sum(access_bytes(graph, read, tile) for read in reads)


def _are_read_again(
    graph: TileGraph, node: TileNode, weights: list[Access], core: Tile, hw: HardwareModel
) -> bool:
    """Whether several rows of a core tile go over its weights, and those are small, or a core's own
    caches have room for them but not for the rows. Of a sum so short that registers hold the
    weights they stay there."""
    if prod(node.axes[axis].extent for axis in node.reduce) <= SHORT_SUM:
        return False
    whole = whole_reduction(node, core)
    held = _bytes(graph, weights, whole)
    rows = [axis for axis in node.space if not any(read.uses(axis) for read in weights)]
    if prod(whole.extents[axis] for axis in rows) <= 1:
        return False
    others = _bytes(graph, [read for read in node.reads if read not in weights], whole)
    room = HELD * hw.own_cache_bytes
    if has_unit(node, hw.isa) and held < _beside_bytes(graph, node, core):
        return held <= room
    return held <= NEAR * hw.levels[1].size_bytes or held <= room < others


def _beside_bytes(graph: TileGraph, node: TileNode, core: Tile) -> float:
    """What a core tile's part of the group reads and writes but for the stage's operands. Of a
    matrix unit's products it takes longer than they do where there is more of it, and columns of it
    are lines here and there (28 x 28 points of 128 to 512 channels in bfloat16 and a residual: 88
    us, rows outside 64; of 14 x 14 by 3 x 3 of 256 to 256, where there is less, 77 and 88)."""
    operands = {read.tensor for read in node.reads}
    own = sum(graph.tensors[tensor].size_bytes for tensor in operands)
    part = prod(core.extents[axis] / node.axes[axis].extent for axis in node.space)
    return part * max(0, graph.io_bytes - own)
