"""Mutation: one hole of a plan filled anew (Ansor §5.1). Legality is `tile.legal`'s business.

tile size         a factor moves between levels, or one vector or row is added
order             two axes of one kind change places
parallel          a core tile grows or shrinks to another number of tasks
unroll            another number of iterations in one loop body
chunk             other chunks of a long reduction, or all of it at once
compute location  a stage before the anchor moves to another level
switches          lanes, prefetch, ahead, operands copied side by side
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod

import msgspec

from tvm_ext.search.annotate import MAX_UNROLL, row_box
from tvm_ext.search.blocks import BLOCK_STEPS, Step, of_reduction, settled_block
from tvm_ext.tile.attention import COLUMN, ROW, attention_stages
from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.chain import INSIDE, PHASES
from tvm_ext.tile.chunk import chunk_of, chunks, with_chunk
from tvm_ext.tile.classify import (
    cut_axis,
    loops_in_use,
    packed_reads,
    producers,
    stageable,
    vector_axis,
)
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import can_ask_ahead
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan, with_extent
from tvm_ext.tile.strassen import COLUMNS, attached, fitted, strassen_stages

FACTORS = (2, 2, 2, 3, 4, 7)
"""Factors that move between levels: powers of two most often, the small primes of image sizes."""


def mutated(graph: TileGraph, plan: TilePlan, source: random.Random) -> TilePlan:
    """The plan with one hole filled anew; the plan itself where nothing came of it."""
    node = graph.nodes[plan.anchor]
    steps, weights = zip(*STEPS.get(plan.rule, ((_lanes, 1.0),)), strict=True)
    (step,) = source.choices(steps, weights)
    return settled(graph, step(graph, node, plan, source))


def settled(graph: TileGraph, plan: TilePlan) -> TilePlan:
    """The plan with the fields that follow from its tiles brought in line with them."""
    node = graph.nodes[plan.anchor]
    if plan.rule == "strassen":
        return fitted(plan)
    if plan.rule in ("chain", "attention"):
        return msgspec.structs.replace(plan, unroll=plan.at("register").extents[-1])
    if plan.rule == "block":
        return settled_block(node, plan)
    if plan.rule != "tile":
        return plan
    register, core = plan.at("register"), plan.at("core")
    parallel = loops_in_use(node, core, plan.order)
    staged = plan.staged
    if staged:
        staged = stageable(graph, node, core, register) if parallel else ()
    plan = msgspec.structs.replace(
        plan,
        unroll=prod(register.extents[axis] for axis in node.reduce),
        parallel=parallel,
        staged=staged,
    )
    return with_chunk(node, plan, chunk_of(node, plan))


def _scaled(size: int, limit: int, source: random.Random) -> int:
    factor = source.choice(FACTORS)
    other = size * factor if source.random() < 0.5 else size // factor
    return max(1, min(limit, other))


def _tile_size(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """A register tile that grows or shrinks along a space axis; the core tile stays whole ones."""
    axis = source.choice(node.space)
    extent = node.axes[axis].extent
    core, register = plan.at("core").extents[axis], plan.at("register").extents[axis]
    step = plan.lanes if axis == vector_axis(node) else 1
    if source.random() < 0.5:
        size = _scaled(register, extent, source)
    else:
        size = max(1, min(extent, register + source.choice([-step, step])))
    if core < extent:
        core = max(1, round(core / size)) * size
    if core >= extent:
        core = extent
    return with_extent(with_extent(plan, "register", axis, size), "core", axis, core)


def _task_size(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """A core tile that grows or shrinks along a space axis, in whole register tiles."""
    axis = source.choice(node.space)
    extent = node.axes[axis].extent
    core = plan.at("core").extents[axis]
    register = plan.at("register").extents[axis]
    tiles = -(-core // register)
    most = -(-extent // register)
    if source.random() < 0.3:
        count = source.choice([1, most])
    elif source.random() < 0.5:
        count = _scaled(tiles, most, source)
    else:
        count = max(1, min(most, tiles + source.choice([-1, 1])))
    return with_extent(plan, "core", axis, min(extent, count * register))


_unroll = of_reduction("register", MAX_UNROLL)


def _chunks(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Other chunks of a long reduction, or all of it at once."""
    return with_chunk(node, plan, source.choice([None, *chunks(node, plan)]))


