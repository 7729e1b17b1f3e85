"""Writing a TilePlan as a schedule. One rule a plan kind; an illegal plan raises PlanError."""

from __future__ import annotations

from collections.abc import Callable

from tvm_ext.errors import PlanError
from tvm_ext.tile.classify import has_no_gaps
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.guard import with_guards
from tvm_ext.tir.prefetch import with_prefetch
from tvm_ext.tir.prepare import Prepared, prepare
from tvm_ext.tir.transpose import with_squares
from tvm_ext.tir.write_chain import write_chain
from tvm_ext.tir.write_flat import write_flat, write_loose
from tvm_ext.tir.write_gpu import (
    write_block,
    write_block_flat,
    write_block_loose,
    write_block_rows,
)
from tvm_ext.tir.write_rows import write_rows
from tvm_ext.tir.write_split import write_split
from tvm_ext.tir.write_tile import write_tile
from tvm_ext.tvm_api import InternalError, PrimFunc, ScheduleError, mark_scheduled

Rule = Callable[[Prepared, TilePlan], None]


def _write_nothing(prepared: Prepared, plan: TilePlan) -> None:
    """The `loose` rule: no stage is tiled, all are written loosely."""


RULES: dict[str, Rule] = {
    "tile": write_tile,
    "chain": write_chain,
    "rows": write_rows,
    "split": write_split,
    "flat": write_flat,
    "loose": _write_nothing,
    "block": write_block,
    "block_rows": write_block_rows,
    "block_flat": write_block_flat,
    "block_loose": _write_nothing,
}


def write(func: PrimFunc, plan: TilePlan) -> PrimFunc:
    """`func` scheduled by `plan`, marked as scheduled.

    Stages that the plan does not name are written loosely: their outer loops in parallel, their
    innermost loop vectorised where that is legal. Raises PlanError with the reason `structure` (the
    function has no blocks), `rule` (unknown rule) or `schedule` (TVM refused a step).
    """
    prepared = prepare(func)
    if prepared is None:
        raise PlanError("structure", "plan: the function has no blocks to schedule")
    if plan.rule not in RULES:
        raise PlanError("rule", f"plan: rule {plan.rule!r} is unknown; rules are {list(RULES)}")
    check_plan(prepared, plan)
    try:
        RULES[plan.rule](prepared, plan)
        anchored = set() if RULES[plan.rule] is _write_nothing else {plan.anchor}
        loose = write_block_loose if plan.rule.startswith("block") else write_loose
        named = {*anchored, *(entry.stage for entry in plan.attach if entry.level != "root")}
        if plan.rule == "chain":
            named = set(range(len(prepared.blocks)))
        for index in range(len(prepared.blocks)):
            if index not in named:
                loose(prepared, index, plan)
    except (ScheduleError, InternalError) as error:
        raise PlanError("schedule", f"plan: TVM refused it: {_first_line(error)}") from error
    scheduled = prepared.schedule.mod["main"]
    if any(entry.stage < plan.anchor and entry.level == "register" for entry in plan.attach):
        scheduled = with_guards(scheduled)
    scheduled = with_squares(scheduled)
    if plan.prefetch:
        scheduled = with_prefetch(scheduled)
    return mark_scheduled(scheduled.with_attr(dict(func.attrs.items()) if func.attrs else {}))


LEVELS = {
    "tile": ("core", "register"),
    "chain": ("core", "register"),
    "rows": ("core",),
    "split": ("core",),
    "flat": ("core",),
    "loose": (),
    "block": ("core", "shared", "register"),
    "block_rows": ("core",),
    "block_flat": ("core",),
    "block_loose": (),
}


def check_plan(prepared: Prepared, plan: TilePlan) -> None:
    """Raises PlanError for a plan that was made for another group, or was damaged.

    Reasons: `anchor` (a stage that does not exist), `level` (a missing tile), `extent` (a tile of
    another operator), `gaps` (a tile that writes no box), `lanes` (counts that mean nothing).
    """
    if plan.lanes < 1 or plan.parallel < 0:
        raise PlanError("lanes", f"plan: {plan.lanes} lanes, {plan.parallel} parallel loops")
    count = len(prepared.blocks)
    for stage in (plan.anchor, *(entry.stage for entry in plan.attach)):
        if not 0 <= stage < count:
            raise PlanError("anchor", f"plan: stage {stage} does not exist; there are {count}")
    node = prepared.graph.nodes[plan.anchor]
    axes = node.axes
    tiles = {entry.level: entry.tile for entry in reversed(plan.tiles)}  # `at` takes the first
    for level in LEVELS[plan.rule]:
        if level not in tiles:
            raise PlanError("level", f"plan: rule {plan.rule} needs a tile at {level}")
        if not tiles[level].fits(axes):
            extents = tuple(axis.extent for axis in axes)
            raise PlanError(
                "extent", f"plan: {level} tile {tiles[level].extents} in a stage of {extents}"
            )
        boxes = plan.rule in ("tile", "block") and level != "shared"
        if boxes and not has_no_gaps(node, tiles[level]):
            raise PlanError("gaps", f"plan: {level} tile {tiles[level].extents} leaves gaps")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0] if lines else "no message")
