"""The micro performance model: time of a tiled stage from tile numbers alone (Roller §3.3).

Per core: cycles of the register tile (multiply-adds issued, loads issued, latency chain, whichever
binds) against the bytes each memory level must deliver; the slower one is the time. Partial tiles
are charged for the work they really do, and the last wave for the cores it leaves idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf, prod
from typing import NamedTuple

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.amx import AMX_WAITS, amx_busy, amx_cycles, amx_entry_cycles
from tvm_ext.picker.halves import side_by_side
from tvm_ext.picker.issue import register_pass
from tvm_ext.picker.traffic import (
    OVERLAP_LOSS,
    USABLE,
    core_waves,
    far_loss,
    finishing_us,
    loose_us,
    overlapped_us,
    prologue_us,
    staging_us,
    stays_in_cache,
    uncounted_us,
)
from tvm_ext.picker.weights import packed_bytes, with_cold_weights
from tvm_ext.tile.amx import INSTRUCTION as AMX
from tvm_ext.tile.amx import matrices
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chunk import chunk_count
from tvm_ext.tile.classify import (
    is_small_window,
    is_window,
    packed_reads,
    whole_reduction,
)
from tvm_ext.tile.footprint import access_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.nest import Nest, crowding, has_short_rows, most_crowded
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.shift import plan_shifts
from tvm_ext.tile.skip import needed_share

LOADS_PER_CYCLE = 2.0
RELOAD_CYCLES = 0.125
"""What loading a weight anew costs in rows of five or seven taps, most of it hidden: 7 weights and
28 accumulators take 1.2 of the time by AVX-512, 10 and 14 1.08 by AVX2."""
WIDE_RELOAD_CYCLES = 0.4
"""The same for rows of five taps and several vectors of channels side by side: LLVM goes from input
to input, and has the weights of all taps and channels alive. 28 x 28 of 240 channels under 5 x 5
taps by AVX2: 6 points by 2 vectors 209 us, 5 by 2 201, 10 by one 161; 144 channels of 56 x 56 by
steps of two 164, 140 and 107."""
LATENCY_SHARPNESS = 4
"""How sharply time turns from that of issuing multiply-adds to that of waiting for them, as the
exponent of their norm: what is late by chance is made up for only where others can go on (vectors
of 4, 5, 6, 8 and 14 rows by 2: 1.25, 1.13, 1.07, 1.05 and 1.06 of the time of issuing them)."""
EVEN_TASKS = 8
"""Tasks per core from which an uneven share no longer matters."""
TASK_CYCLES = 40.0
"""Taking up a core tile: its place worked out from the task's number by divisions."""
PIECE_CYCLES = 8.0
"""Starting another piece of the output: loop control, lines and pages shared with neighbours."""
PASS_CYCLES = 8.0
"""Starting another pass of a window over its register tile: masks, addresses, a branch."""
TILE_OVERHEAD_CYCLES = 12.0
"""Entering a register tile: zeroing accumulators, loop control, draining the last multiply-adds."""


ADD_CYCLES = 1.5
"""Adding a vector of results to one in a core's own cache."""
CROWDED_STALL = 0.5
"""Part of the time of bytes in crowded rows that holds the work up, each time that they overfill
their sets: lines asked for ahead push each other out (a row by 512 x 2048, read 16, 32, 64 and 128
columns at a time: 90, 79, 37 and 26 us; by 512 x 2016: 35, 25, 27 and 26)."""


class Estimate(msgspec.Struct, frozen=True):
    """Predicted time of a stage and the roof that limits it."""

    latency_us: float
    compute_us: float
    memory_us: float
    bound: str
    """`compute`, or the memory level whose bandwidth limits."""
    aside_us: float = 0.0
    """What of the latency goes to stages before the anchor and to copies."""


def together(estimates: Sequence[Estimate], between_us: float = 0.0) -> Estimate:
    """What runs one after another, with what handing on takes; the longest gives the bound."""
    return Estimate(
        sum(one.latency_us for one in estimates) + between_us,
        sum(one.compute_us for one in estimates),
        sum(one.memory_us for one in estimates),
        max(estimates, key=lambda one: one.latency_us).bound,
        sum(one.aside_us for one in estimates),
    )


class Candidate(msgspec.Struct, frozen=True):
    """A plan with what the model says of it."""

    plan: TilePlan
    estimate: Estimate


