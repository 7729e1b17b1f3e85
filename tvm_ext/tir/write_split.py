"""The `split` rule: one long reduction to few results, its iterations shared out over the cores.

for i, k: s += f(x[i, k])
    →
parallel p: for i/P, k/64: part[p, 0:64] += f(x[...]);   sum over p;  the tree of rule `rows`
"""

from __future__ import annotations

from tvm_ext.errors import PlanError
from tvm_ext.tile.legal import check_split
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.write_rows import partial_reductions, vectorise_partial


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
