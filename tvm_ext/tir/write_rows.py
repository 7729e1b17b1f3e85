"""The `rows` rule: chains of reductions over the innermost axes, one row after another.

    max over k; exp; sum over k; divide   →   parallel rows: all four stages on one row in cache

Each reduction keeps `lanes` partial results, so that it runs in vectors (rfactor).
"""

from __future__ import annotations

from tvm_ext.errors import PlanError
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tir.write_tile import vectorise_last
from tvm_ext.tvm_api import SBlockRV


def write_rows(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules the anchor (the last stage) by rows and computes the attached stages per row."""
    schedule = prepared.schedule
    node, block = prepared.graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    attached = sorted(entry.stage for entry in plan.attach if entry.level == "core")
    partial: dict[int, SBlockRV] = {}
    for stage in (*attached, plan.anchor):
        split = _partial_reduction(prepared, stage, plan.lanes)
        if split is not None:
            partial[stage] = split
    loops = schedule.get_loops(block)
    rows = sum(1 for axis in node.space if plan.at("core").extents[axis] == 1)
    if rows == 0 or list(plan.order) != list(range(len(node.axes))):
        raise PlanError("rows", f"plan for {node.name}: no leading axis has a core tile of 1")
    row = schedule.fuse(*loops[:rows]) if rows > 1 else loops[0]
    if plan.anchor in partial:
        _inside(prepared, partial[plan.anchor], row, plan.lanes, reduction=True)
    elif node.kind == "map" and len(loops) > rows:
        vectorise_last(schedule, loops[-1], plan.lanes)
    for stage in reversed(attached):
        reduction = prepared.graph.nodes[stage].kind == "reduce"
        _inside(
            prepared,
            prepared.blocks[stage],
            row,
            plan.lanes,
            reduction=stage in partial or reduction,
        )
        if stage in partial:
            _inside(prepared, partial[stage], row, plan.lanes, reduction=True)
    if plan.parallel:
        schedule.parallel(row)


def _partial_reduction(prepared: Prepared, stage: int, lanes: int) -> SBlockRV | None:
    """Splits a reduction over contiguous memory into `lanes` partial ones; None if it is not one.

    `s[i] += x[i,k]` → `p[i,l] += x[i,k*lanes+l]; s[i] += p[i,l]`, the first one in vectors.
    """
    schedule, node = prepared.schedule, prepared.graph.nodes[stage]
    if node.kind != "reduce" or lanes <= 1:
        return None
    last = node.reduce[-1]
    extent = node.axes[last].extent
    shapes = {i: tensor.shape for i, tensor in enumerate(prepared.graph.tensors)}
    contiguous = all(access.stride(last, shapes[access.tensor]) in (0, 1) for access in node.reads)
    while lanes > 1 and extent % lanes:
        lanes //= 2
    if not contiguous or lanes <= 1:
        return None
    block = prepared.blocks[stage]
    loop = schedule.get_loops(block)[last]
    _, lane = schedule.split(loop, [None, lanes])
    part = schedule.rfactor(lane, len(node.write.dims))
    schedule.set_scope(part, 0, "local")
    loops = schedule.get_loops(part)
    schedule.reorder(*loops[:-2], loops[-2], loops[-1])
    schedule.vectorize(schedule.get_loops(part)[-1])
    return part


def _inside(
    prepared: Prepared, block: SBlockRV, row: object, lanes: int, *, reduction: bool
) -> None:
    """Moves a producer into the row; a map stage runs in vectors there."""
    schedule = prepared.schedule
    schedule.compute_at(block, row, preserve_unit_loops=True)
    if not reduction:
        vectorise_last(schedule, schedule.get_loops(block)[-1], lanes)
