"""Cycles of a stage by one register tile, and the register tiles that take fewest."""

from __future__ import annotations

from math import prod

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import lanes_for, packed_divisor
from tvm_ext.picker.perf import compute_cycles
from tvm_ext.picker.register import register_tiles
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.shift import shifts

REGISTER_TILES = 6
"""Register tiles of a stage that core tiles are grown around."""


def product_tiles(
    graph: TileGraph, product: int, first: int, hw: HardwareModel
) -> tuple[int, list[Tile]]:
    """Elements in a vector, and the best register tiles of a product that other stages come with,
    of axes from the `first` on and in equal blocks of columns; none where it has no vectors."""
    node = graph.nodes[product]
    vector = vector_axis(node)
    if vector is None:
        return 1, []
    lanes = lanes_for(node.axes[vector].extent, hw, 4, packed_divisor(node, vector))
    tiles = register_tiles(graph, node, vector, lanes, hw)
    columns = node.extents[vector]
    fitting = (
        t for t in tiles if prod(t.extents[:first]) == 1 and columns % t.extents[vector] == 0
    )
    ranked = sorted(fitting, key=lambda tile: whole_cycles(graph, node, tile, lanes, hw))
    return lanes, ranked[:REGISTER_TILES]


def whole_cycles(
    graph: TileGraph,
    node: TileNode,
    tile: Tile,
    lanes: int,
    hw: HardwareModel,
    instruction: str = "fma",
) -> float:
    """Those of one core that does all of a stage by one register tile."""
    full = Tile(node.extents)
    moved = shifts(graph, node, full, tile, lanes) or ()
    return compute_cycles(graph, node, full, tile, lanes, hw, moved, instruction=instruction)
