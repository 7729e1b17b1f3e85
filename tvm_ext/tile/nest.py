"""Traffic: the bytes a tiled operator pulls into a memory level (Roller §3.3, Welder §3.2)."""

from __future__ import annotations

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.footprint import access_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import TilePlan


class Nest:
    """The loops of one core tile, with the data each sub-nest touches.

    Depth d is the sub-nest inside the first d loops; the innermost body is the register tile.
    """

    def __init__(
        self, graph: TileGraph, node: TileNode, plan: TilePlan, core: Tile, line_bytes: int
    ) -> None:
        self._graph = graph
        self._accesses = (*node.reads, node.write)
        self._line_bytes = line_bytes
        register = plan.at("register").extents
        space = [axis for axis in plan.order if axis in node.space]
        self._loops = [*space, *(axis for axis in plan.order if axis in node.reduce)]
        full = [
            axis.extent if axis.kind == "reduce" else core.extents[place]
            for place, axis in enumerate(node.axes)
        ]
        self._counts = {axis: -(-full[axis] // register[axis]) for axis in self._loops}
        self._tiles = [Tile(register)]
        extents = list(register)
        for axis in reversed(self._loops):
            extents[axis] = full[axis]
            self._tiles.append(Tile(tuple(extents)))
        self._tiles.reverse()
        self._bytes = [
            [access_bytes(graph, access, tile, line_bytes) for access in self._accesses]
            for tile in self._tiles
        ]

    def bytes_into(self, capacity_bytes: float) -> float:
        """Bytes one core tile pulls into a level of that capacity.

        The largest sub-nest whose data fits is fetched once; what a loop outside it advances over
        is fetched again, except where the loops right outside it leave an access in place.
        """
        depth = next(
            (d for d, held in enumerate(self._bytes) if sum(held) <= capacity_bytes),
            len(self._loops),
        )
        total = 0.0
        for place, access in enumerate(self._accesses):
            loads, still = 1, True
            for axis in reversed(self._loops[:depth]):
                if still and not access.uses(axis):
                    continue
                still = still and self._counts[axis] == 1
                loads *= self._counts[axis]
            total += loads * self._bytes[depth][place]
        return total
