"""The rules for GPUs besides `block`: `block_rows`, `block_flat` and their fallback `block_loose`.

A thread block takes what a core takes on a CPU, and its threads what vector lanes take:

    for i: s[i] = sum_j x[i,j];  for i, j: y[i,j] = x[i,j] / s[i]
        →
    blockIdx.x: rows; threadIdx.x: parts of a row's sum, put together; s → shared memory
                      threadIdx.x: elements of the row

Every stage ends inside some grid: what a plan does not name gets a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.legal import contiguous_cut, row_count
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tvm_api import SBlockRV, Schedule, ScheduleError, tirx


def write_block_rows(prepared: Prepared, plan: TilePlan) -> None:
    """One row per block, every stage of it by all threads; what lies between stages is shared."""
    schedule, graph = prepared.schedule, prepared.graph
    block = prepared.blocks[plan.anchor]
    rows = row_count(graph, plan)
    loops = schedule.get_loops(block)
    if rows and loops:
        row = fuse(schedule, loops[:rows])
    else:
        row = schedule.add_unit_loop(loops[0] if loops else block)
    schedule.bind(row, "blockIdx.x")
    _bind_row(prepared, plan.anchor, plan.lanes)
    for stage in sorted((e.stage for e in plan.attach if e.level == "core"), reverse=True):
        schedule.set_scope(prepared.blocks[stage], 0, "shared")
        schedule.compute_at(prepared.blocks[stage], row, preserve_unit_loops=True)
        _bind_row(prepared, stage, plan.lanes)


def _bind_row(prepared: Prepared, stage: int, threads: int) -> None:
    """Spreads the loops of a stage inside its row over the threads: its space, or, where that is
    one element, its reduction, whose partial results the threads then combine."""
    schedule, block = prepared.schedule, prepared.blocks[stage]
    own = schedule.get_loops(block)[1:]
    if not own:
        own = [schedule.add_unit_loop(block)]
    reduces = len(prepared.graph.nodes[stage].reduce)
    space = own[: len(own) - reduces]
    wide = prod(extent_of(schedule, loop) for loop in space) > 1
    chosen = space if wide or not reduces else own[len(own) - reduces :]
    spread(schedule, chosen, threads, 1)


def write_block_flat(prepared: Prepared, plan: TilePlan) -> None:
    """Contiguous boxes per block; neighbours to neighbouring threads, `unroll` elements each."""
    schedule, node = prepared.schedule, prepared.graph.nodes[plan.anchor]
    extents = plan.at("core").extents
    cut = contiguous_cut(node, plan.at("core"))
    if node.kind != "map":
        raise PlanError("flat", f"plan for {node.name}: it is no map stage")
    loops = schedule.get_loops(prepared.blocks[plan.anchor])
    if not loops:
        return _bind_scalar(schedule, prepared.blocks[plan.anchor])
    outer, inner = schedule.split(loops[cut], [None, extents[cut]])
    schedule.bind(fuse(schedule, [*loops[:cut], outer]), "blockIdx.x")
    spread(schedule, [inner, *loops[cut + 1 :]], plan.lanes, plan.unroll)


def write_block_loose(prepared: Prepared, index: int, plan: TilePlan) -> None:
    """A kernel of its own for a stage no rule tiles: one thread per element of its output."""
    schedule, block = prepared.schedule, prepared.blocks[index]
    node = prepared.graph.nodes[index]
    try:
        loops = schedule.get_loops(block)
    except ScheduleError:
        return
    leading = next((i for i, a in enumerate(node.axes) if a.kind == "reduce"), len(node.axes))
    if len(loops) != len(node.axes) or node.kind == "opaque":
        raise PlanError("loose", f"plan for {node.name}: a stage that is not understood")
    if not leading:
        return _bind_scalar(schedule, block)
    outer, thread = schedule.split(fuse(schedule, loops[:leading]), [None, plan.lanes])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def _bind_scalar(schedule: Schedule, block: SBlockRV) -> None:
    """One thread of one block for a stage without space axes."""
    loops = schedule.get_loops(block)
    thread = schedule.add_unit_loop(loops[0] if loops else block)
    outer = schedule.add_unit_loop(thread)
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def fuse(schedule: Schedule, loops: Sequence[Any]) -> Any:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def spread(schedule: Schedule, loops: Sequence[Any], threads: int, width: int) -> None:
    """Shares loops out over the threads of the block, each taking `width` neighbours at once.

    The vector is split off first, from the innermost loop where it can be, so that no condition on
    the thread, and no other index, depends on its lane.
    """
    if not all(isinstance(schedule.get(loop).extent, tirx.IntImm) for loop in loops):
        raise PlanError("copy", "plan: a copy whose size changes from one step to the next")
    *outer, row = loops
    lane = None
    if width > 1 and extent_of(schedule, row) % width == 0:
        row, lane = schedule.split(row, [None, width])
    body = fuse(schedule, [*outer, row])
    if width > 1 and lane is None:
        body, lane = schedule.split(body, [None, width])
    _, thread = schedule.split(body, [None, threads])
    schedule.bind(thread, "threadIdx.x")
    if lane is not None:
        schedule.vectorize(lane)
