"""Chunks of a long reduction (`tile.chunk`), from how much of it a core's own cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.chunk import Chunk, chunk_tile, longest, with_chunk
from tvm_ext.tile.classify import is_shared_out, loops_in_use, vector_axis, whole_reduction
from tvm_ext.tile.footprint import access_bytes, footprint_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import TilePlan, with_extent

WHOLE = 5
"""A reduction stays whole where the cache has room for so many times what one register tile takes
of it: the rows of a core tile, and panels that come and go (128 rows by 4096 columns beside 2 MiB:
2048 steps at once 443 GFLOP/s, in chunks of 512 402; 3072, where both are compared, 437 and 427 to
442; 4096 372 and 439)."""
IN_PART = 8
"""Room for so many times what it takes of a chunk (8192 steps in chunks of 512, 1024 and 2048: 429,
425 and 375 GFLOP/s)."""
CHOICES = 2
"""Sizes of a chunk that are tried, each at most half of the one before."""
TASKS = 4
"""Core tiles for each core where cores help each other: a chunk is no task by itself."""
SHORT = 512
"""Iterations of a chunk from which adding its sums to those so far costs little."""
ROWS = 1 / 3
"""Part of the cache that all rows of a chunk may take before they are cut: every part of them reads
all weights again (128 x 4096 by 4096, cut in 1, 2 and 4: 439, 425 and 398 GFLOP/s)."""


def needs_chunks(
    graph: TileGraph, node: TileNode, registers: Sequence[Tile], hw: HardwareModel
) -> bool:
    """Whether the reduction is too long for the cache with any of these register tiles."""
    held = (footprint_bytes(graph, node, whole_reduction(node, tile)) for tile in registers)
    return longest(node) is not None and min(held, default=0) * WHOLE > hw.own_cache_bytes


def in_chunks(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Iterator[TilePlan]:
    """The plan with its reduction in chunks, the largest first, columns cut into tasks; nothing if
    its core tile does not have all of them."""
    node, register = graph.nodes[plan.anchor], plan.at("register")
    axis, columns = longest(node), vector_axis(node)
    if axis is None or columns is None:
        return
    rows = [place for place in node.space if place != columns]
    once = all(node.extents[place] <= register.extents[place] for place in rows)
    if once or plan.at("core").extents[columns] < node.extents[columns]:
        return
    whole_bytes = footprint_bytes(graph, node, whole_reduction(node, register))
    most = int(node.extents[axis] * hw.own_cache_bytes / whole_bytes / IN_PART)
    sizes = divisors(node.extents[axis], most)
    sizes = [size for size in reversed(sizes) if size % register.extents[axis] == 0]
    plan = _shared_out(graph, plan, columns, hw)
    room = ROWS * hw.own_cache_bytes
    fit = [size for size in sizes if _rows_bytes(graph, node, columns, Chunk(axis, size)) <= room]
    cut = any(plan.at("core").extents[place] < node.extents[place] for place in rows)
    if any(size >= SHORT for size in fit):
        if cut and node.extents[columns] >= hw.cores * register.extents[columns]:
            return
        sizes = fit
    for _ in range(CHOICES):
        if not sizes:
            return
        chunked = with_chunk(node, plan, Chunk(axis, sizes[0]))
        if is_legal(graph, chunked, plan.lanes):
            yield chunked
        sizes = [size for size in sizes if 2 * size <= sizes[0]]


def _shared_out(graph: TileGraph, plan: TilePlan, columns: int, hw: HardwareModel) -> TilePlan:
    """The plan with columns cut into enough tasks."""
    node, core = graph.nodes[plan.anchor], plan.at("core")
    register = plan.at("register").extents[columns]
    count = prod(core.counts(node.axes)[place] for place in node.space)
    wanted = hw.cores * (TASKS if is_shared_out(graph) else 1)
    tiles, tail = divmod(core.extents[columns], register)
    if not tail and count < wanted:
        parts = next((n for n in divisors(tiles) if n * count >= wanted), tiles)
        plan = with_extent(plan, "core", columns, tiles // parts * register)
    return msgspec.structs.replace(plan, parallel=loops_in_use(node, plan.at("core"), plan.order))


def _rows_bytes(graph: TileGraph, node: TileNode, columns: int, chunk: Chunk) -> int:
    """What a chunk takes of the operands that all columns share."""
    box = chunk_tile(node, Tile(node.extents), chunk)
    return sum(access_bytes(graph, read, box) for read in node.reads if not read.uses(columns))
