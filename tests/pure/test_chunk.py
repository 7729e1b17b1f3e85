"""Reductions in chunks: which plans say so, which are refused, what it is worth."""

from __future__ import annotations

import random

import msgspec
import pytest
from graphs import matmul

from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.search.mutate import mutated
from tvm_ext.search.neighbours import neighbours
from tvm_ext.tile import LevelTile, Tile, TilePlan
from tvm_ext.tile.chunk import LEVEL, Chunk, at_once, chunk_count, chunk_of, with_chunk
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import check_plan, is_legal
from tvm_ext.tile.nest import Nest

LONG = matmul(128, 4096, 8192)
NODE = LONG.nodes[0]


def whole(rows: int = 128) -> TilePlan:
    tiles = (LevelTile("core", Tile((rows, 512, 8192))), LevelTile("register", Tile((8, 32, 4))))
    return TilePlan("tile", 0, tiles, (1, 0, 2), 1, 16, 4)


def reason(graph: TileGraph, plan: TilePlan) -> str:
    try:
        check_plan(graph, plan)
    except PlanError as error:
        return error.reason
    return ""


def test_a_chunk_comes_and_goes() -> None:
    plan = with_chunk(NODE, whole(), Chunk(2, 1024))
    assert chunk_of(NODE, plan) == (2, 1024)
    assert chunk_count(NODE, plan) == 8
    assert plan.at(LEVEL).extents == (128, 512, 1024)
    assert at_once(NODE, plan, plan.at("register")).extents == (8, 32, 1024)
    assert with_chunk(NODE, plan, None) == whole()
    assert is_legal(LONG, plan, 16)


@pytest.mark.parametrize("size", [1, 1000, 4098])
def test_chunks_are_equal_and_whole_register_tiles(size: int) -> None:
    assert reason(LONG, with_chunk(NODE, whole(), Chunk(2, size))) == "chunk"


def test_what_is_no_chunk_of_the_core_tile_is_refused() -> None:
    plan = with_chunk(NODE, whole(), Chunk(2, 1024))
    for extents in ((128, 256, 1024), (128, 512, 8192)):
        tiles = [LevelTile(LEVEL, Tile(extents)) if e.level == LEVEL else e for e in plan.tiles]
        assert reason(LONG, msgspec.structs.replace(plan, tiles=tuple(tiles))) == "chunk"
    assert reason(LONG, msgspec.structs.replace(plan, staged=(1,))) == "chunk"
    assert reason(LONG, msgspec.structs.replace(plan, ahead=True)) == "ahead"


def test_a_tail_moved_back_would_be_summed_twice() -> None:
    """Tails of rows have loops of their own; those of vectors cannot."""
    for rows, columns, refused in ((127, 4096, ""), (128, 4090, "chunk")):
        graph = matmul(rows, columns, 8192)
        plan = whole(rows)
        assert is_legal(graph, plan, 16)
        assert reason(graph, with_chunk(graph.nodes[0], plan, Chunk(2, 1024))) == refused


def test_a_chunk_of_both_operands_stays_in_a_cores_own_cache() -> None:
    """Whole, panels leave a cache of 2 MiB before the next rows come; in chunks all that is read
    again are the sums so far."""
    room = 0.8 * (2 << 20)

    def moved(plan: TilePlan) -> float:
        return Nest(LONG, NODE, plan, plan.at("core"), 64).bytes_into(room, hashed=True)[0]

    once = 4 * (128 * 8192 + 8192 * 512)
    plan = with_chunk(NODE, whole(), Chunk(2, 1024))
    assert moved(plan) == once + 4 * 8 * 128 * 512
    assert moved(whole()) > 3 * moved(plan)


@pytest.mark.parametrize(("steps", "some"), [(768, False), (1024, False), (8192, True)])
def test_the_picker_takes_long_reductions_in_chunks(steps: int, some: bool) -> None:
    graph = matmul(128, 4096, steps, block=32)
    plan = pick(graph, get("cpu/x86-avx512"))[0].plan
    assert (chunk_of(graph.nodes[0], plan) is not None) == some


def test_one_pass_over_the_weights_needs_no_chunks() -> None:
    graph = matmul(4, 4096, 16384)
    plan = pick(graph, get("cpu/x86-avx512"))[0].plan
    assert chunk_of(graph.nodes[0], plan) is None


def test_a_search_changes_chunks() -> None:
    """Steps from plans with and without chunks lead to the others, and keep the tile at `l2` in
    line with the core tile."""
    source = random.Random(0)
    plan, counts = whole(), set()
    for _ in range(400):
        other = mutated(LONG, plan, source)
        if is_legal(LONG, other, 16):
            plan = other
        counts.add(chunk_count(NODE, plan))
    assert {1, 4, 8, 16} <= counts
    chunked = with_chunk(NODE, whole(), Chunk(2, 1024))
    assert {4, 8, 16} <= {chunk_count(NODE, near) for near in neighbours(LONG, chunked)}
