"""The `rows` rule: chains of reductions over the innermost axes, one row after another.

    max over k; exp; sum over k; divide   →   parallel rows: all four stages on one row in cache

Results that are made on the way (what is normalised, beside what becomes of it) are written in the
same loop over rows.

A reduction along contiguous memory keeps several vectors of partial results, so that it runs at
vector speed and not at the latency of one addition after another, and adds them up as a tree
(rfactor, several times):

    for k: s += x[k]   →   for k/64: p[0:64] += x[k*64 : k*64+64]
                           q[0:16] = p[0:16] + p[16:32] + ...;  r[0:8] = q[0:8] + q[8:16];  ...

The partial results are small enough for the stack, where LLVM finds them registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_ext.tile.classify import is_affine
from tvm_ext.tile.fuse import in_lanes
from tvm_ext.tile.legal import check_rows
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tir.stages import SPACE
from tvm_ext.tir.write_tile import interleaved, vectorise_last
from tvm_ext.tvm_api import SBlockRV

PARTIAL_VECTORS = (4, 3, 5, 7, 2, 1)
"""Vectors of partial results, the first that divide the row: four hide the latency of an addition
on current cores."""


def write_rows(prepared: Prepared, plan: TilePlan) -> None:
    """Schedules the anchor (the last stage) by rows and computes the attached stages per row."""
    write_parted_rows(prepared, plan, parted_reductions(prepared, plan))


def with_loops(prepared: Prepared) -> None:
    """Gives every block a loop: TVM's rfactor fails beside one without."""
    for block in prepared.blocks:
        if not prepared.schedule.get_loops(block):
            prepared.schedule.add_unit_loop(block)


def parted_reductions(prepared: Prepared, plan: TilePlan) -> dict[int, list[SBlockRV]]:
    """The partial reductions of every stage. TVM makes them only of blocks with loops of their
    own: before anything is moved."""
    stages = (*(entry.stage for entry in plan.attach if entry.level == "core"), plan.anchor)
    return {stage: partial_reductions(prepared, stage, plan.lanes) for stage in stages}


def write_parted_rows(
    prepared: Prepared,
    plan: TilePlan,
    partial: Mapping[int, list[SBlockRV]],
    *,
    moved: bool = False,
) -> None:
    """`write_rows` with partial reductions that are there already, perhaps `moved` since."""
    schedule = prepared.schedule
    node, block = prepared.graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    rows = check_rows(prepared.graph, plan)
    attached = sorted(entry.stage for entry in plan.attach if entry.level == "core")
    placed = [stage for stage in attached if stage in prepared.graph.results]
    loops = schedule.get_loops(block)[-len(node.axes) :]
    row = None
    if rows and loops:
        merged = [_row_loop(prepared, stage, rows, moved) for stage in (*placed, plan.anchor)]
        # TVM moves no stage that writes a result into another's loop, but makes loops one
        row = schedule.merge(*merged) if placed else merged[0]
    # Before any loop is cut into vectors: TVM counts the lanes beyond a tail as elements that are
    # read, and of a producer of y[3 * i + j] computes j < 2 only (8 elements of rows of 6).
    for stage in (plan.anchor, *reversed(attached)) if row is not None else ():
        whole = [prepared.blocks[stage]] if stage not in (plan.anchor, *placed) else []
        for one in (*whole, *reversed(partial[stage])):
            schedule.compute_at(one, row, preserve_unit_loops=True)
    if node.kind == "map" and len(loops) > rows:
        lanes = interleaved(node.extents[-1], plan.lanes)
        vectorise_last(schedule, loops[-1], lanes, hint=is_affine(node))
    zeroed = []
    for stage in (plan.anchor, *reversed(attached)):
        own = prepared.graph.nodes[stage]
        inner = schedule.get_loops(prepared.blocks[stage])
        across = stage in placed and len(own.axes) <= rows  # one element of a row
        if stage != plan.anchor and own.kind == "map" and inner and not across:
            lanes = interleaved(own.extents[-1], plan.lanes)
            vectorise_last(schedule, inner[-1], lanes, hint=is_affine(own))
        if in_lanes(prepared.graph, own) and rows < len(own.space):
            zeroed.append(_vectorise_across(prepared, stage, rows, plan.lanes))
        for part in reversed(partial[stage]):
            anew = moved or row is not None
            zeroed.append(vectorise_partial(prepared, part, plan.lanes, anew))
    if plan.parallel and row is not None:
        schedule.parallel(row)
    for part, loop in zeroed:
        schedule.decompose_reduction(part, loop)


