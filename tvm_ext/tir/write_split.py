"""The `split` rule: a reduction whose iterations are shared out over the cores.

for i, k: s += f(x[i, k])
    →
parallel p: for i/P, k/64: part[p, 0:64] += f(x[...]);   sum over p;  the tree of rule `rows`

for i: s[j] += f(x[i, j])
    →
parallel p: for j/128, i/P: part[p, j:j+128] += f(x[...]);   s[j] += part[p, j]
"""

from __future__ import annotations

from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.fuse import in_lanes
from tvm_ext.tile.legal import check_split
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tir.write_rows import partial_reductions, vectorise_partial
from tvm_ext.tir.write_tile import vectorise_last
from tvm_ext.tvm_api import SBlockRV, Schedule

VECTORS = (8, 7, 6, 5, 4, 3, 2, 1)
"""Vectors of results that are kept in registers, the first that divide them."""


def write_split(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules the anchor; the core tile is one part of its outermost reduction axis, parts are
    equal. Stages attached stay as they are: they are as short as the result.

    Raises PlanError where the vectors of partial results do not fall into the parts.
    """
    schedule, node = prepared.schedule, prepared.graph.nodes[plan.anchor]
    axis = check_split(node, plan)
    partial = partial_reductions(prepared, plan.anchor, plan.lanes)
    block = partial[0] if partial else prepared.blocks[plan.anchor]
    loop = schedule.get_loops(block)[axis]
    steps = extent_of(schedule, loop)
    parts = node.axes[axis].extent // plan.at("core").extents[axis]
    if steps % parts:
        raise PlanError("split", f"plan for {node.name}: {steps} steps in {parts} parts")
    outer, _ = schedule.split(loop, [parts, None])
    own = schedule.rfactor(outer, 0)
    loops = schedule.get_loops(own)
    results = len(node.space)
    if in_lanes(prepared.graph, node):
        task = loops[axis]
        inside = [loop for loop in loops if loop is not task]
        zeroed = [
            (own, _write_lanes(schedule, task, inside, results, plan.lanes)),
            (block, _add_parts(schedule, block, plan.lanes)),
        ]
    else:
        task = loops[results]
        schedule.reorder(task, *loops[:results])
        zeroed = [
            vectorise_partial(prepared, stage, plan.lanes, moved=False)
            for stage in ((own, *partial) if partial else ())
        ]
    if plan.parallel:
        schedule.parallel(schedule.get_loops(own)[0])
    for stage, first in zeroed:
        schedule.decompose_reduction(stage, first)


def _write_lanes(schedule: Schedule, task: Any, inside: list[Any], results: int, lanes: int) -> Any:
    """Neighbouring results in vectors, several at a time in registers while a part goes by. Returns
    the loop before which they are zeroed."""
    *outer, last = inside[:results]
    steps = inside[results:]
    extent = extent_of(schedule, last)
    width = next((lanes * n for n in VECTORS if extent % (lanes * n) == 0), 0)
    if width:
        tile, chunk, lane = schedule.split(last, [None, width // lanes, lanes])
        schedule.reorder(task, *outer, tile, *steps, chunk, lane)
        schedule.unroll(chunk)
        schedule.vectorize(lane)
    else:
        schedule.reorder(task, *outer, *steps, last)
        vectorise_last(schedule, last, lanes)
    return steps[0]


def _add_parts(schedule: Schedule, block: SBlockRV, lanes: int) -> Any:
    """The sum of the parts, by vectors of results. Returns the loop before which it is zeroed."""
    *results, part = schedule.get_loops(block)
    schedule.reorder(part, *results)
    vectorise_last(schedule, results[-1], lanes)
    return part
