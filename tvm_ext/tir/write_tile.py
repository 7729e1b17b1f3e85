"""The `tile` rule: multi-level tiling of one stage down to a register tile.

    for i, j, k: C[i,j] += A[i,k] * B[j/NR,k,j%NR]
        →
    parallel core tiles: register tiles: acc = 0
        for k/U: unrolled U x MR x (NR/lanes): acc += A * B   (vector of `lanes`)
        epilogue: C = f(acc)

Loop order: core tiles (space, `plan.order`), register tiles in a core tile (space, `plan.order`),
reduction, then the register tile itself, unrolled; taps of a window innermost, so that what
neighbours share is read while it is at hand. Chunks of the reduction come before the register
tiles, each of which adds its sum to those so far (`tile.chunk`); an epilogue then goes over the
core tile at the end. Last tiles are moved back to be whole (`shift`) or, where they cannot be,
tails become loops of their own (the partition hint), so that the main loop carries no predicate.
Stages before the anchor are computed once for each core tile or, attached at `register`, where they
are read (padding: see `guard`).
"""

from __future__ import annotations

from itertools import takewhile
from math import prod
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.amx import INSTRUCTION, matrices
from tvm_ext.tile.chunk import Chunk, chunk_of
from tvm_ext.tile.classify import (
    is_affine,
    is_square,
    slides,
    transposed_axis,
    vector_axis,
)
from tvm_ext.tile.graph import TileNode
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.shift import plan_shifts
from tvm_ext.tir.grains import with_grains
from tvm_ext.tir.matrices import MATRIX
from tvm_ext.tir.prepare import COSTLY_FLOPS, Prepared, extent_of
from tvm_ext.tir.read import sources
from tvm_ext.tir.shift import PARTITION, SHIFT, TILE
from tvm_ext.tir.transpose import mark_square
from tvm_ext.tvm_api import SBlockRV, Schedule

MANY_STEPS = 256
"""Steps of a reduction beside which an epilogue is a small part of the work."""
INTERLEAVED = (4, 2)
"""Vectors of one body of a map, the first choice that leaves no tail."""