def _vectorise_across(
    prepared: Prepared, stage: int, rows: int, lanes: int
) -> tuple[SBlockRV, Any]:
    """A reduction over what does not lie side by side: steps outside, neighbouring results in
    vectors. Returns the loop before which they are zeroed."""
    schedule, node, block = prepared.schedule, prepared.graph.nodes[stage], prepared.blocks[stage]
    loops = schedule.get_loops(block)[rows - len(node.axes) :]
    space, steps = loops[: len(node.space) - rows], loops[len(node.space) - rows :]
    schedule.reorder(*space[:-1], *steps, space[-1])
    vectorise_last(schedule, space[-1], lanes)
    return block, steps[0]


def _row_loop(prepared: Prepared, stage: int, rows: int, moved: bool) -> Any:
    """The loop over the rows of a stage, of which so many leading axes count them."""
    schedule, block = prepared.schedule, prepared.blocks[stage]
    iters = schedule.get(block).iter_vars
    loops = schedule.get_loops(block)[-len(prepared.graph.nodes[stage].axes) :]
    if moved and iters[0].iter_type != SPACE:  # made anew, the sum of partial results first
        loops = schedule.get_loops(block)[-len(iters) :]
        along = [loop for loop, iv in zip(loops, iters, strict=True) if iv.iter_type != SPACE]
        loops = [loop for loop, iv in zip(loops, iters, strict=True) if iv.iter_type == SPACE]
        schedule.reorder(*loops, *along)
    return schedule.fuse(*loops[:rows]) if rows > 1 else loops[0]


def partial_reductions(prepared: Prepared, stage: int, lanes: int) -> list[SBlockRV]:
    """Splits a reduction over contiguous memory into partial ones, the longest first, each half as
    wide as the one before from one vector on; empty if it is no such reduction.

    The extent must hold whole vectors: TVM's rfactor drops the predicate of a tail.
    """
    schedule, node = prepared.schedule, prepared.graph.nodes[stage]
    if node.kind != "reduce" or lanes <= 1:
        return []
    last = node.reduce[-1]
    shapes = [tensor.shape for tensor in prepared.graph.tensors]
    if any(access.stride(last, shapes[access.tensor]) not in (0, 1) for access in node.reads):
        return []
    extent = node.axes[last].extent
    width = next((lanes * n for n in PARTIAL_VECTORS if extent % (lanes * n) == 0), 0)
    parts = []
    own = schedule.get_loops(prepared.blocks[stage])[-len(node.axes) :]
    loop = own[last] if width else None
    while width > 1:
        _, lane = schedule.split(loop, [None, width])
        parts.append(schedule.rfactor(lane, len(node.write.dims)))
        loop = lane
        width = lanes if width > lanes else width // 2
    return parts


def vectorise_partial(
    prepared: Prepared, part: SBlockRV, lanes: int, moved: bool
) -> tuple[SBlockRV, Any]:
    """Partial results innermost, in vectors. Returns the loop before which they are zeroed: TVM
    takes a stage apart only after its loops are parallel."""
    schedule = prepared.schedule
    iters = schedule.get(part).iter_vars
    loops = schedule.get_loops(part)[-len(iters) :]
    if moved:  # loops made anew, in the order of the stage's axes: the partial results first
        partial, rest = loops[0], loops[1:]
        first = next(loop for loop, iv in zip(loops, iters, strict=True) if iv.iter_type != SPACE)
    else:  # the loops as they were split: space, reduction, partial results
        partial, rest = loops[-1], loops[:-1]
        first = loops[sum(iv.iter_type == SPACE for iv in iters) - 1]
    width = extent_of(schedule, partial)
    chunk, lane = schedule.split(partial, [None, min(lanes, width)])
    schedule.reorder(*rest, chunk, lane)
    schedule.unroll(chunk)
    schedule.vectorize(lane)
    return part, first
