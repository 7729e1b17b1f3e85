"""The `strassen` rule: sums of quarters, seven products of them, and sums of those.

    quarters; product; last
        →
    parallel rows: quarters, all sums of a vector at once
    parallel parts of the columns, of the rows:
        blocks of columns:
            seven products by register tiles; last, all four quarters of a vector at once
        →  with the quarters attached at `core`
    parallel parts of the columns, of the rows:
        quarters
        blocks of columns: seven products by register tiles; last

A block's products stay in cache. Quarters of their own phase are made once for all columns, and
half of them by other cores; inside they are a task's own.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.strassen import COLUMNS, ROWS, attached, check_strassen
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tir.shift import PARTITION
from tvm_ext.tir.write_chain import spread_planes
from tvm_ext.tir.write_tile import register_epilogue
from tvm_ext.tvm_api import SBlockRV, Schedule


def write_strassen(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules all three stages."""
    schedule = prepared.schedule
    found = check_strassen(prepared.graph, plan)
    first, product = prepared.blocks[found.quarters], prepared.blocks[found.product]
    shared = plan.attach == attached(found, "root")
    task, block = _write_last(schedule, prepared.blocks[found.last], plan)
    schedule.compute_at(product, block, preserve_unit_loops=True)
    if not shared:
        schedule.compute_at(first, task, preserve_unit_loops=True)
    sweep = _write_product(schedule, product, plan)
    row = _write_quarters(schedule, first, plan)
    if plan.parallel:
        schedule.parallel(task)
        if shared:
            schedule.parallel(row)
    schedule.decompose_reduction(product, sweep)


def _write_last(schedule: Schedule, block: SBlockRV, plan: TilePlan) -> tuple[Any, Any]:
    """The last stage by tasks, blocks of columns and pairs of rows, a vector of each quarter at a
    time. Returns the loop over tasks and the one over their blocks."""
    core, held = plan.at("core").extents, plan.at("l2").extents[COLUMNS]
    row, half, column = schedule.get_loops(block)
    uneven = extent_of(schedule, row) % (2 * core[ROWS])
    sizes = [None, core[COLUMNS] // held, held // plan.lanes, plan.lanes]
    side, inside, chunk, lane = schedule.split(column, sizes)
    part, pair, neighbour = schedule.split(row, [None, core[ROWS], 2])
    schedule.reorder(side, part, inside, pair, chunk, neighbour, half, lane)
    if uneven:
        schedule.annotate(pair, PARTITION, 1)
    schedule.unroll(neighbour)
    schedule.unroll(half)
    schedule.vectorize(lane)
    return schedule.fuse(side, part), inside


def _write_product(schedule: Schedule, block: SBlockRV, plan: TilePlan) -> Any:
    """Register tiles of the seven products. Returns the loop that steps through the reduction."""
    core, register = plan.at("core").extents, plan.at("register").extents
    copy = schedule.cache_write(block, 0, "local")
    spread_planes(schedule, copy, 0)
    quarter, row, column, step = schedule.get_loops(block)[-len(core) :]
    row_tile, row_point = schedule.split(row, [None, register[ROWS]])
    column_tile, column_chunk, lane = schedule.split(
        column, [None, register[COLUMNS] // plan.lanes, plan.lanes]
    )
    sweep, inner = schedule.split(step, [None, register[-1]])
    if core[ROWS] % register[ROWS]:
        schedule.annotate(row_tile, PARTITION, 1)
    schedule.reorder(quarter, column_tile, row_tile, sweep, inner, row_point, column_chunk, lane)
    schedule.reverse_compute_at(copy, row_tile, preserve_unit_loops=True)
    for loop in (inner, row_point, column_chunk):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    register_epilogue(schedule, copy, plan.lanes)
    return sweep


def _write_quarters(schedule: Schedule, block: SBlockRV, plan: TilePlan) -> Any:
    """The sums vector by vector. Returns the loop over rows."""
    spread_planes(schedule, block, 0)
    quarter, row, step = schedule.get_loops(block)[-len(plan.order) + 1 :]
    tail = extent_of(schedule, step) % plan.lanes
    chunk, lane = schedule.split(step, [None, plan.lanes])
    schedule.reorder(row, chunk, quarter, lane)
    if tail:
        schedule.annotate(chunk, PARTITION, 1)
    schedule.unroll(quarter)
    schedule.vectorize(lane)
    return row
