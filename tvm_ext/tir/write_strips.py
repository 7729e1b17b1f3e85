"""The `strips` rule: all stages for some rows before any for the next rows.

    h = gelu(x @ w1); y = h @ w2
        →
    parallel strips of 48 rows:
        h of 48 rows, by the plan of its piece
        y of 48 rows, by that of its own

Each piece is scheduled as the group that it would be with so few rows.
"""

from __future__ import annotations

from math import prod

from tvm_ext.errors import PlanError
from tvm_ext.tile.graph import TileNode
from tvm_ext.tile.legal import check_strips
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tir.write_rows import parted_reductions, write_parted_rows
from tvm_ext.tir.write_tile import vectorise_stage, write_tile
from tvm_ext.tvm_api import SBlockRV, Schedule

WIDER = 1.5
"""Times what was planned of a stage that a strip computes at most."""


def write_strips(prepared: Prepared, plan: TilePlan) -> None:
    """Cuts the last stage into strips, moves the others inside, and schedules the pieces."""
    schedule, blocks = prepared.schedule, prepared.blocks
    cut = check_strips(prepared.graph, plan)
    pieces = []
    before: dict[int, list[SBlockRV]] = {stage: [] for stage in range(len(blocks))}
    for piece, part in zip(cut.pieces, plan.also, strict=True):
        own = Prepared(schedule, piece.graph, tuple(blocks[stage] for stage in piece.stages))
        inside = piece.inside(part)
        partial = parted_reductions(own, inside) if inside.rule == "rows" else {}
        before |= {piece.stages[stage]: made for stage, made in partial.items()}
        pieces.append((own, inside, partial))
    loops = schedule.get_loops(blocks[-1])
    sizes = plan.at("core").extents[: cut.axis + 1]
    pairs = [schedule.split(loops[axis], [None, size]) for axis, size in enumerate(sizes)]
    outer, inner = zip(*pairs, strict=True)
    schedule.reorder(*outer, *inner)
    task = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    for stage, block in reversed(list(enumerate(blocks))):
        moved = [block] if block is not blocks[-1] else []
        for one in (*moved, *reversed(before[stage])):
            # first of what is inside: stages keep their order, which loops that are merged rely on
            schedule.compute_at(one, task, preserve_unit_loops=True, index=-2)
    for piece in cut.pieces:
        for stage, node in zip(piece.stages, piece.graph.nodes, strict=True):
            for block in (*before[stage], blocks[stage]):
                _check_extents(schedule, block, node)
    if plan.parallel:
        schedule.parallel(task)  # TVM refuses it once reductions are taken apart
    for own, inside, partial in pieces:
        if inside.rule == "rows":
            write_parted_rows(own, inside, partial, moved=True)
        else:
            write_tile(own, inside)
        named = {inside.anchor, *(entry.stage for entry in inside.attach)}
        for stage in set(range(len(own.blocks))) - named:
            vectorise_stage(schedule, own.blocks[stage], inside.lanes, own.graph.nodes[stage])


def _check_extents(schedule: Schedule, block: SBlockRV, node: TileNode) -> None:
    """Raises PlanError if TVM makes every strip compute much more of a stage than it takes: through
    several views in a row it sees no bound and takes the whole, for each strip again."""
    _task, *inner = schedule.get_loops(block)
    found, planned = prod(extent_of(schedule, loop) for loop in inner), prod(node.extents)
    if found > WIDER * planned:
        raise PlanError(
            "recompute", f"plan: a strip computes {found} of {node.name}, {planned} were planned"
        )
