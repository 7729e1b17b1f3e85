"""The holes of a GPU block's plan: what a thread computes, how many there are, and the step of the
reduction that they share. Legality is `tile.legal`'s business."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.block import MAX_THREADS, can_fetch_ahead
from tvm_ext.tile.classify import cut_axis, vector_axis
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan, with_extent

Step = Callable[[TileGraph, TileNode, TilePlan, random.Random], TilePlan]

SIZES = (1, 2, 4, 8)
"""Results of a thread along an axis."""
THREADS = (32, 64, 128, 256, 512)
ACROSS = (4, 8, 16, 32, 64)
"""Threads side by side along memory."""
MAX_STEP = 64
"""Iterations of one axis of the reduction in shared memory."""
LEAST_THREADS = 32
"""Of a block without register tiles: a warp."""


def drawn(
    graph: TileGraph, anchor: int, attach: tuple[Attach, ...], source: random.Random
) -> TilePlan:
    """A plan of rule `block`, every order of magnitude as likely as another."""
    node = graph.nodes[anchor]
    vector = vector_axis(node)
    core, step, register = ([1] * len(node.axes) for _ in range(3))
    left, across = source.choice(THREADS), source.choice(ACROSS)
    rows = [axis for axis in reversed(node.space) if axis != vector]
    for place, axis in enumerate(rows if vector is None else [vector, *rows]):
        extent = node.axes[axis].extent
        inner = axis == vector or place == (vector is not None)
        register[axis] = min(extent, source.choice(SIZES)) if inner else 1
        wanted = min(left, across) if axis == vector else left
        count = max(1, min(wanted, extent // register[axis]))
        core[axis], left = count * register[axis], max(1, left // count)
    for axis in node.reduce:
        step[axis] = source.choice(divisors(node.axes[axis].extent, MAX_STEP))
    plan = TilePlan(
        rule="block",
        anchor=anchor,
        tiles=(
            LevelTile("core", Tile(tuple(core))),
            LevelTile("shared", Tile(tuple(step))),
            LevelTile("register", Tile(tuple(register))),
        ),
        order=(*sorted(node.space, key=lambda axis: axis == vector), *node.reduce),
        parallel=len(node.space),
        lanes=1,
        attach=attach,
    )
    plan = settled_block(node, plan)
    return msgspec.structs.replace(plan, ahead=can_fetch_ahead(graph, plan))


def settled_block(node: TileNode, plan: TilePlan) -> TilePlan:
    """The plan with whole register tiles in its block, whole blocks in its steps, and the threads
    side by side that follow."""
    core, step = list(plan.at("core").extents), list(plan.at("shared").extents)
    register = list(plan.at("register").extents)
    for axis, own in enumerate(node.axes):
        if own.kind == "reduce":
            core[axis], register[axis] = own.extent, 1
        else:
            register[axis] = min(register[axis], own.extent)
            core[axis] = register[axis] * max(1, min(core[axis], own.extent) // register[axis])
            step[axis] = core[axis]
    vector = vector_axis(node)
    tiles = (("core", core), ("shared", step), ("register", register))
    return msgspec.structs.replace(
        plan,
        tiles=tuple(LevelTile(level, Tile(tuple(extents))) for level, extents in tiles),
        lanes=1 if vector is None else core[vector] // register[vector],
    )


def _results(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """More or fewer results of a thread along an axis, of as many threads."""
    axis = source.choice(node.space)
    core, register = plan.at("core").extents[axis], plan.at("register").extents[axis]
    size = min(node.axes[axis].extent, source.choice(SIZES))
    plan = with_extent(plan, "register", axis, size)
    return with_extent(plan, "core", axis, min(node.axes[axis].extent, core // register * size))


def _shares(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Twice or half as many threads along an axis, or these from one axis to another."""
    axis, other = source.choice(node.space), source.choice(node.space)
    core = plan.at("core").extents
    grown = with_extent(plan, "core", axis, min(node.axes[axis].extent, 2 * core[axis]))
    choice = source.choice(("more", "fewer", "moved"))
    if choice == "more" or (choice == "moved" and axis == other):
        return grown
    if choice == "fewer":
        return with_extent(plan, "core", axis, max(1, core[axis] // 2))
    return with_extent(grown, "core", other, max(1, core[other] // 2))


def of_reduction(level: str, most: int) -> Step:
    """A step to another number of iterations of one axis of the reduction in the tile of a level,
    `most` or fewer."""

    def step(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
        if not node.reduce:
            return plan
        axis = source.choice(node.reduce)
        sizes = divisors(node.axes[axis].extent, most)
        return with_extent(plan, level, axis, source.choice(sizes))

    return step


_step = of_reduction("shared", MAX_STEP)


def _ahead(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    return msgspec.structs.replace(plan, ahead=not plan.ahead)


def _threads(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """Twice or half as many threads of a block without register tiles."""
    lanes = plan.lanes * 2 if source.random() < 0.5 else plan.lanes // 2
    lanes = max(LEAST_THREADS, min(MAX_THREADS, lanes))
    return msgspec.structs.replace(plan, lanes=lanes)


def _box(graph: TileGraph, node: TileNode, plan: TilePlan, source: random.Random) -> TilePlan:
    """A contiguous box with another number of elements."""
    core = plan.at("core").extents
    cut = cut_axis(plan.at("core"))
    size = core[cut] * 2 if source.random() < 0.5 else core[cut] // 2
    return with_extent(plan, "core", cut, max(1, min(node.axes[cut].extent, size)))


BLOCK_STEPS: dict[str, Sequence[tuple[Step, float]]] = {
    "block": (
        (_results, 0.3),
        (_shares, 0.4),
        (_step, 0.2),
        (_ahead, 0.1),
    ),
    "block_rows": ((_threads, 1.0),),
    "block_flat": ((_threads, 0.5), (_box, 0.5)),
    "block_loose": ((_threads, 1.0),),
}
"""Steps of each rule with how often they are taken."""


def block_neighbours(graph: TileGraph, node: TileNode, plan: TilePlan) -> list[TilePlan]:
    """Plans of a rule for GPUs one step away: an extent doubled or halved, or the threads."""
    found: list[TilePlan] = []
    for entry in plan.tiles if plan.rule in ("block", "block_flat") else ():
        for axis, extent in enumerate(entry.tile.extents):
            for size in (2 * extent, extent // 2):
                if 1 <= size <= node.axes[axis].extent:
                    found.append(with_extent(plan, entry.level, axis, size))
    if plan.rule == "block":
        found = [settled_block(node, one) for one in found]
        return [*found, msgspec.structs.replace(plan, ahead=not plan.ahead)]
    lanes = (2 * plan.lanes, plan.lanes // 2)
    return [
        *found,
        *(
            msgspec.structs.replace(plan, lanes=one)
            for one in lanes
            if LEAST_THREADS <= one <= MAX_THREADS
        ),
    ]
