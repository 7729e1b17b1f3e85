"""The `flat` rule for map stages, and the loose form given to stages a plan does not name."""

from __future__ import annotations

from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.write_tile import PARTITION, vectorise_last
from tvm_ext.tvm_api import ScheduleError


def write_flat(prepared: Prepared, plan: TilePlan) -> None:
    """One loop over all elements in memory order, cut into parallel chunks of whole vectors.

    for i, j: y[i,j] = f(x[i,j])   →   parallel chunk: for v: y.vector = f(x.vector)
    """
    schedule = prepared.schedule
    block = prepared.blocks[plan.anchor]
    extent = 1
    for axis in prepared.graph.nodes[plan.anchor].axes:
        extent *= axis.extent
    loops = schedule.get_loops(block)
    if not loops:
        return
    loop = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    chunk = min(extent, plan.at("core").points)
    task, loop = schedule.split(loop, [None, chunk])
    if extent % chunk:
        schedule.annotate(task, PARTITION, 1)
    vectorise_last(schedule, loop, plan.lanes)
    if plan.parallel:
        schedule.parallel(task)


def write_loose(prepared: Prepared, index: int, plan: TilePlan) -> None:
    """Outer space loops in parallel, the innermost vectorised if contiguous; else as it is."""
    schedule, block = prepared.schedule, prepared.blocks[index]
    node = prepared.graph.nodes[index]
    try:
        loops = schedule.get_loops(block)
    except ScheduleError:
        return
    space = loops[: len(node.space)] if node.kind != "opaque" else []
    if not space or len(loops) != len(node.axes):
        return
    if node.kind == "map" and len(space) > 1:
        vectorise_last(schedule, space[-1], plan.lanes)
        space = space[:-1]
    if plan.parallel:
        schedule.parallel(schedule.fuse(*space) if len(space) > 1 else space[0])
