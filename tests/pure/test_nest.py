"""Traffic of a tile's loops: rows that crowd few sets of a cache."""

from __future__ import annotations

import pytest
from graphs import matmul

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile import LevelTile, Tile, TilePlan
from tvm_ext.tile.nest import Nest


def crowded(columns: int, width: int, *, hashed: bool = False) -> float:
    """Of a row times [512, columns], read `width` columns at a time: how many times its rows
    overfill the sets of a cache of 1 MiB."""
    graph = matmul(1, columns, 512)
    core = Tile((1, columns // 2, 512))
    tiles = (LevelTile("core", core), LevelTile("register", Tile((1, width, 4))))
    plan = TilePlan("tile", 0, tiles, (0, 1, 2), 2, 16)
    nest = Nest(graph, graph.nodes[0], plan, core, 64)
    moved, times = nest.bytes_into(1 << 20, hashed=hashed)
    return times / moved


def test_short_rows_a_power_of_two_apart_overfill_their_sets() -> None:
    times = [crowded(2048, width) for width in (16, 32, 64, 128)]
    assert times == pytest.approx([7, 3, 1, 0], rel=0.02)


def test_nothing_crowds_where_addresses_are_hashed() -> None:
    assert crowded(2048, 16, hashed=True) == 0


def test_rows_that_lie_otherwise_do_not() -> None:
    assert crowded(2016, 16) == crowded(2016, 144) == 0


def test_a_lone_row_reads_eight_vectors_at_a_time() -> None:
    plan = pick(matmul(1, 2048, 512), get("cpu/x86-avx512"))[0].plan
    assert plan.at("register").extents[1] == 128