def _order(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    if plan.rule == "chain":
        inside = plan.attach[0].level == "core"
        form = source.choice(INSIDE if inside else (PHASES,))
        return msgspec.structs.replace(plan, order=form.order, parallel=form.tasks)
    order = list(plan.order)
    kind = source.choice([node.space, node.reduce])
    places = [place for place, axis in enumerate(order) if axis in kind]
    if len(places) > 1:
        one, other = source.sample(places, 2)
        order[one], order[other] = order[other], order[one]
    return msgspec.structs.replace(plan, order=tuple(order))


def _location(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    movable = producers(graph, plan.anchor)
    if not movable:
        return plan
    stage = source.choice(movable)
    rest = tuple(entry for entry in plan.attach if entry.stage != stage)
    level = source.choice(["root", "core", "register"])
    moved = () if level == "root" else (Attach(stage, level),)
    return msgspec.structs.replace(plan, attach=(*rest, *moved))


def _sums(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Products of quarters: the sums made once for all tasks, or in each."""
    found = strassen_stages(graph)
    level = source.choice(["root", "core"])
    return msgspec.structs.replace(plan, attach=attached(found, level)) if found else plan


def _block(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Products of quarters: blocks of more columns, or of fewer."""
    block = plan.at("l2").extents[COLUMNS]
    size = _scaled(block, plan.at("core").extents[COLUMNS], source)
    return with_extent(plan, "l2", COLUMNS, size)


def _lanes(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    lanes = plan.lanes * 2 if source.random() < 0.5 else max(1, plan.lanes // 2)
    return msgspec.structs.replace(plan, lanes=lanes)


def _switches(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Panels or a task's data asked for ahead, operands copied side by side, or nothing."""
    if packed_reads(node) and source.random() < 0.5:
        return msgspec.structs.replace(plan, prefetch=not plan.prefetch)
    if can_ask_ahead(graph, plan):
        return msgspec.structs.replace(plan, ahead=not plan.ahead)
    if plan.rule != "tile":
        return plan
    reads = stageable(graph, node, plan.at("core"), plan.at("register"))
    return msgspec.structs.replace(plan, staged=() if plan.staged else reads)


def _chunk(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """A contiguous box, or a part of a reduction, of another size."""
    core = plan.at("core")
    if plan.rule == "split":
        axis = next(
            (axis for axis in node.reduce if core.extents[axis] < node.axes[axis].extent),
            node.reduce[0],
        )
    else:
        axis = cut_axis(core)
    size = _scaled(core.extents[axis], node.axes[axis].extent, source)
    return with_extent(plan, "core", axis, size)


def _serial(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    return msgspec.structs.replace(plan, parallel=0 if plan.parallel else 1)


def _row_count(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    rows = source.randint(0, len(node.space))
    tiles = (LevelTile("core", Tile(row_box(node, rows))),)
    parallel = source.randint(0, 1) * rows
    return msgspec.structs.replace(plan, tiles=tiles, parallel=parallel)


def _queries(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Attention: other numbers of queries in a task, a block or the register tiles of a product."""
    level = source.choice(["core", "l2", "register", "second"])
    size = plan.at(level).extents[COLUMN]
    if level in ("register", "second"):
        size = max(plan.lanes, size + source.choice([-plan.lanes, plan.lanes]))
    else:
        size = _scaled(size, node.extents[COLUMN], source)
    return with_extent(plan, level, COLUMN, size)


def _product(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Attention: other rows or steps of one product's register tile."""
    found = attention_stages(graph)
    if found is None:
        return plan
    level, stage = source.choice([("register", found.scores), ("second", found.mixed)])
    extents, tile = graph.nodes[stage].extents, plan.at(level).extents
    if source.random() < 0.5:
        rows = max(1, min(extents[ROW], tile[ROW] + source.choice([-2, -1, 1, 2])))
        return with_extent(plan, level, ROW, rows)
    step = source.choice(divisors(extents[-1], MAX_UNROLL))
    return with_extent(plan, level, len(tile) - 1, step)


def _copies(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    found = attention_stages(graph)
    return msgspec.structs.replace(plan, staged=source.choice(found.copies)) if found else plan


STEPS: dict[str, Sequence[tuple[Step, float]]] = BLOCK_STEPS | {
    "tile": (
        (_tile_size, 0.35),
        (_task_size, 0.25),
        (_order, 0.12),
        (_unroll, 0.1),
        (_chunks, 0.04),
        (_location, 0.05),
        (_switches, 0.06),
        (_lanes, 0.03),
    ),
    "chain": (
        (_tile_size, 0.35),
        (_task_size, 0.3),
        (_order, 0.1),
        (_unroll, 0.1),
        (_switches, 0.1),
        (_lanes, 0.05),
    ),
    "strassen": (
        (_tile_size, 0.3),
        (_task_size, 0.3),
        (_block, 0.1),
        (_sums, 0.1),
        (_unroll, 0.1),
        (_switches, 0.05),
        (_lanes, 0.05),
    ),
    "attention": ((_queries, 0.4), (_product, 0.4), (_copies, 0.15), (_lanes, 0.05)),
    "flat": ((_chunk, 0.6), (_lanes, 0.2), (_serial, 0.2)),
    "split": ((_chunk, 0.7), (_lanes, 0.3)),
    "rows": ((_row_count, 0.6), (_lanes, 0.4)),
}
"""Steps of each rule with how often they are taken; of tiles, sizes matter most (Ansor: 0.9)."""


def crossed(one: TilePlan, other: TilePlan, source: random.Random) -> TilePlan:
    """A plan with each axis, the order and each switch from one of two plans of one sketch; `one`
    itself if they are of different ones (Ansor §5.1, node-based crossover; TVM never had it)."""
    if (one.rule, one.anchor) != (other.rule, other.anchor) or len(one.tiles) != len(other.tiles):
        return one
    rank = len(one.tiles[-1].tile.extents)
    if any(len(entry.tile.extents) != rank for entry in (*one.tiles, *other.tiles)):
        return one
    takes = [source.random() < 0.5 for _ in range(rank)]
    tiles = tuple(
        LevelTile(
            mine.level,
            Tile(
                tuple(
                    a if take else b
                    for take, a, b in zip(
                        takes, mine.tile.extents, theirs.tile.extents, strict=True
                    )
                )
            ),
        )
        for mine, theirs in zip(one.tiles, other.tiles, strict=True)
    )

    def either(field: str) -> object:
        return getattr(one if source.random() < 0.5 else other, field)

    fields = {field: either(field) for field in ("order", "attach", "prefetch", "staged", "ahead")}
    if one.rule == "chain":  # its order and the place of its stages belong together
        fields |= {"order": one.order, "attach": one.attach}
    return msgspec.structs.replace(one, tiles=tiles, lanes=one.lanes, **fields)
