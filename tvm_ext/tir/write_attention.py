"""The `attention` rule: a softmax between two products, a block of queries at a time.

    turned; scores (biased); top; power; total; mixed; divided by total
        →
    parallel heads, or parts of their queries:
        keys and values of the head, copied side by side (if staged), or values put together
        blocks of queries:
            turned, by squares
            scores by register tiles (biased in registers)
            top; power; total, queries in vectors
            mixed by register tiles
            divided by total and turned back, by squares

The scores of a block never leave the caches of a core (Welder, section 3.2: every edge lowered to
L2). They fit for any number of keys that a model has, so that the second loop of FlashAttention,
which corrects sums already taken by each new maximum, is not needed.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.attention import COLUMN, ROW, last_axes
from tvm_ext.tile.classify import even_lanes
from tvm_ext.tile.legal import check_attention
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tir.shift import PARTITION
from tvm_ext.tir.transpose import mark_square
from tvm_ext.tir.write_tile import register_epilogue, vectorise_last
from tvm_ext.tvm_api import SBlockRV, Schedule


def write_attention(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules all stages."""
    schedule, blocks, lanes = prepared.schedule, prepared.blocks, plan.lanes
    found = check_attention(prepared.graph, plan)
    products = found.scores, found.mixed
    copies = [_copy(prepared, products[place]) for place in plan.staged]
    local = {
        stage: schedule.cache_write(blocks[stage], 0, "local")
        for stage in (*products, found.top, found.total)
        if stage != found.scores or found.biased is None
    }
    if found.biased is not None:
        schedule.set_scope(blocks[found.scores], 0, "local")
    task, block = _write_last(schedule, blocks[found.last], last_axes(prepared.graph, found), plan)
    for stage in range(found.last - 1, -1, -1):
        for own in (local.get(stage), blocks[stage]):
            if own is not None and stage != found.values:
                schedule.compute_at(own, block, preserve_unit_loops=True)
    if found.values is not None:
        copies.append(blocks[found.values])
    for copy in copies:
        schedule.compute_at(copy, task, preserve_unit_loops=True)
        vectorise_last(schedule, schedule.get_loops(copy)[-1], lanes)
    _write_squares(schedule, schedule.get_loops(blocks[found.turned])[-2:], lanes)
    if found.biased is not None:
        local[found.scores] = blocks[found.biased]
    sweeps = {}
    for stage, level in zip(products, ("register", "second"), strict=True):
        tile = plan.at(level).extents[ROW:]
        sweeps[stage] = _write_product(schedule, blocks[stage], local[stage], tile, lanes)
    for stage in (found.top, found.total):
        sweeps[stage] = _write_column(schedule, blocks[stage], local[stage], lanes)
    chunk, lane = schedule.split(schedule.get_loops(blocks[found.power])[-1], [None, lanes])
    schedule.unroll(chunk)
    schedule.vectorize(lane)
    if plan.parallel:
        schedule.parallel(task)
    for stage, sweep in sweeps.items():
        schedule.decompose_reduction(blocks[stage], sweep)


def _write_last(
    schedule: Schedule, last: SBlockRV, axes: tuple[int, ...], plan: TilePlan
) -> tuple[Any, Any]:
    """The last stage by tasks, blocks of queries, and squares. Returns the loops over tasks and the
    blocks of one."""
    task, block = (plan.at(level).extents[COLUMN] for level in ("core", "l2"))
    loops = schedule.get_loops(last)
    batch, heads, queries, width = (loops[axis] for axis in axes)
    part, between, query = schedule.split(queries, [None, task // block, block])
    schedule.reorder(batch, heads, part, between, query, width)
    outer = schedule.fuse(batch, heads, part)
    _write_squares(schedule, [query, width], plan.lanes)
    return outer, between


def _copy(prepared: Prepared, stage: int) -> SBlockRV:
    """A stage that copies the operand of a product that comes from outside."""
    schedule, block = prepared.schedule, prepared.blocks[stage]
    outside = schedule.mod["main"].params
    for place, region in enumerate(schedule.get(block).reads):
        if any(region.source.same_as(parameter) for parameter in outside):
            return schedule.cache_read(block, place, "global", [block])
    raise PlanError("staged", "plan: a product of attention that reads nothing from outside")


def _write_product(
    schedule: Schedule, block: SBlockRV, epilogue: SBlockRV, tile: tuple[int, ...], lanes: int
) -> Any:
    """Register tiles of a product of so many rows, columns and steps. Returns the loop of steps."""
    row, column, step = schedule.get_loops(block)[-3:]
    tail = extent_of(schedule, row) % tile[0]
    row_tile, row_point = schedule.split(row, [None, tile[0]])
    column_tile, column_chunk, lane = schedule.split(column, [None, tile[1] // lanes, lanes])
    sweep, inner = schedule.split(step, [None, tile[2]])
    schedule.reorder(column_tile, row_tile, sweep, inner, row_point, column_chunk, lane)
    schedule.reverse_compute_at(epilogue, row_tile, preserve_unit_loops=True)
    if tail:
        schedule.annotate(row_tile, PARTITION, 1)
    for loop in (inner, row_point, column_chunk):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    register_epilogue(schedule, epilogue, lanes)
    return sweep


def _write_column(schedule: Schedule, block: SBlockRV, copy: SBlockRV, lanes: int) -> Any:
    """A reduction down the columns, one vector of results for each vector of queries."""
    column, row = schedule.get_loops(block)[-2:]
    chunk, lane = schedule.split(column, [None, lanes])
    schedule.reorder(row, chunk, lane)
    schedule.unroll(chunk)
    schedule.vectorize(lane)
    register_epilogue(schedule, copy, lanes)
    return row


def _write_squares(schedule: Schedule, loops: list[Any], lanes: int) -> None:
    """A transposition of two loops by squares of vectors, as large as the extents allow."""
    outer, inner = loops
    across, along = (even_lanes(extent_of(schedule, loop), lanes) for loop in loops)
    size = min(across, along)
    if size == 1:
        schedule.vectorize(schedule.split(inner, [None, along])[1])
        return
    outer_chunk, outside = schedule.split(outer, [None, size])
    inner_chunk, inside = schedule.split(inner, [None, size])
    schedule.reorder(outer_chunk, inner_chunk, outside, inside)
    schedule.unroll(outside)
    schedule.vectorize(inside)
    mark_square(schedule, outside)