def register_cycles(
    graph: TileGraph, node: TileNode, tile: Tile, lanes: int, hw: HardwareModel
) -> float:
    """Cycles of one pass over a register tile (its unrolled reduce extents included)."""
    one = register_pass(graph, node, tile, lanes)
    # shuffles have one port
    issue = one.points * (node.flops_per_point or 1.0) / 2 / hw.fmas_per_cycle(lanes) + one.shuffles
    issue *= side_by_side(node, tile, lanes, hw)
    if node.dots:
        issue *= hw.pace_of_dots("bfloat16", 2) if node.halves else hw.pace_of_dots("int8", 4)
    fetch = one.loads / LOADS_PER_CYCLE + one.picked / hw.vector_loads_per_cycle + one.spread
    if node.kind != "reduce":
        return max(issue, fetch)
    spill = max(0.0, one.vectors + 3 - hw.vector_registers) * 2 * one.chain
    if kept := one.taps * one.side:
        missing = max(0.0, one.vectors + kept + 1 - hw.vector_registers)
        anew = one.vectors / one.side * one.chain / one.taps  # for each output of a pass
        spill += min(missing, kept) * anew * reload_cycles(node, wide=one.side > 1)
    chain = one.chain * hw.fma_latency_cycles
    work = (issue**LATENCY_SHARPNESS + chain**LATENCY_SHARPNESS) ** (1 / LATENCY_SHARPNESS)
    return overlapped_us(work, fetch) + spill


def reload_cycles(node: TileNode, *, wide: bool) -> float:
    """What a weight of a window costs that has no register from one output to the next, of outputs
    several vectors `wide` or of one. One vector of a few taps goes tap by tap, and needs one weight
    at a time (14 x 14 of 576 channels under 3 x 3 by AVX2: 14 points 33 us, 5 by 2 vectors 38)."""
    if is_small_window(node):
        return 1 / LOADS_PER_CYCLE if wide else 0.0
    return WIDE_RELOAD_CYCLES if wide and has_short_rows(node) else RELOAD_CYCLES


