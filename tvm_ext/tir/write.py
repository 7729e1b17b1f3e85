"""Writing a TilePlan as a schedule. One rule a plan kind; an illegal plan raises PlanError."""

from __future__ import annotations

from collections.abc import Callable

from tvm_ext.errors import PlanError
from tvm_ext.tile.amx import INSTRUCTION
from tvm_ext.tile.classify import is_shared_out
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import check_parts
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.skip import skipped
from tvm_ext.tir.ahead import with_ahead, with_results_ahead
from tvm_ext.tir.cut_vectors import with_cut_vectors
from tvm_ext.tir.guard import with_choices, with_guards
from tvm_ext.tir.matrices import with_matrices
from tvm_ext.tir.prefetch import with_prefetch
from tvm_ext.tir.prepare import Prepared, prepare
from tvm_ext.tir.shift import with_shifts
from tvm_ext.tir.skip import with_skips, without_padding
from tvm_ext.tir.symbolic import symbols
from tvm_ext.tir.tile_bounds import with_tile_bounds
from tvm_ext.tir.transpose import with_squares
from tvm_ext.tir.write_attention import write_attention
from tvm_ext.tir.write_block import write_block
from tvm_ext.tir.write_chain import write_chain
from tvm_ext.tir.write_flat import write_flat, write_loose
from tvm_ext.tir.write_gpu import write_block_flat, write_block_loose, write_block_rows
from tvm_ext.tir.write_rows import with_loops, write_rows
from tvm_ext.tir.write_split import write_split
from tvm_ext.tir.write_strassen import write_strassen
from tvm_ext.tir.write_strips import write_strips
from tvm_ext.tir.write_tile import write_tile
from tvm_ext.tvm_api import InternalError, PrimFunc, ScheduleError, mark_scheduled
from tvm_ext.tvm_steal import mark_steal

Rule = Callable[[Prepared, TilePlan], None]


def _write_nothing(prepared: Prepared, plan: TilePlan) -> None:
    """The `loose` rule: no stage is tiled, all are written loosely."""


RULES: dict[str, Rule] = {
    "tile": write_tile,
    "chain": write_chain,
    "strassen": write_strassen,
    "attention": write_attention,
    "rows": write_rows,
    "strips": write_strips,
    "split": write_split,
    "flat": write_flat,
    "loose": _write_nothing,
    "block": write_block,
    "block_rows": write_block_rows,
    "block_flat": write_block_flat,
    "block_loose": _write_nothing,
}

_REFUSAL = "Check failed"
"""What TVM's refusals say that come as ValueErrors."""


def write(func: PrimFunc, plan: TilePlan) -> PrimFunc:
    """`func` scheduled by `plan`, marked as scheduled.

    Stages that the plan does not name are written loosely: their outer loops in parallel, their
    innermost loop vectorised where that is legal. Raises PlanError with the reason `structure` (the
    function has no blocks), `symbolic` (it has extents that are not known), `schedule` (TVM refused
    a step), `extent` or `recompute` (it bounds a loop by no number, or a strip by too much), or one
    of `tile.legal.check_plan` or of the rules.
    """
    prepared = schedule(func, plan)
    parts = plan.parts()
    scheduled = with_choices(with_shifts(with_tile_bounds(prepared.schedule.mod["main"])))
    skips = any(part.rule == "tile" and _skips(prepared.graph, part) for part in parts)
    if skips:
        scheduled = with_skips(scheduled)
    if any(e.stage < p.anchor and e.level == "register" for p in parts for e in p.attach):
        scheduled = with_guards(scheduled)
    scheduled = with_cut_vectors(with_squares(scheduled))
    if any(part.prefetch for part in parts):
        scheduled = with_prefetch(scheduled)
    if any(part.ahead for part in parts):
        asking = with_ahead if plan.rule == "chain" else with_results_ahead
        scheduled = asking(scheduled)
    if any(part.instruction == INSTRUCTION for part in parts):
        scheduled = with_matrices(scheduled)
    if skips:
        scheduled = without_padding(scheduled)
    if is_shared_out(prepared.graph):
        scheduled = mark_steal(scheduled)
    return mark_scheduled(scheduled.with_attr(dict(func.attrs.items()) if func.attrs else {}))


def schedule(func: PrimFunc, plan: TilePlan) -> Prepared:
    """What of `write` schedule primitives can say. Raises PlanError as it does."""
    if symbols(func):
        raise PlanError("symbolic", "plan: the function has extents that are not known")
    prepared = prepare(func)
    if prepared is None:
        raise PlanError("structure", "plan: the function has no blocks to schedule")
    parts = (plan,) if plan.rule == "strips" else plan.parts()
    check_parts(prepared.graph, plan)
    loose = write_block_loose if plan.rule.startswith("block") else write_loose
    named: set[int] = set()
    try:
        if any(part.rule in ("rows", "split") for part in parts):  # before blocks are in others
            with_loops(prepared)
        for part in parts:
            RULES[part.rule](prepared, part)
            named |= written(prepared, part)
        for index in range(len(prepared.blocks)):
            if index not in named:
                loose(prepared, index, plan)
    except (ScheduleError, InternalError, ValueError) as error:
        if isinstance(error, ValueError) and _REFUSAL not in str(error):
            raise  # an error of ours
        raise PlanError("schedule", f"plan: TVM refused it: {_first_line(error)}") from error
    return prepared


def _skips(graph: TileGraph, plan: TilePlan) -> bool:
    return bool(skipped(graph, graph.nodes[plan.anchor], plan.at("register")))


def written(prepared: Prepared, plan: TilePlan) -> set[int]:
    """The stages that a plan without `also` has scheduled."""
    if plan.rule in ("chain", "attention", "strips"):
        return set(range(len(prepared.blocks)))
    if RULES[plan.rule] is _write_nothing:
        return set()
    whole = plan.rule == "strassen"
    return {plan.anchor, *(one.stage for one in plan.attach if whole or one.level != "root")}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0] if lines else "no message")
