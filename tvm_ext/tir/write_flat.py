"""The `flat` rule for map stages, and the loose form given to stages a plan does not name."""

from __future__ import annotations

from tvm_ext.tile.classify import is_affine
from tvm_ext.tile.legal import contiguous_cut
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.shift import PARTITION
from tvm_ext.tir.write_tile import interleaved, vectorise_last
from tvm_ext.tvm_api import ScheduleError


def write_flat(prepared: Prepared, plan: TilePlan) -> None:
    """One loop over contiguous memory per task.

        for i, j: y[i,j] = f(x[i,j])   →   parallel i: for j/lanes: y.vector = f(x.vector)

    The core tile is a contiguous box: ones, one axis cut or whole, then whole axes. Vectors are
    explicit where they never cross the end of a row; elsewhere the indices of a vector would no
    longer simplify to neighbours, and LLVM vectorises the scalar loop instead.
    """
    schedule, node = prepared.schedule, prepared.graph.nodes[plan.anchor]
    loops = schedule.get_loops(prepared.blocks[plan.anchor])
    if not loops:
        return
    core = plan.at("core")
    extents = core.extents
    cut = contiguous_cut(node, core)
    outer, inner = schedule.split(loops[cut], [None, extents[cut]])
    grid = [*loops[:cut], outer]
    task = schedule.fuse(*grid) if len(grid) > 1 else outer
    row = [inner, *loops[cut + 1 :]]
    if node.axes[cut].extent % extents[cut] and is_affine(node):
        schedule.annotate(task, PARTITION, 1)
    body = schedule.fuse(*row) if len(row) > 1 else inner
    long = [axis for axis, own in enumerate(node.axes) if own.extent > 1]
    last = extents[long[-1]] if long else 1
    if last % plan.lanes == 0 or not long or long[-1] == cut:
        lanes = interleaved(last, plan.lanes)
        vectorise_last(schedule, body, lanes, hint=is_affine(node))
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
    leading = next((i for i, a in enumerate(node.axes) if a.kind == "reduce"), len(node.axes))
    space = loops[:leading]
    if not space or len(loops) != len(node.axes):
        return
    if node.kind == "map" and len(space) > 1:
        vectorise_last(schedule, space[-1], plan.lanes, hint=is_affine(node))
        space = space[:-1]
    if plan.parallel:
        try:
            schedule.parallel(schedule.fuse(*space) if len(space) > 1 else space[0])
        except ScheduleError:
            if node.kind != "opaque":
                raise
