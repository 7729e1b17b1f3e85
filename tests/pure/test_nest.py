"""Traffic of a tile's loops: rows that crowd few sets of a cache."""

from __future__ import annotations

import pytest
from graphs import depthwise, matmul

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan
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


def moved_by_chunks(steps: int) -> float:
    """Bytes of 1024 rows that two blocks of columns read, 16 of their elements at a time."""
    graph = matmul(1024, 64, steps)
    core = Tile((1024, 64, steps))
    levels = {"core": core, "l2": Tile((1024, 64, 16)), "register": Tile((8, 32, 4))}
    tiles = tuple(LevelTile(*entry) for entry in levels.items())
    plan = TilePlan("tile", 0, tiles, (1, 0, 2), 2, 16)
    moved, _ = Nest(graph, graph.nodes[0], plan, core, 64).bytes_into(0.8 * (1 << 20))
    return moved / steps


def test_what_goes_to_every_lane_crowds_as_well() -> None:
    """Rows of 256 elements, 16 at a time, have one of sixteen sets: the second block of columns
    fetches them again."""
    again = 1024 * 4  # bytes of one step
    assert moved_by_chunks(256) - moved_by_chunks(272) == pytest.approx(again, rel=0.1)


def test_what_is_made_in_the_core_tile_lies_closer_than_in_the_whole_tensor() -> None:
    """Pixels of 1024 channels share one set of lines; 256 of these channels side by side do not."""
    graph = depthwise(7, 7, 1024, 7, copied=True)
    core = Tile((1, 7, 7, 256, 7, 7))
    tiles = (LevelTile("core", core), LevelTile("register", Tile((1, 1, 4, 64, 1, 1))))

    def moved(level: str) -> float:
        attach = (Attach(0, level),)
        plan = TilePlan("tile", 1, tiles, (0, 1, 2, 3, 4, 5), 4, 16, attach=attach)
        return Nest(graph, graph.nodes[1], plan, core, 64).bytes_into(0.8 * 32768)[0]

    assert moved("core") < 0.7 * moved("root")
