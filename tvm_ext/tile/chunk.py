"""Reductions in chunks: of a long one the core's own cache holds neither operand.

    tiles: acc = 0; for k < 8192: acc += x[rows, k] * w[k, columns]; y = acc
        →
    chunks of k: tiles: acc = 0; for k in chunk: acc += ..; y += acc

A plan says so by a tile at `l2`: the core tile with a part of one axis of the reduction. What a
chunk takes of both operands stays in that cache while all register tiles go over it, and the sums
so far pass through memory once a chunk (the `kc` loop of Goto & van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", §4). 128 x 8192 by 4096, 2 MiB of L2: 183 → 425 GFLOP/s.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.classify import slides, whole_reduction
from tvm_ext.tile.graph import TileNode
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

LEVEL = "l2"
LONG = 1024
"""Iterations from which a search tries chunks: all of 2048 fit in 2 MiB with room to spare."""
LEAST = 64
"""Iterations of the shortest chunk that it tries."""


class Chunk(NamedTuple):
    """So many iterations of a reduction axis at once."""

    axis: int
    size: int


def chunk_of(node: TileNode, plan: TilePlan) -> Chunk | None:
    """The first axis of which a plan by tiles takes a chunk at once; None if all is taken."""
    if plan.rule != "tile":
        return None
    tile = next((entry.tile for entry in plan.tiles if entry.level == LEVEL), None)
    if tile is None:
        return None
    cut = (axis for axis in node.reduce if tile.extents[axis] < node.axes[axis].extent)
    return next((Chunk(axis, tile.extents[axis]) for axis in cut), None)


def chunk_count(node: TileNode, plan: TilePlan) -> int:
    """How many chunks there are."""
    chunk = chunk_of(node, plan)
    return 1 if chunk is None else -(-node.axes[chunk.axis].extent // chunk.size)


def with_chunk(node: TileNode, plan: TilePlan, chunk: Chunk | None) -> TilePlan:
    """The plan by tiles with a chunk of its reduction at once, or all of it: the tile at `l2`, and
    an epilogue at the end of core tiles in place of register tiles, or the other way round."""
    core = next(entry for entry in plan.tiles if entry.level == "core")
    others = tuple(entry for entry in plan.tiles if entry.level not in ("core", LEVEL))
    held = () if chunk is None else (LevelTile(LEVEL, chunk_tile(node, core.tile, chunk)),)
    place = "register" if chunk is None else "core"
    attach = tuple(
        Attach(entry.stage, place) if entry.stage > plan.anchor else entry for entry in plan.attach
    )
    return msgspec.structs.replace(
        plan,
        tiles=(core, *held, *others),
        attach=attach,
        ahead=plan.ahead and chunk is None,
        staged=plan.staged if chunk is None else (),
    )


def chunk_tile(node: TileNode, core: Tile, chunk: Chunk) -> Tile:
    """The core tile with a chunk of the reduction."""
    extents = list(whole_reduction(node, core).extents)
    extents[chunk.axis] = chunk.size
    return Tile(tuple(extents))


def at_once(node: TileNode, plan: TilePlan, tile: Tile) -> Tile:
    """A tile of the plan with all iterations of the reduction that go over it one after another."""
    chunk = chunk_of(node, plan)
    return whole_reduction(node, tile) if chunk is None else chunk_tile(node, tile, chunk)


def chunks(node: TileNode, plan: TilePlan) -> list[Chunk]:
    """What a search may try: equal parts of a long reduction, in whole register tiles."""
    axis = longest(node)
    if axis is None or node.extents[axis] < LONG:
        return []
    step, extent = plan.at("register").extents[axis], node.extents[axis]
    sizes = (size for size in divisors(extent) if LEAST <= size < extent and size % step == 0)
    return [Chunk(axis, size) for size in sizes]


def longest(node: TileNode) -> int | None:
    """The longest axis of the reduction that is none of a window: the one to be cut."""
    found = [axis for axis in node.reduce if not slides(node, axis)]
    return max(found, key=lambda axis: node.axes[axis].extent, default=None)
