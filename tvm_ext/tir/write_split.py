"""The `split` rule: a reduction whose iterations are shared out over the cores.

for i, k: s += f(x[i, k])
    →
parallel p: for i/P, k/64: part[p, 0:64] += f(x[...]);   sum over p;  the tree of rule `rows`

for i: s[j] += f(x[i, j])
    →
parallel p: for j/128, i/P: part[p, j:j+128] += f(x[...]);   s[j] += part[p, j]
"""

from __future__ import annotations

from tvm_ext.errors import PlanError
from tvm_ext.tile.fuse import in_lanes
from tvm_ext.tile.legal import check_split
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.write_rows import partial_reductions, vectorise_partial
from tvm_ext.tir.write_tile import vectorise_last

VECTORS = (8, 7, 6, 5, 4, 3, 2, 1)
"""Vectors of results that are kept in registers, the first that divide them."""


def write_split(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules the anchor; the core tile is one part of its outermost reduction axis, parts are
    equal. Stages attached stay as they are: they are as short as the result.

    Raises PlanError where the vectors of partial results do not fall into the parts.
    """
    schedule, node = prepared.schedule, prepared.graph.nodes[plan.anchor]
    axis = check_split(node, plan)
    for other in prepared.blocks:
        if not schedule.get_loops(other):
            schedule.add_unit_loop(other)  # TVM's rfactor fails beside a block without loops
    if in_lanes(prepared.graph, node):
        _write_across(prepared, plan, axis)
        return
    partial = partial_reductions(prepared, plan.anchor, plan.lanes)
    block = partial[0] if partial else prepared.blocks[plan.anchor]
    loop = schedule.get_loops(block)[axis]
    steps = int(schedule.get(loop).extent)
    parts = node.axes[axis].extent // plan.at("core").extents[axis]
    if steps % parts:
        raise PlanError("split", f"plan for {node.name}: {steps} steps in {parts} parts")
    outer, _ = schedule.split(loop, [parts, None])
    own = schedule.rfactor(outer, 0)
    loops = schedule.get_loops(own)
    results = len(node.space)
    schedule.reorder(loops[results], *loops[:results])
    zeroed = [
        vectorise_partial(prepared, stage, plan.lanes, moved=False)
        for stage in ((own, *partial) if partial else ())
    ]
    if plan.parallel:
        schedule.parallel(schedule.get_loops(own)[0])
    for stage, first in zeroed:
        schedule.decompose_reduction(stage, first)


def _write_across(prepared: Prepared, plan: TilePlan, axis: int) -> None:
    """Neighbouring results in vectors, several at a time in registers while a part goes by."""
    schedule, node = prepared.schedule, prepared.graph.nodes[plan.anchor]
    block, results = prepared.blocks[plan.anchor], len(node.space)
    parts = node.axes[axis].extent // plan.at("core").extents[axis]
    outer, _ = schedule.split(schedule.get_loops(block)[axis], [parts, None])
    own = schedule.rfactor(outer, 0)
    loops = schedule.get_loops(own)
    space, steps = loops[:results], [*loops[results:axis], *loops[axis + 1 :]]
    task, last = loops[axis], space[-1]
    sizes = (plan.lanes * vectors for vectors in VECTORS)
    width = next((size for size in sizes if node.extents[node.space[-1]] % size == 0), 0)
    if width:
        tile, chunk, lane = schedule.split(last, [None, width // plan.lanes, plan.lanes])
        schedule.reorder(task, *space[:-1], tile, *steps, chunk, lane)
        schedule.unroll(chunk)
        schedule.vectorize(lane)
    else:
        schedule.reorder(task, *space[:-1], *steps, last)
        vectorise_last(schedule, last, plan.lanes)
    if plan.parallel:
        schedule.parallel(task)
    schedule.decompose_reduction(own, steps[0])
    *rest, part = schedule.get_loops(block)
    schedule.reorder(part, *rest)
    vectorise_last(schedule, rest[-1], plan.lanes)
    schedule.decompose_reduction(block, part)
