"""Plans that loops alone say, for whoever compiles their schedule without us: every tile lies whole
in what it cuts, so no tail is moved back, and nothing is asked for ahead.

    register(1, 10, 32) of 196 rows, prefetched  →  register(1, 14, 32)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.pick import pick_piece
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.cut import cut, joined
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import TilePlan

LOOKED_AT = 256
"""Plans of a piece among which whole ones are looked for."""


def pick_whole(graph: TileGraph, hardware: HardwareModel, count: int = 1) -> list[TilePlan]:
    """The best `count` plans for a group on a CPU that consist of whole tiles, best first; empty if
    a piece of the group has none. Stages wait for one another: none goes strip by strip."""
    if hardware.kind == "cuda":
        return []
    nameless = msgspec.structs.replace(graph, name="", signature="")
    pieces = cut(nameless)
    found = [list(dict.fromkeys(_of_piece(piece.graph, hardware))) for piece in pieces]
    if not all(found):
        return []
    ranks = range(min(count, max(map(len, found))))
    return [
        joined(pieces, tuple(plans[min(rank, len(plans) - 1)] for plans in found)) for rank in ranks
    ]


def _of_piece(graph: TileGraph, hw: HardwareModel) -> Iterator[TilePlan]:
    for candidate in pick_piece(graph, hw, LOOKED_AT, alone=True, whole=True):
        plan = msgspec.structs.replace(candidate.plan, prefetch=False, ahead=False)
        if _is_whole(graph.nodes[plan.anchor], plan):
            yield plan


def _is_whole(node: TileNode, plan: TilePlan) -> bool:
    """Whether every tile of a plan divides the one around it, and the largest its stage."""
    tiles = [Tile(node.extents), *(level.tile for level in plan.tiles)]
    return all(
        size % part == 0
        for outer, inner in pairwise(tiles)
        for size, part in zip(outer.extents, inner.extents, strict=True)
    )
