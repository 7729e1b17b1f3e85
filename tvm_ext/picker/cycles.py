"""Cycles of a stage by one register tile, and the register tiles that take fewest."""

from __future__ import annotations

from math import gcd, prod

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
    graph: TileGraph, product: int, first: int, hw: HardwareModel, *, whole: bool = False
) -> tuple[int, list[Tile]]:
    """Elements in a vector, and the best register tiles of a product that other stages come with,
    of axes from the `first` on and in equal blocks of columns, or of rows and steps too (`whole`);
    none where it has no vectors."""
    node = graph.nodes[product]
    vector = vector_axis(node)
    if vector is None:
        return 1, []
    extent = node.axes[vector].extent
    lanes = gcd(extent, lanes_for(extent, hw, 4, packed_divisor(node, vector)))
    tiles = register_tiles(graph, node, vector, lanes, hw)
    equal = range(len(node.extents)) if whole else [vector]
    fitting = (
        tile
        for tile in tiles
        if prod(tile.extents[:first]) == 1
        and all(node.extents[axis] % tile.extents[axis] == 0 for axis in equal)
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
