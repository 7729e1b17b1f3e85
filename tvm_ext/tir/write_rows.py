"""The `rows` rule: chains of reductions over the innermost axes, one row after another.

    max over k; exp; sum over k; divide   →   parallel rows: all four stages on one row in cache

A reduction along contiguous memory keeps several vectors of partial results, so that it runs at
vector speed and not at the latency of one addition after another (rfactor):

    for k: s += x[k]   →   for k/64: p[0:64] += x[k*64 : k*64+64];  for l: s += p[l]
"""

from __future__ import annotations

from tvm_ext.errors import PlanError
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.write_tile import vectorise_last
from tvm_ext.tvm_api import SBlockRV

PARTIAL_VECTORS = (4, 2, 1)
"""Vectors of partial results: four hide the latency of an addition on current cores."""


def write_rows(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules the anchor (the last stage) by rows and computes the attached stages per row."""
    schedule = prepared.schedule
    node, block = prepared.graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    rows = sum(1 for axis in node.space if plan.at("core").extents[axis] == 1)
    if rows == 0 or list(plan.order) != list(range(len(node.axes))):
        raise PlanError("rows", f"plan for {node.name}: no leading axis has a core tile of 1")
    attached = sorted(entry.stage for entry in plan.attach if entry.level == "core")
    partial = {
        stage: split
        for stage in (*attached, plan.anchor)
        if (split := _partial_reduction(prepared, stage, plan.lanes)) is not None
    }
    loops = schedule.get_loops(block)
    row = schedule.fuse(*loops[:rows]) if rows > 1 else loops[0]
    if node.kind == "map" and len(loops) > rows:
        vectorise_last(schedule, loops[-1], plan.lanes)
    for stage in (plan.anchor, *reversed(attached)):
        if stage != plan.anchor:
            schedule.compute_at(prepared.blocks[stage], row, preserve_unit_loops=True)
            if prepared.graph.nodes[stage].kind == "map":
                own = schedule.get_loops(prepared.blocks[stage])
                vectorise_last(schedule, own[-1], plan.lanes)
        if stage in partial:
            schedule.compute_at(partial[stage], row, preserve_unit_loops=True)
            _vectorise_partial(prepared, partial[stage], plan.lanes)
    if plan.parallel:
        schedule.parallel(row)


def _partial_reduction(prepared: Prepared, stage: int, lanes: int) -> SBlockRV | None:
    """Splits a reduction over contiguous memory into partial ones; None if it is not one.

    The extent must hold whole vectors: TVM's rfactor drops the predicate of a tail.
    """
    schedule, node = prepared.schedule, prepared.graph.nodes[stage]
    if node.kind != "reduce" or lanes <= 1:
        return None
    last = node.reduce[-1]
    shapes = [tensor.shape for tensor in prepared.graph.tensors]
    if any(access.stride(last, shapes[access.tensor]) not in (0, 1) for access in node.reads):
        return None
    extent = node.axes[last].extent
    width = next((lanes * n for n in PARTIAL_VECTORS if extent % (lanes * n) == 0), 0)
    if not width:
        return None
    loop = schedule.get_loops(prepared.blocks[stage])[last]
    _, lane = schedule.split(loop, [None, width])
    part = schedule.rfactor(lane, len(node.write.dims))
    schedule.set_scope(part, 0, "local")
    return part


def _vectorise_partial(prepared: Prepared, part: SBlockRV, lanes: int) -> None:
    """Partial results innermost, in vectors; their zeroing apart from their updates."""
    schedule = prepared.schedule
    iters = schedule.get(part).iter_vars
    loops = schedule.get_loops(part)[-len(iters) :]
    chunk, lane = schedule.split(loops[0], [None, lanes])
    schedule.reorder(*loops[1:], chunk, lane)
    schedule.unroll(chunk)
    schedule.vectorize(lane)
    first = next(loop for loop, iv in zip(loops, iters, strict=True) if iv.iter_type == 2)
    schedule.decompose_reduction(part, first)
