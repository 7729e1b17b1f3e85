"""The `chain` rule: a product between two separable transforms over tiles (Winograd).

    rows_in; cols_in; product; rows_out; last
        →  with the stages attached at `core`
    parallel tiles of the last stage's rows and columns:
        cols_in (rows_in in registers); product by register tiles; last (rows_out in registers)
        →  with the stages attached at `root`
    parallel: cols_in (rows_in in registers)
    parallel: product by register tiles
    parallel: last (rows_out in registers)

At `core` the transformed data of a few tiles stays in cache and the weights are read once for each
core tile; at `root` the weights are read once, and all transformed data goes through memory.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import TransformChain, even_lanes, transform_chain
from tvm_ext.tile.graph import TileNode
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.write_tile import PARTITION, check_tiles, register_epilogue
from tvm_ext.tvm_api import SBlockRV, Schedule

SPACE = 6
"""Space axes of the product: a, b, n, ty, tx, o."""
MIN_LANES = 4


def write_chain(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules all five stages. Raises PlanError for a group or a tile of another form."""
    graph, schedule = prepared.graph, prepared.schedule
    chain = transform_chain(graph)
    if chain is None or plan.anchor != chain.product:
        raise PlanError("structure", "plan: rule chain needs a product between two transforms")
    levels = {entry.level for entry in plan.attach}
    if len(plan.attach) != len(graph.nodes) - 1 or levels not in ({"core"}, {"root"}):
        raise PlanError("attach", f"plan: rule chain with stages attached at {sorted(levels)}")
    inside = levels == {"core"}
    product, last = graph.nodes[chain.product], graph.nodes[chain.last]
    core, register = plan.at("core"), plan.at("register")
    check_tiles(product, core, register, plan)
    lanes_in = even_lanes(product.extents[-1], plan.lanes)
    lanes_out = even_lanes(last.extents[-1], plan.lanes)
    if min(lanes_in, lanes_out) < MIN_LANES:
        raise PlanError("lanes", f"plan: vectors of {lanes_in} and {lanes_out} channels")
    rows, columns = (core.extents[3], core.extents[4]) if inside else (1, 1)
    if inside:
        _check_cut(product, last, chain, core)
    task = _write_last(prepared, chain, (rows, columns), lanes_out, split_channels=not inside)
    blocks = prepared.blocks
    if inside:
        schedule.compute_at(blocks[chain.product], task, preserve_unit_loops=True)
        schedule.compute_at(blocks[chain.cols_in], task, preserve_unit_loops=True)
    sweep = _write_product(schedule, blocks[chain.product], product, plan, parallel=not inside)
    grid = _write_input(prepared, chain, lanes_in)
    if plan.parallel:
        schedule.parallel(task)
        if not inside:
            schedule.parallel(schedule.fuse(*grid))
    schedule.decompose_reduction(blocks[chain.product], sweep)


def _check_cut(product: TileNode, last: TileNode, chain: TransformChain, core: Tile) -> None:
    """Core tiles at the border of the image must be whole."""
    a, b, _, rows, columns, channels, _ = core.extents
    if (a, b, channels) != tuple(product.extents[axis] for axis in (0, 1, 5)):
        raise PlanError("extent", f"plan: core tile {core.extents} cuts the window or the channels")
    for axis, tiles in ((3, rows), (4, columns)):
        if tiles < product.extents[axis] and last.extents[axis - 2] % (tiles * chain.m):
            raise PlanError("tail", f"plan: core tile {core.extents} leaves a tail of the image")


def _write_last(
    prepared: Prepared,
    chain: TransformChain,
    tiles: tuple[int, int],
    lanes: int,
    *,
    split_channels: bool,
) -> Any:
    """The last stage over boxes of `tiles`, rows_out in registers. Returns the loop over tasks."""
    schedule, m = prepared.schedule, chain.m
    last, rows_out = prepared.blocks[chain.last], prepared.blocks[chain.rows_out]
    batch, height, width, channels = schedule.get_loops(last)
    height_outer, height_tile, height_point = schedule.split(height, [None, tiles[0], m])
    width_outer, width_tile, width_point = schedule.split(width, [None, tiles[1], m])
    chunk, lane = schedule.split(channels, [None, lanes])
    schedule.reorder(
        batch,
        height_outer,
        width_outer,
        *((chunk,) if split_channels else ()),
        height_tile,
        width_tile,
        *(() if split_channels else (chunk,)),
        height_point,
        width_point,
        lane,
    )
    schedule.set_scope(rows_out, 0, "local")
    schedule.compute_at(rows_out, width_tile if split_channels else chunk)
    _unroll_inner(schedule, rows_out, 2)
    schedule.unroll(height_point)
    schedule.unroll(width_point)
    schedule.vectorize(lane)
    grid = (batch, height_outer, width_outer, *((chunk,) if split_channels else ()))
    return schedule.fuse(*grid)


def _write_product(
    schedule: Schedule, block: SBlockRV, node: TileNode, plan: TilePlan, *, parallel: bool
) -> Any:
    """Register tiles of the product. Returns the loop that steps through the channels."""
    core, register = plan.at("core").extents, plan.at("register").extents
    copy = schedule.cache_write(block, 0, "local")
    a, b, *tiled, channel = schedule.get_loops(block)[-len(node.axes) :]
    outer, middle, inner = [], [], []
    for axis, loop in enumerate(tiled, start=2):
        # attached at `core`, the loops are those of one core tile already
        whole = None if not parallel else core[axis]
        first, loop = schedule.split(loop, [None, whole]) if whole else (None, loop)
        between, point = schedule.split(loop, [None, register[axis]])
        outer.append(first)
        middle.append(between)
        inner.append(point)
        if core[axis] % register[axis]:
            schedule.annotate(between, PARTITION, 1)
    sweep, step = schedule.split(channel, [None, register[-1]])
    columns, lane = schedule.split(inner.pop(), [None, plan.lanes])
    tasks = [loop for loop in (a, b, outer[-1], *outer[:-1]) if loop is not None]
    schedule.reorder(*tasks, middle[-1], *middle[:-1], sweep, step, *inner, columns, lane)
    schedule.reverse_compute_at(copy, middle[-2], preserve_unit_loops=True)
    if parallel and plan.parallel:
        schedule.parallel(schedule.fuse(*tasks))
    for loop in (step, *inner, columns):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    register_epilogue(schedule, copy, plan.lanes)
    return sweep


def _write_input(prepared: Prepared, chain: TransformChain, lanes: int) -> tuple[Any, ...]:
    """The transformed input vector by vector, rows_in in registers. Returns the loops outside."""
    schedule = prepared.schedule
    cols_in, rows_in = prepared.blocks[chain.cols_in], prepared.blocks[chain.rows_in]
    a, b, batch, rows, columns, channels = schedule.get_loops(cols_in)[-SPACE:]
    chunk, lane = schedule.split(channels, [None, lanes])
    schedule.reorder(batch, rows, columns, chunk, a, b, lane)
    schedule.set_scope(rows_in, 0, "local")
    schedule.compute_at(rows_in, chunk)
    _unroll_inner(schedule, rows_in, 2)
    schedule.unroll(a)
    schedule.unroll(b)
    schedule.vectorize(lane)
    return batch, rows, columns, chunk


def _unroll_inner(schedule: Schedule, block: SBlockRV, count: int) -> None:
    """Unrolls the `count` loops outside the innermost, which becomes a vector."""
    *_, last = loops = schedule.get_loops(block)
    for loop in loops[-1 - count : -1]:
        schedule.unroll(loop)
    schedule.vectorize(last)
