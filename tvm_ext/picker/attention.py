"""Plans for attention, and their predicted time.

A task is a head, or a part of its queries; it goes through them in blocks, whose scores stay in
cache. Wide blocks read keys and values seldom, narrow ones keep their scores nearer. Of heads that
lie interleaved each key is a row of its own, far from the next: copied side by side they neither
collide in cache nor leave lines half used.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import MAX_VECTORS, row_extents, unroll_extents
from tvm_ext.picker.perf import (
    CROWDED_STALL,
    EVEN_TASKS,
    TASK_CYCLES,
    Candidate,
    Estimate,
    compute_cycles,
)
from tvm_ext.picker.register import BODY_VECTORS, SCRATCH_REGISTERS
from tvm_ext.picker.traffic import STAGING_READS, USABLE, holding_gbps, overlapped_us
from tvm_ext.tile.attention import COLUMN, ROW, Attention, of_queries
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import Access, Tensor, TileGraph, TileNode
from tvm_ext.tile.nest import crowding
from tvm_ext.tile.plan import LevelTile, TilePlan

BLOCKS = (1, 2)
"""Register tiles of queries in a block."""
PASSES = 5
"""How often scores are written or read between the products: written by the first, read for the
maximum, for their powers, these written, and read for the sum."""
PAGE_BYTES = 4096
PAGES = 96
"""Pages whose place in memory a core has at hand."""
PAGE_CYCLES = 4.0
"""Going to a row of keys or values in another page, where work does not hide it (a core of a Xeon,
12 heads in rows of 9 KiB: 512 keys 5970 us, copied 5320; 257 keys 773 and 734; 128 keys 350 and
344, between other kernels 396 and 403)."""


def attention_candidates(graph: TileGraph, found: Attention, hw: HardwareModel) -> list[Candidate]:
    """Plans of a group that is attention, best first."""
    plans = attention_plans(graph, found, hw)
    scored = [Candidate(plan, attention_estimate(graph, found, plan, hw)) for plan in plans]
    return sorted(scored, key=lambda one: one.estimate.latency_us)


def attention_plans(graph: TileGraph, found: Attention, hw: HardwareModel) -> Iterator[TilePlan]:
    """For each width of register tiles the tallest of both products, in blocks of a few, in tasks
    that the cores share evenly or of one block each, with keys and values copied or not."""
    scores, mixed = graph.nodes[found.scores], graph.nodes[found.mixed]
    lanes = hw.lanes(4)
    columns = scores.extents[COLUMN]
    for vectors in range(1, MAX_VECTORS + 1):
        registers = _register_tiles(scores, vectors, lanes, hw)
        seconds = _register_tiles(mixed, vectors, lanes, hw)
        for first, second, count in (
            (first, second, count) for first in registers for second in seconds for count in BLOCKS
        ):
            block = vectors * lanes * count
            if columns % block:
                continue
            for size in sorted({_even(scores, block, hw.cores), block}):
                for staged in found.copies[:2]:
                    yield TilePlan(
                        rule="attention",
                        anchor=found.scores,
                        tiles=(
                            LevelTile("core", of_queries(scores, size)),
                            LevelTile("l2", of_queries(scores, block)),
                            LevelTile("register", first),
                            LevelTile("second", second),
                        ),
                        order=tuple(range(len(scores.axes))),
                        parallel=3 if hw.cores > 1 else 0,
                        lanes=lanes,
                        unroll=first.extents[-1],
                        staged=staged,
                    )


def _even(scores: TileNode, block: int, cores: int) -> int:
    """The most queries of a task that the cores share evenly: whole blocks, at best all."""
    heads = scores.extents[0] * scores.extents[1]
    blocks = scores.extents[COLUMN] // block
    parts = [part for part in range(1, blocks + 1) if blocks % part == 0]
    even = (p for p in parts if heads * p % cores == 0 or heads * p >= EVEN_TASKS * cores)
    return blocks // next(even, blocks) * block


def _register_tiles(node: TileNode, vectors: int, lanes: int, hw: HardwareModel) -> list[Tile]:
    """The two tallest that registers allow, and the tallest without a tail."""
    usable = hw.vector_registers - hw.vector_registers // SCRATCH_REGISTERS
    extent, most = node.extents[ROW], (usable - vectors) // vectors
    whole = next(rows for rows in range(min(most, extent), 0, -1) if extent % rows == 0)
    found = []
    for rows in dict.fromkeys([*row_extents(extent, most)[:2], whole]):
        for step in (*unroll_extents(node.extents[-1]), 1):
            if step == 1 or rows * vectors * step <= BODY_VECTORS:
                found.append(Tile((1, 1, rows, vectors * lanes, step)))
                break
    return found


def attention_estimate(
    graph: TileGraph, found: Attention, plan: TilePlan, hw: HardwareModel
) -> Estimate:
    """Predicted time of an attention plan on `hw`."""
    scores, mixed = graph.nodes[found.scores], graph.nodes[found.mixed]
    batch, heads, keys, queries, depth = scores.extents
    block, width = plan.at("l2"), mixed.extents[ROW]
    columns = block.extents[COLUMN]
    tasks = batch * heads * ceil(queries / plan.at("core").extents[COLUMN])
    cores = min(hw.cores, tasks) if plan.parallel else 1
    waves = ceil(tasks / cores)
    blocks = waves * plan.at("core").extents[COLUMN] // columns
    first, second = plan.at("register"), plan.at("second")
    other = Tile((1, 1, width, columns, keys))
    cycles = compute_cycles(graph, scores, block, first, plan.lanes, hw)
    cycles += compute_cycles(graph, mixed, other, second, plan.lanes, hw)
    rest = [n for place, n in enumerate(graph.nodes) if place not in (found.scores, found.mixed)]
    part = columns / (batch * heads * queries)
    cycles += sum(node.flops for node in rest) * part / plan.lanes / hw.fma_per_cycle
    element = graph.tensors[scores.write.tensor].dtype_bytes
    held = 2 * element * keys * columns
    operands = element * keys * (depth + width)
    spread = 1 if plan.staged else _spread(graph, scores, hw)
    room = (held + operands * spread) / USABLE
    near = holding_gbps(hw, held / USABLE, 1, sharing=cores)
    far = holding_gbps(hw, room, 1, sharing=cores)
    sweeps = ceil(width / second.extents[ROW])
    values = max(width * element, sweeps * hw.levels[1].line_bytes)
    passes = columns // first.extents[COLUMN]
    read = passes * keys * (depth * element + values)
    memory_us = blocks * ((PASSES + sweeps) * held / 2 / near + read / far) / 1e3
    aside_us = 0.0
    if plan.staged:
        ns_per_byte = STAGING_READS / holding_gbps(hw, graph.io_bytes, 1) + 1 / far
        aside_us = waves * operands * ns_per_byte / 1e3
    else:
        cycles += (passes + sweeps) * keys * _page_cycles(graph, scores)
        if spread > 1 and room > hw.levels[2].size_bytes:
            aside_us = CROWDED_STALL * blocks * read / far / 1e3
    compute_us = (blocks * cycles + waves * TASK_CYCLES) / hw.clock_ghz / 1e3
    launch_us = hw.launch_us if plan.parallel else 0.0
    bound = "compute" if compute_us >= memory_us else "memory"
    latency_us = overlapped_us(compute_us, memory_us) + launch_us + aside_us
    return Estimate(latency_us, compute_us, memory_us, bound, aside_us)


def _page_cycles(graph: TileGraph, scores: TileNode) -> float:
    """Cycles that going from one key to the next takes where they lie, for the pages alone."""
    access, tensor = _keys(graph, scores)
    apart_bytes = (access.stride(ROW, tensor.shape) or 0) * tensor.dtype_bytes
    pages_each = min(1.0, apart_bytes / PAGE_BYTES)
    pages = pages_each * scores.extents[ROW]
    return PAGE_CYCLES * pages_each * (1 - PAGES / pages) if pages > PAGES else 0.0


def _keys(graph: TileGraph, scores: TileNode) -> tuple[Access, Tensor]:
    """How the first product reads the keys, and what they are in."""
    access = next(a for a in scores.reads if graph.tensors[a.tensor].role == "input")
    return access, graph.tensors[access.tensor]


def _spread(graph: TileGraph, scores: TileNode, hw: HardwareModel) -> float:
    """How much more room keys take where they lie than side by side."""
    access, tensor = _keys(graph, scores)
    tile = Tile((1, 1, *scores.extents[2:]))
    return crowding(access, tile, tensor, tensor.shape, hw.levels[1].line_bytes)
