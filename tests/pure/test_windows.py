"""Windows over channels: what their weights cost where registers are few, and lines taken in
parts."""

from __future__ import annotations

import msgspec
import pytest
from graphs import depthwise

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.picker.issue import register_pass
from tvm_ext.picker.perf import register_cycles
from tvm_ext.tile import LevelTile, Tile, TileGraph, TilePlan
from tvm_ext.tile.nest import Nest, has_short_rows

AVX2 = get("cpu/x86-avx2")
LINE_BYTES, CAPACITY_BYTES = 64, 6000


@pytest.mark.parametrize(("size", "channels", "kernel"), [(14, 576, 3), (28, 240, 5), (14, 672, 5)])
def test_few_registers_hold_the_weights_of_one_vector(
    size: int, channels: int, kernel: int
) -> None:
    """Two side by side spill by AVX2: 1.1 to 1.3 times as long in EfficientNet."""
    register = pick(depthwise(size, size, channels, kernel), AVX2)[0].plan.at("register").extents
    assert (register[-3], register[-1]) == (8, kernel)


@pytest.mark.parametrize("kernel", [3, 5])
def test_a_short_row_costs_its_weights_also_tap_by_tap(kernel: int) -> None:
    """LLVM unrolls it all the same (5 x 5 by 6 points of two vectors: 209 us at once, tap by tap
    278)."""
    graph = depthwise(28, 28, 240, kernel)
    node = graph.nodes[0]
    by_taps, at_once = (Tile((1, 1, 6, 16, 1, taps)) for taps in (1, kernel))
    for tile in (by_taps, at_once):
        assert register_pass(graph, node, tile, 8).taps == kernel
    cycles = [register_cycles(graph, node, tile, 8, AVX2) for tile in (by_taps, at_once)]
    assert kernel * cycles[0] >= 0.95 * cycles[1]
    many = msgspec.structs.replace(AVX2, vector_registers=64)
    assert register_cycles(graph, node, at_once, 8, many) < cycles[1]


def read_bytes(graph: TileGraph, register: Tile) -> float:
    """What a whole stage pulls into a level that holds few register tiles."""
    node = graph.nodes[0]
    tiles = (LevelTile("core", Tile(node.extents)), LevelTile("register", register))
    plan = TilePlan("tile", 0, tiles, tuple(range(len(node.axes))), 1, register.extents[3])
    return Nest(graph, node, plan, Tile(node.extents), LINE_BYTES).bytes_into(CAPACITY_BYTES)[0]


def test_a_line_of_which_a_window_takes_a_part_is_there_for_its_neighbour() -> None:
    """But not with seven taps in a row."""
    half, whole = (read_bytes(depthwise(8, 8, 96), Tile((1, 1, 4, n, 1, 3))) for n in (8, 16))
    assert half < 1.1 * whole
    graph = depthwise(8, 8, 96, 7)
    assert not has_short_rows(graph.nodes[0])
    half, whole = (read_bytes(graph, Tile((1, 1, 1, n, 1, 7))) for n in (8, 16))
    assert half > 1.5 * whole