def write_tile(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules the anchor and everything attached to it."""
    schedule, graph = prepared.schedule, prepared.graph
    node, block = graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    core, register = plan.at("core"), plan.at("register")
    reduces, chunk = node.kind == "reduce", chunk_of(node, plan)
    copies = [_copy(schedule, prepared, plan.anchor, read) for read in plan.staged]
    epilogue: SBlockRV | None = None
    attached = [entry.stage for entry in plan.attach if entry.level == "register"]
    after = [stage for stage in attached if stage > plan.anchor]
    chunks: list[Any] = []
    if chunk is not None:
        block, epilogue = _in_chunks(schedule, block, len(node.axes), chunk)
    elif reduces and after:
        schedule.set_scope(block, 0, "local")
        epilogue = prepared.blocks[after[0]]
    elif reduces:
        epilogue = schedule.cache_write(block, 0, "local")
    loops = schedule.get_loops(block)[-len(node.axes) - (chunk is not None) :]
    if chunk is not None:
        chunks = [loops.pop(chunk.axis)]
    if len(loops) != len(node.axes):
        raise PlanError("structure", f"plan for {node.name}: {len(loops)} loops, {len(node.axes)}")
    vector = vector_axis(node) if plan.lanes > 1 else None
    unit = matrices(graph, node, register) if plan.instruction == INSTRUCTION else None
    outer, middle, sweep, inner, lane = {}, {}, {}, {}, None
    for index, loop in enumerate(loops):
        c, r = core.extents[index], register.extents[index]
        if node.axes[index].kind == "reduce":
            sweep[index], inner[index] = schedule.split(loop, [None, r])
            continue
        outer[index], middle[index], inner[index] = schedule.split(loop, [None, -(-c // r), r])
        if index == vector and r % plan.lanes == 0:
            inner[index], lane = schedule.split(inner[index], [None, plan.lanes])
    space = [axis for axis in plan.order if axis in outer]
    reduce = [axis for axis in plan.order if axis in sweep]
    square = transposed_axis(node) if is_square(node, register, plan.lanes) else None
    last = [axis for axis in (vector, square) if axis is not None]
    tile = [axis for axis in space if axis not in last] + last
    matrix: list[Any] = []
    if unit is not None:
        inner[unit.row], row = schedule.split(inner[unit.row], [None, unit.rows])
        matrix = [inner.pop(unit.dot), row]
    sliding = [axis for axis in reduce if slides(node, axis)]
    steps = [axis for axis in reduce if axis in inner]
    body = [
        *(inner[axis] for axis in steps if axis not in sliding),
        *(inner[axis] for axis in tile),
        *(inner[axis] for axis in steps if axis in sliding),
        *matrix,
    ]
    schedule.reorder(
        *(outer[axis] for axis in space),
        *chunks,
        *(middle[axis] for axis in space),
        *(sweep[axis] for axis in reduce),
        *body,
        *([lane] if lane is not None else []),
    )
    if epilogue is not None:
        schedule.reverse_compute_at(epilogue, middle[space[-1]], preserve_unit_loops=True)
    grid = [outer[axis] for axis in space]
    task = schedule.fuse(*grid[: plan.parallel]) if plan.parallel > 1 else grid[0]
    for entry in plan.attach:
        if entry.level != "core":
            continue
        own, stage = prepared.blocks[entry.stage], graph.nodes[entry.stage]
        if entry.stage > plan.anchor:
            schedule.reverse_compute_at(own, task, preserve_unit_loops=True)
            vectorise_last(schedule, schedule.get_loops(own)[-1], plan.lanes)
        else:
            _attach(schedule, own, task, plan.lanes, stage)
    for copy in copies:
        _attach(schedule, copy, task, plan.lanes)
    moved = plan_shifts(graph, plan)
    core_tails = [axis for axis in space if node.axes[axis].extent % core.extents[axis]]
    tails = [axis for axis in space if core.extents[axis] % register.extents[axis]]
    parted = [axis for axis in tails if axis not in (moved or ())] if is_affine(node) else []
    shifted = bool(moved or (core_tails and moved is not None))
    inside = chunks or copies or any(entry.level == "core" for entry in plan.attach)
    if plan.parallel:
        if not inside and (shifted or not core_tails):
            whole = takewhile(lambda axis: axis not in parted, space[:-1])
            rest = [*grid[plan.parallel :], *(middle[axis] for axis in whole)]
            task = with_grains(schedule, task, rest, graph)
        schedule.parallel(task)
    if shifted:
        schedule.annotate(task, SHIFT, 1)
        schedule.annotate(middle[space[-1]], TILE, 1)
    elif core_tails and is_affine(node):
        schedule.annotate(task, PARTITION, 1)
    for axis in parted:
        schedule.annotate(middle[axis], PARTITION, 1)
    for loop in body:
        schedule.unroll(loop)
    if lane is not None:
        schedule.vectorize(lane)
    for loop in (*matrix, lane) if matrix else ():
        schedule.annotate(loop, MATRIX, 1)
    if square is not None:
        mark_square(schedule, inner[square])
    if epilogue is not None:
        if chunk is not None and vector is not None:
            _columns_last(schedule, epilogue, len(node.space) - node.space.index(vector))
        last_stage = graph.nodes[after[0]] if after else None
        length = prod(node.extents[axis] for axis in node.reduce)
        register_epilogue(schedule, epilogue, plan.lanes, last_stage, length)
    if reduces and reduce:
        schedule.decompose_reduction(block, sweep[reduce[0]])
    for inlined in sorted(set(attached).difference(after), reverse=True):
        schedule.compute_inline(prepared.blocks[inlined])


def _in_chunks(
    schedule: Schedule, block: SBlockRV, rank: int, chunk: Chunk
) -> tuple[SBlockRV, SBlockRV]:
    """The sum of each chunk in registers, with a loop over chunks before what was one with it, and
    the sum of those."""
    whole = schedule.get_loops(block)[-rank:]
    outer, _ = schedule.split(whole[chunk.axis], [None, chunk.size])
    part = schedule.rfactor(outer, 0)
    schedule.set_scope(part, 0, "local")
    return part, block


def _columns_last(schedule: Schedule, block: SBlockRV, place: int) -> None:
    """Puts the loop that comes as many places from the end behind those after it: taps of which
    there is one."""
    if place > 1:
        loops = schedule.get_loops(block)[-len(schedule.get(block).iter_vars) :]
        schedule.reorder(*loops[1 - place :], loops[-place])


def _copy(schedule: Schedule, prepared: Prepared, anchor: int, read: int) -> SBlockRV:
    """A stage that copies what one read of the anchor takes; at a core tile only its part of it."""
    block, reads = prepared.blocks[anchor], prepared.graph.nodes[anchor].reads
    body = schedule.get(block)
    tensors = list(dict.fromkeys(access.tensor for access in reads))
    source = sources(body.body)[tensors.index(reads[read].tensor)]
    place = next(i for i, region in enumerate(body.reads) if region.source.same_as(source))
    return schedule.cache_read(block, place, "global", [block])


def register_epilogue(
    schedule: Schedule, block: SBlockRV, lanes: int, node: TileNode | None = None, steps: int = 0
) -> None:
    """Unrolls the epilogue over the register tile, its last axis in vectors; `node` is its node,
    None for a plain copy, and `steps` are those of the reduction before it.

    What it reads several vectors at once LLVM keeps as values that wide in the reduction too. It
    then takes all steps of an unrolled body accumulator by accumulator, and the operands of every
    step need registers (7 x 7 convolution of 3 channels with 32 registers: 804 → 500 us). So only
    arithmetic that would wait for itself, and is no small part of the work, is taken several
    vectors at once (GELU behind 3840 steps: 77 → 36 ms without, behind 432 7.6 → 5.3; behind 96 to
    192 slower, by 2 % of a ConvNeXt).
    """
    loops = schedule.get_loops(block)[-len(schedule.get(block).iter_vars) :]
    extent = extent_of(schedule, loops[-1])
    if lanes > 1:
        *rest, last = loops
        waits = node is not None and node.flops_per_point >= COSTLY_FLOPS and steps < MANY_STEPS
        width = interleaved(extent, lanes) if waits else lanes
        chunk, lane = schedule.split(last, [None, width])
        schedule.vectorize(lane)
        loops = [*rest, chunk]
    for loop in loops:
        schedule.unroll(loop)


def _attach(
    schedule: Schedule, block: SBlockRV, loop: object, lanes: int, node: TileNode | None = None
) -> None:
    """Computes a producer inside the core tile, its innermost loop in vectors; `node` is its node,
    None for a plain copy."""
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    vectorise_stage(schedule, block, lanes, node)


def vectorise_stage(
    schedule: Schedule, block: SBlockRV, lanes: int, node: TileNode | None = None
) -> None:
    """The innermost loop of a stage in vectors; `node` is its node, None for a plain copy.

    A transposition goes by squares: of the lines that a vector's elements come from all is used
    (256 planes of 128 x 128 before three products in strips of two rows: 15.1 → 7.2 ms).
    """
    own = schedule.get_loops(block)[-len(schedule.get(block).iter_vars) :]
    across = None if node is None else transposed_axis(node)
    if across is not None and extent_of(schedule, own[across]) % lanes == 0:
        extent = extent_of(schedule, own[-1])
        outside, inside = schedule.split(own[across], [None, lanes])
        chunk, last = schedule.split(own[-1], [None, min(lanes, extent)])
        between = own[across + 1 : -1]
        schedule.reorder(outside, *between, chunk, inside, last)
        schedule.unroll(inside)
        if lanes > 1 and extent % lanes == 0:
            schedule.vectorize(last)
            mark_square(schedule, inside)
            return
        own = [*own[:-1], last]
    vectorise_last(schedule, own[-1], lanes, hint=node is None or is_affine(node))


def interleaved(extent: int, lanes: int) -> int:
    """Elements of a loop body of several vectors, as many as divide the extent: LLVM then issues
    each step of a polynomial for all of them in turn, where one vector after another waits for
    itself (a softmax of rows of 768: 165 → 134 us)."""
    sizes = (lanes * vectors for vectors in INTERLEAVED)
    return next((size for size in sizes if extent % size == 0), lanes)


def vectorise_last(schedule: Schedule, loop: object, lanes: int, *, hint: bool = True) -> None:
    """Splits a loop into vectors of `lanes`; a tail becomes a scalar loop of its own.

    Without `hint` it keeps a predicate: TVM's loop partitioning mixes index types in a stage whose
    indices are data (gather), and the stage then does not compile.
    """
    extent = extent_of(schedule, loop)
    while lanes > 1 and extent < lanes:
        lanes //= 2
    if lanes <= 1:
        return
    chunk, lane = schedule.split(loop, [None, lanes])
    if extent % lanes and hint:
        schedule.annotate(chunk, PARTITION, 1)
    schedule.vectorize(lane)
