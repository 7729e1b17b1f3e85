"""The `chain` rule: a product between two separable transforms over tiles (Winograd).

    rows_in; cols_in; product; rows_out; last
        →  with the stages attached at `core`
    parallel tiles of the last stage's rows and columns:
        cols_in (rows_in in registers)
        blocks of channels: product by register tiles; last (rows_out in registers)
        →  with blocks of channels as tasks, those of a tile side by side
    parallel tiles of the last stage's rows and columns, blocks of channels:
        cols_in (rows_in in registers); product by register tiles; last (rows_out in registers)
        →  with the stages attached at `core`, channels first in the order
    parallel blocks of channels, tiles of the last stage's rows and columns:
        cols_in (rows_in in registers); product by register tiles; last (rows_out in registers)
        →  with the stages attached at `root`
    parallel: cols_in (rows_in in registers)
    parallel: product by register tiles
    parallel: last (rows_out in registers)

At `core` the transformed data of a few tiles and the products of a block of channels stay in cache,
and the weights are read once for each core tile. With blocks as tasks the input is transformed once
for each of them: rows of tiles that cores cannot share out evenly are halved so. With channels
first each core has weights of its own as well. At `root` the weights are read once, and all
transformed data goes through memory.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tile.chain import CHANNELS_FIRST, IMAGE_FIRST, TransformChain, chain_form
from tvm_ext.tile.classify import even_lanes
from tvm_ext.tile.graph import TileNode
from tvm_ext.tile.legal import check_chain
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.requests import line_elements
from tvm_ext.tir.shift import PARTITION
from tvm_ext.tir.write_tile import register_epilogue
from tvm_ext.tvm_api import SBlockRV, Schedule

SPACE = 6
"""Space axes of the product: a, b, n, ty, tx, o."""


def write_chain(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules all stages."""
    graph, schedule = prepared.graph, prepared.schedule
    chain = check_chain(graph, plan)
    inside = plan.attach[0].level == "core"
    product, last = graph.nodes[chain.product], graph.nodes[chain.last]
    core = plan.at("core")
    lanes_in = even_lanes(product.extents[-1], plan.lanes)
    lanes_out = even_lanes(last.extents[-1], plan.lanes)
    rows, columns = (core.extents[3], core.extents[4]) if inside else (1, 1)
    channels = core.extents[5] if inside else lanes_out
    form = chain_form(plan)
    grid = "bnhw" if form == CHANNELS_FIRST else "nhw" if form == IMAGE_FIRST else "nhwb"
    task, block = _write_last(prepared, chain, (rows, columns, channels), lanes_out, grid)
    blocks = prepared.blocks
    if inside:
        schedule.compute_at(blocks[chain.product], block, preserve_unit_loops=True)
        schedule.compute_at(blocks[chain.cols_in], task, preserve_unit_loops=True)
    sweep = _write_product(schedule, blocks[chain.product], product, plan, parallel=not inside)
    transforms = _write_input(prepared, chain, lanes_in)
    if plan.parallel:
        schedule.parallel(task)
        if not inside:
            schedule.parallel(schedule.fuse(*transforms))
    schedule.decompose_reduction(blocks[chain.product], sweep)


def _write_last(
    prepared: Prepared, chain: TransformChain, tile: tuple[int, int, int], lanes: int, grid: str
) -> tuple[Any, Any]:
    """The last stage over boxes of so many tiles of rows, of columns and so many channels, rows_out
    in registers. Returns the loop over tasks and the one over their blocks of channels. `grid` says
    what tasks are: boxes of the image n, h, w with all blocks b, or single blocks of them."""
    schedule, (down, along) = prepared.schedule, chain.tile
    batch, *image, channels = schedule.get_loops(prepared.blocks[chain.last])
    if len(image) == 1:  # a sequence: an image of one row
        batch, row = schedule.split(batch, [None, 1])
        image = [row, *image]
    height, width = image
    height_outer, height_tile, height_point = schedule.split(height, [None, tile[0], down])
    width_outer, width_tile, width_point = schedule.split(width, [None, tile[1], along])
    block, chunk, lane = schedule.split(channels, [None, tile[2] // lanes, lanes])
    loops = {"n": batch, "h": height_outer, "w": width_outer, "b": block}
    tasks = [loops[name] for name in grid]
    rest = [loop for name, loop in loops.items() if name not in grid]
    schedule.reorder(*tasks, *rest, height_tile, width_tile, chunk, height_point, width_point, lane)
    _keep_in_registers(prepared, chain.rows_out, chunk)
    schedule.unroll(height_point)
    schedule.unroll(width_point)
    schedule.vectorize(lane)
    task = schedule.fuse(*tasks)
    return task, rest[0] if rest else task


def _write_product(
    schedule: Schedule, block: SBlockRV, node: TileNode, plan: TilePlan, *, parallel: bool
) -> Any:
    """Register tiles of the product. Returns the loop that steps through the channels."""
    core, register = plan.at("core").extents, plan.at("register").extents
    copy = schedule.cache_write(block, 0, "local")
    spread_planes(schedule, copy, 1)
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
    schedule, cols_in = prepared.schedule, prepared.blocks[chain.cols_in]
    a, b, batch, rows, columns, channels = schedule.get_loops(cols_in)[-SPACE:]
    chunk, lane = schedule.split(channels, [None, lanes])
    schedule.reorder(batch, rows, columns, chunk, a, b, lane)
    _keep_in_registers(prepared, chain.rows_in, chunk)
    schedule.unroll(a)
    schedule.unroll(b)
    schedule.vectorize(lane)
    spread_planes(schedule, cols_in, 1)
    return batch, rows, columns, chunk


def spread_planes(schedule: Schedule, block: SBlockRV, axis: int) -> None:
    """Puts the planes that an axis counts of the tensor a block writes an odd number of cache lines
    apart.

    A transform touches all of them at one place. Planes of a power of two would share one set of
    the cache (14 x 14 x 512, channels first: 1190 → 940 us).
    """
    line = line_elements(schedule.get(block).writes[0].source)
    schedule.storage_align(block, 0, axis, 2 * line, line)


def _keep_in_registers(prepared: Prepared, stage: int | None, chunk: Any) -> None:
    """Computes a transform along rows, if there is one, vector by vector where it is used."""
    if stage is None:
        return
    schedule, block = prepared.schedule, prepared.blocks[stage]
    schedule.set_scope(block, 0, "local")
    schedule.compute_at(block, chunk)
    *_, first, second, lane = schedule.get_loops(block)
    schedule.unroll(first)
    schedule.unroll(second)
    schedule.vectorize(lane)
