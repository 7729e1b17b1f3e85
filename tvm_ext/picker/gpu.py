"""Plans for GPUs: a CPU's tiles, aligned to warps and memory transactions (Roller §3.2).

A core tile is what a thread block computes, the `shared` tile the step of the reduction it keeps in
shared memory, the register tile what one thread computes. `lanes` counts the threads that work side
by side along contiguous memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import packed_divisor
from tvm_ext.picker.anchor import choose_anchor, hidden_work, widest_bytes
from tvm_ext.picker.gpu_perf import (
    estimate_block,
    limits,
    resident_blocks,
    streaming_blocks,
)
from tvm_ext.picker.perf import Candidate, Estimate
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.block import (
    can_fetch_ahead,
    free_producers,
    vector_elements,
    walks_rows,
)
from tvm_ext.tile.classify import (
    has_no_gaps,
    slides,
    vector_axis,
    vectorisable,
    whole_reduction,
)
from tvm_ext.tile.fuse import epilogue_of, row_tile
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

REGISTER_TILES = ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (1, 4), (1, 2), (1, 1))
"""Rows by columns of one thread: register reuse until accumulators crowd out warps."""
BLOCK_THREADS = (64, 128, 256)
THREADS_ACROSS = (8, 16, 32)
"""Threads along contiguous memory: 32 bytes, a memory transaction, or more."""
STEPS = (8, 16, 32)
"""Iterations of the reduction kept in shared memory: 32 bytes of a contiguous operand or more."""
MAX_WINDOW = 49
"""Elements of the largest sliding window of which a step takes the whole."""
ROW_ELEMENTS = 4
"""Elements of a row for each of its threads, where rows are that long."""
PACKED_THREADS = 64
"""Most threads across for the sake of covering a whole packed block."""
FLAT_THREADS = 256
FETCHES = 4
"""Loads of one thread in a flat block, so that several are on their way at once."""


def pick_blocks(graph: TileGraph, hardware: HardwareModel, count: int = 1) -> list[Candidate]:
    """The best `count` plans of a group on a GPU, best first; empty if no stage can be planned."""
    anchor = choose_anchor(graph)
    if anchor is None or hidden_work(graph):
        return []
    node = graph.nodes[anchor]
    if node.kind == "map":
        return [flat_blocks(graph, anchor, hardware)]
    found: list[Candidate] = []
    if vectorisable(graph, node):
        plans = dict.fromkeys(block_plans(graph, anchor, hardware))
        found = [Candidate(plan, estimate_block(graph, plan, hardware)) for plan in plans]
    if not found:
        rows = row_blocks(graph, hardware)
        found = [rows] if rows else [loose_blocks(graph, anchor, hardware)]
    return sorted(found, key=lambda candidate: candidate.estimate.latency_us)[:count]


def predict_blocks(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Estimate:
    """Predicted time of any GPU plan of the group, wherever it came from."""
    if plan.rule == "block":
        return estimate_block(graph, plan, hw)
    node = graph.nodes[plan.anchor]
    tiled = any(entry.level == "core" for entry in plan.tiles) and plan.rule != "block_loose"
    blocks = prod(plan.at("core").counts(node.axes)) if tiled else hw.cores
    return streaming_blocks(graph, hw, blocks)


def block_plans(graph: TileGraph, anchor: int, hw: HardwareModel) -> Iterator[TilePlan]:
    """Aligned block tiles that fit one multiprocessor."""
    node = graph.nodes[anchor]
    vector = vector_axis(node)
    if vector is None:
        return
    epilogue = epilogue_of(graph, anchor)
    attach = [Attach(epilogue, "register")] if epilogue is not None else []
    attach += [Attach(stage, "shared") for stage in free_producers(graph, anchor)]
    space = tuple(axis for axis in node.space if axis != vector)
    divisor = packed_divisor(node, vector)
    for height, width in REGISTER_TILES:
        for threads in BLOCK_THREADS:
            for across in THREADS_ACROSS:
                core, register = spatial_tiles(node, vector, (height, width), threads, across)
                if divisor and core[vector] % divisor and divisor % core[vector]:
                    continue
                if not (has_no_gaps(node, Tile(core)) and has_no_gaps(node, Tile(register))):
                    continue
                for shared in map(Tile, reduce_steps(node, core)):
                    plan = TilePlan(
                        rule="block",
                        anchor=anchor,
                        tiles=(
                            LevelTile("core", whole_reduction(node, Tile(core))),
                            LevelTile("shared", shared),
                            LevelTile("register", Tile(register)),
                        ),
                        order=(*space, vector, *node.reduce),
                        parallel=len(node.space),
                        lanes=core[vector] // register[vector],
                        unroll=1,
                        attach=tuple(attach),
                    )
                    doubled = msgspec.structs.replace(plan, ahead=True)
                    able = limits(hw).ahead and can_fetch_ahead(graph, plan)
                    if able and resident_blocks(graph, node, doubled, hw):
                        yield doubled
                    elif resident_blocks(graph, node, plan, hw):
                        yield plan


def spatial_tiles(
    node: TileNode, vector: int, size: tuple[int, int], threads: int, across: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Block and thread extents: `size` rows by columns a thread, `across` threads along the vector
    axis, the rest along the rows, from the innermost outwards while whole axes are covered."""
    core, register = [1] * len(node.axes), [1] * len(node.axes)
    register[vector] = fitting(node.axes[vector].extent, size[1])
    packed = packed_divisor(node, vector) // register[vector]
    across = packed if across < packed <= PACKED_THREADS else across
    core[vector] = grown(node.axes[vector].extent, register[vector], across)
    across = core[vector] // register[vector]
    left = max(1, threads // across)
    rows = [axis for axis in reversed(node.space) if axis != vector and node.axes[axis].extent > 1]
    for place, axis in enumerate(rows):
        extent = node.axes[axis].extent
        register[axis] = fitting(extent, size[0]) if place == 0 else 1
        core[axis] = grown(extent, register[axis], left)
        left //= core[axis] // register[axis]
        if core[axis] < extent or left <= 1:
            break
    return tuple(core), tuple(register)


def fitting(extent: int, size: int) -> int:
    """`size`, or a smaller divisor of the extent down to half of it, so that no tail is left."""
    size = min(size, extent)
    return next((s for s in range(size, (size + 1) // 2 - 1, -1) if extent % s == 0), size)


def grown(extent: int, unit: int, count: int) -> int:
    """`count` units, or down to half as many that divide the extent; never beyond the extent."""
    count = max(1, min(count, extent // unit))
    wanted = range(count, (count + 1) // 2 - 1, -1)
    return unit * next((n for n in wanted if n and extent % (unit * n) == 0), count)


def reduce_steps(node: TileNode, core: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Block tiles with a step of the reduction: innermost axes first, or, of a sliding window,
    whole windows of fewer channels, whose elements are then fetched once."""
    windows = tuple(axis for axis in node.reduce if slides(node, axis))
    whole = prod(node.axes[axis].extent for axis in windows)
    for size in STEPS:
        yield reduce_step(node, core, size)
        if 1 < whole <= MAX_WINDOW:
            extents = list(core)
            for axis in windows:
                extents[axis] = node.axes[axis].extent
            yield reduce_step(node, tuple(extents), size // 2, windows)


def reduce_step(
    node: TileNode, core: tuple[int, ...], size: int, kept: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """The block tile with `size` iterations of the reduction's axes but for those kept as they are,
    innermost axes first."""
    extents = list(core)
    for axis in reversed([axis for axis in node.reduce if axis not in kept]):
        extents[axis] = fitting(node.axes[axis].extent, max(1, size))
        size //= extents[axis]
    return tuple(extents)


def flat_blocks(graph: TileGraph, anchor: int, hw: HardwareModel) -> Candidate:
    """Contiguous boxes of a map stage, several 16-byte loads a thread; smaller ones where there
    would be fewer than multiprocessors (Roller §3.4, scale-out)."""
    node = graph.nodes[anchor]
    points = prod(node.extents)
    warp = limits(hw).warp
    unroll = vector_elements(widest_bytes(graph, node))
    unroll = unroll if walks_rows(graph, node, unroll) else 1
    threads = FLAT_THREADS
    while threads > warp and points < threads * unroll * hw.cores:
        threads //= 2
    fetches = max(1, min(FETCHES, points // (threads * unroll * hw.cores)))
    tile = contiguous_box(node, threads * unroll * fetches, unroll)
    plan = TilePlan(
        rule="block_flat",
        anchor=anchor,
        tiles=(LevelTile("core", tile),),
        order=tuple(range(len(node.axes))),
        parallel=len(node.axes),
        lanes=threads,
        unroll=unroll,
    )
    return Candidate(plan, streaming_blocks(graph, hw, prod(tile.counts(node.axes))))


def contiguous_box(node: TileNode, points: int, unit: int) -> Tile:
    """A contiguous box of about so many iterations: whole inner axes, one cut, ones outside. The
    last axis is cut between units."""
    extents, left = [1] * len(node.axes), max(1, points)
    for axis in range(len(node.axes) - 1, -1, -1):
        extent = node.axes[axis].extent
        extents[axis] = unit * fitting(extent // unit, max(1, left // unit))
        left //= extents[axis]
        unit = 1
        if extents[axis] < extent:
            break
    return Tile(tuple(extents))


def row_blocks(graph: TileGraph, hw: HardwareModel) -> Candidate | None:
    """One row of the last stage per block, all stages on it, what lies between them in shared
    memory; None if rows share work or do not fit, or if there are several results."""
    found = row_tile(graph)
    if found is None or len(graph.results) > 1:
        return None
    tile, rows, tiles = found
    anchor = len(graph.nodes) - 1
    node, limit = graph.nodes[anchor], limits(hw)
    longest = max(own.points for own in tiles.values())
    threads = limit.warp
    while threads < FLAT_THREADS and 2 * threads * ROW_ELEMENTS <= longest:
        threads *= 2
    kept = sum(
        prod(tiles[stage].extents[axis] for axis in graph.nodes[stage].space)
        * graph.tensors[graph.nodes[stage].write.tensor].dtype_bytes
        for stage in tiles
        if stage != anchor
    )
    partial = sum(threads * widest_bytes(graph, other) for other in graph.nodes if other.reduce)
    if kept + partial > limit.shared_bytes:
        return None
    plan = TilePlan(
        rule="block_rows",
        anchor=anchor,
        tiles=(LevelTile("core", tile),),
        order=tuple(range(len(node.axes))),
        parallel=rows,
        lanes=threads,
        attach=tuple(Attach(stage, "core") for stage in range(anchor)),
    )
    blocks = prod(node.axes[axis].extent for axis in node.space[:rows])
    return Candidate(plan, streaming_blocks(graph, hw, blocks))


def loose_blocks(graph: TileGraph, anchor: int, hw: HardwareModel) -> Candidate:
    """Every stage as a kernel of its own, one thread per element: the fallback."""
    node = graph.nodes[anchor]
    plan = TilePlan(
        rule="block_loose",
        anchor=anchor,
        tiles=(),
        order=tuple(range(len(node.axes))),
        parallel=1,
        lanes=FLAT_THREADS,
    )
    return Candidate(plan, streaming_blocks(graph, hw, hw.cores))