def compute_cycles(
    graph: TileGraph,
    node: TileNode,
    core: Tile,
    register: Tile,
    lanes: int,
    hw: HardwareModel,
    moved: tuple[int, ...] = (),
    chunks: int = 1,
    instruction: str = "fma",
) -> float:
    """Cycles one core needs for one full core tile, tails charged at their own size, or whole on
    the axes where they are `moved` back. After each of several `chunks` of the reduction a register
    tile is added to what there is."""
    unit = matrices(graph, node, register) if instruction == AMX else None
    cycles = 0.0
    sweeps = prod(-(-node.extents[axis] // register.extents[axis]) for axis in node.reduce)
    begun = TILE_OVERHEAD_CYCLES if node.reduce else 0.0
    begun += amx_entry_cycles(unit) if unit is not None else 0.0
    again = PASS_CYCLES if is_small_window(node) and sweeps > 1 else 0.0
    for count, tile in _with_tails(node, core, register, moved):
        entry = begun
        if chunks > 1:
            entry += ADD_CYCLES * prod(tile.extents[axis] for axis in node.space) / lanes
        entry = entry * chunks / max(1, sweeps) + again
        entry += collision_cycles(graph, node, tile, hw)
        if unit is not None:
            cycles += count * (amx_cycles(unit, register) + entry)
        else:
            cycles += count * (register_cycles(graph, node, tile, lanes, hw) + entry)
    return cycles * needed_share(graph, node, register)


def _with_tails(
    node: TileNode, core: Tile, register: Tile, moved: tuple[int, ...]
) -> list[tuple[int, Tile]]:
    """How many register tiles a core tile has, and the shorter ones at the ends of its axes."""
    found = [(1, register)]
    for axis, size in enumerate(register.extents):
        extent = (node if axis in node.reduce else core).extents[axis]
        full, tail = divmod(extent, size)
        if tail and axis not in moved:
            ends = [(count, tile.with_extent(axis, tail)) for count, tile in found]
            found = [(count * full, tile) for count, tile in found if full] + ends
        else:
            found = [(count * (full + (tail > 0)), tile) for count, tile in found]
    return found


def collision_cycles(graph: TileGraph, node: TileNode, tile: Tile, hw: HardwareModel) -> float:
    """Cycles for lines that one pass over a register tile fetches again from the second level: rows
    a power of two apart that have no room side by side in the first (14 rows 4 KiB apart: 303 us
    instead of 207). Five taps or more of a window's row are work enough to wait behind (14 x 14 of
    512 channels under 7 x 7: 36 us, with fewer pixels 51); three are not."""
    if is_window(node) and not is_small_window(node):
        return 0.0
    first, second = hw.levels[1], hw.levels[2]
    cycles = 0.0
    usable_bytes = first.size_bytes * USABLE
    least_bytes = usable_bytes / most_crowded(first.line_bytes)
    for access in node.reads if node.kind == "reduce" else ():
        size_bytes = access_bytes(graph, access, tile, first.line_bytes)
        if not least_bytes < size_bytes < usable_bytes:
            continue
        tensor = graph.tensors[access.tensor]
        crowded = crowding(access, tile, tensor, tensor.shape, first.line_bytes)
        if size_bytes * crowded > usable_bytes:
            cycles += size_bytes / second.gbps * hw.clock_ghz
    return cycles


def estimate(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Estimate:
    """Predicted time of the plan's anchor on `hw`, in microseconds, launch included.

    Whole core tiles run in waves over the cores; a partial one at the end runs after them, alone,
    unless no tail has a loop of its own (`tile.shift`): it then counts as whole.
    """
    node = graph.nodes[plan.anchor]
    core = plan.at("core")
    cores = hw.cores if plan.parallel else 1
    moved = plan_shifts(graph, plan)
    counts = core.counts(node.axes)
    whole = prod(
        node.axes[axis].extent // core.extents[axis] if moved is None else counts[axis]
        for axis in node.space
    )
    first = task_estimate(graph, node, plan, core, hw, min(cores, whole), moved or ())
    waves = ceil(whole / cores)
    compute_us, memory_us, bound = first.compute_us * waves, first.memory_us * waves, first.bound
    task_cycles = TASK_CYCLES + PIECE_CYCLES * pieces(node, core)
    stall_us = (first.stall_us + task_cycles / hw.clock_ghz / 1e3) * waves
    launch_us = hw.launch_us if plan.parallel else 0.0
    tail = tuple(
        a.extent % c or c if a.kind == "space" and moved is None else c
        for a, c in zip(node.axes, core.extents, strict=True)
    )
    if tail != core.extents:
        extra = task_estimate(graph, node, plan, Tile(tail), hw, 1)
        compute_us, memory_us = compute_us + extra.compute_us, memory_us + extra.memory_us
        stall_us += extra.stall_us
        launch_us *= 2
    memory_us += uncounted_us(graph, node, hw, cores)
    if compute_us >= memory_us:
        bound = "compute"
    latency_us = overlapped_us(compute_us, memory_us) + stall_us
    if stays_in_cache(graph, hw):  # beyond it all traffic is counted above
        latency_us = with_cold_weights(graph, node, plan, hw, latency_us)
    aside_us = prologue_us(graph, plan, hw) + staging_us(graph, plan, hw)
    aside_us += loose_us(graph, plan, hw) + finishing_us(graph, plan, hw)
    return Estimate(latency_us + launch_us + aside_us, compute_us, memory_us, bound, aside_us)


def pieces(node: TileNode, tile: Tile) -> int:
    """Pieces of memory in which a tile of a stage is written."""
    count = prod(tile.extents[axis] for axis in node.space)
    for axis in reversed(node.space):
        count //= tile.extents[axis]
        if tile.extents[axis] < node.axes[axis].extent:
            break
    return count


class Task(NamedTuple):
    """One core tile: its arithmetic, its memory traffic and the level that binds, its stalls."""

    compute_us: float
    memory_us: float
    bound: str
    stall_us: float


def task_estimate(
    graph: TileGraph,
    node: TileNode,
    plan: TilePlan,
    core: Tile,
    hw: HardwareModel,
    cores: int,
    shifted: tuple[int, ...] = (),
) -> Task:
    """One core tile of the plan's, or one of a tail, beside as many others as there are `cores`."""
    chunks = chunk_count(node, plan)
    cycles = compute_cycles(
        graph,
        node,
        core,
        plan.at("register"),
        plan.lanes,
        hw,
        shifted,
        chunks,
        plan.instruction,
    )
    nest = Nest(graph, node, plan, core, hw.levels[1].line_bytes)
    compute_us, memory_us, stall_us, bound = cycles / hw.clock_ghz / 1e3, 0.0, 0.0, "compute"
    # of weights `with_cold_weights` knows more
    box = whole_reduction(node, core)
    panels_bytes = sum(access_bytes(graph, access, box) for access in packed_reads(node))
    held = graph.io_bytes < hw.own_cache_bytes * hw.cores * USABLE
    # what the cores' own caches hold comes from there, but once to each of them
    whole_bytes = graph.io_bytes - packed_bytes(graph, node)
    once_bytes = whole_bytes / core_waves(node, plan.at("core"), cores) if held else 0.0
    for level, source in pairwise(entry for entry in hw.levels if entry.name != "register"):
        if source is hw.levels[-1] and stays_in_cache(graph, hw):
            continue
        capacity = level.size_bytes * USABLE / (cores if level.shared else 1)
        ahead_bytes = inf if level is hw.levels[1] else capacity / USABLE
        # shared levels are slices, by a hash
        moved, crowded = nest.bytes_into(capacity, hashed=level.shared, ahead_bytes=ahead_bytes)
        rate = min(source.gbps, source.total_gbps / cores) if source.total_gbps else source.gbps
        if moved / (rate * 1e3) > memory_us:
            memory_us, bound = moved / (rate * 1e3), source.name
        if level is hw.levels[1]:  # the second level answers soon enough, but for whole matrices
            unit = matrices(graph, node, plan.at("register")) if plan.instruction == AMX else None
            if unit is not None:
                busy_us = compute_us * amx_busy(unit)
                held_up_us = overlapped_us(busy_us, moved / (rate * 1e3), AMX_WAITS)
                compute_us = max(compute_us, held_up_us)
            continue
        again_bytes = max(0.0, moved - panels_bytes - once_bytes)
        again_us = again_bytes / (rate * 1e3)
        waited_us = (far_loss(hw, ahead=False) - OVERLAP_LOSS) * min(compute_us, again_us)
        crowded_us = 0.0 if held else CROWDED_STALL * crowded / (rate * 1e3)
        stall_us = max(stall_us, crowded_us, waited_us)
    return Task(compute_us, memory_us, bound, stall_us)
