"""Plans one step away from a plan. Legality is the writer's business: it raises PlanError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from tvm_ext.search.blocks import block_neighbours
from tvm_ext.search.mutate import settled
from tvm_ext.tile.attention import attention_stages
from tvm_ext.tile.chain import INSIDE, chain_form
from tvm_ext.tile.classify import (
    cut_axis,
    packed_reads,
    producers,
    stageable,
)
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import can_ask_ahead
from tvm_ext.tile.plan import Attach, TilePlan, with_extent
from tvm_ext.tile.strassen import attached, strassen_stages


def neighbours(graph: TileGraph, plan: TilePlan) -> Iterator[TilePlan]:
    """Every plan that differs from `plan` by one step of one knob, each once, in a fixed order."""
    node = graph.nodes[plan.anchor]
    seen = {plan}
    if plan.rule.startswith("block"):
        steps: Iterable[TilePlan] = block_neighbours(graph, node, plan)
    else:
        steps = chain(
            _resized(graph, node, plan),
            _reordered(graph, node, plan),
            _narrowed(graph, node, plan),
            _moved(graph, plan),
            _staged(graph, plan),
        )
    for other in steps:
        if other not in seen:
            seen.add(other)
            yield other


def _resized(graph: TileGraph, node: TileNode, plan: TilePlan) -> Iterator[TilePlan]:
    """One extent of one level up or down: doubled, halved, or by one vector or row."""
    for entry in plan.tiles:
        if len(entry.tile.extents) != len(node.axes):
            continue
        for axis, extent in enumerate(entry.tile.extents):
            if plan.rule == "flat" and axis != cut_axis(entry.tile):
                continue
            step = plan.lanes if extent % plan.lanes == 0 and plan.lanes > 1 else 1
            for size in (extent * 2, extent // 2, extent + step, extent - step):
                if size == extent or not 1 <= size <= node.axes[axis].extent:
                    continue
                yield settled(graph, with_extent(plan, entry.level, axis, size))


def _reordered(graph: TileGraph, node: TileNode, plan: TilePlan) -> Iterator[TilePlan]:
    """Two neighbouring axes of one kind change places; a chain's tasks are others."""
    if plan.rule == "chain" and (own := chain_form(plan)) in INSIDE:
        for form in INSIDE:
            if form != own:
                yield msgspec.structs.replace(plan, order=form.order, parallel=form.tasks)
    if plan.rule != "tile":
        return
    for place in range(len(plan.order) - 1):
        first, second = plan.order[place : place + 2]
        if node.axes[first].kind == node.axes[second].kind:
            order = list(plan.order)
            order[place : place + 2] = [second, first]
            yield settled(graph, msgspec.structs.replace(plan, order=tuple(order)))


def _narrowed(graph: TileGraph, node: TileNode, plan: TilePlan) -> Iterator[TilePlan]:
    """Half the lanes, or one core instead of all (and back), or panels or the data of what
    comes next asked for ahead (or not)."""
    if plan.lanes > 4:
        yield msgspec.structs.replace(plan, lanes=plan.lanes // 2)
    if plan.rule not in ("tile", "chain", "strassen"):
        yield msgspec.structs.replace(plan, parallel=0 if plan.parallel else 1)
    elif packed_reads(node):
        yield msgspec.structs.replace(plan, prefetch=not plan.prefetch)
    if can_ask_ahead(graph, plan):
        yield msgspec.structs.replace(plan, ahead=not plan.ahead)


def _moved(graph: TileGraph, plan: TilePlan) -> Iterator[TilePlan]:
    """A stage before the anchor computed elsewhere: once, in the core tile, or where it is read."""
    if plan.rule == "strassen" and (found := strassen_stages(graph)):
        for level in ("root", "core"):
            yield msgspec.structs.replace(plan, attach=attached(found, level))
    if plan.rule != "tile":
        return
    levels = {entry.stage: entry.level for entry in plan.attach}
    for stage in producers(graph, plan.anchor):
        rest = tuple(entry for entry in plan.attach if entry.stage != stage)
        for level in ("root", "core", "register"):
            if level != levels.get(stage, "root"):
                moved = () if level == "root" else (Attach(stage, level),)
                yield msgspec.structs.replace(plan, attach=(*rest, *moved))


def _staged(graph: TileGraph, plan: TilePlan) -> Iterator[TilePlan]:
    """The rows of operands copied side by side for each core tile, or not."""
    if plan.rule == "attention" and (found := attention_stages(graph)):
        yield from (msgspec.structs.replace(plan, staged=copied) for copied in found.copies)
    if plan.rule == "tile" and plan.staged:
        yield msgspec.structs.replace(plan, staged=())
    elif plan.rule == "tile":
        node = graph.nodes[plan.anchor]
        if reads := stageable(graph, node, plan.at("core"), plan.at("register")):
            yield msgspec.structs.replace(plan, staged=reads)
