"""Last tiles moved back cover every element, stay inside, and are no more than there were."""

from __future__ import annotations

import pytest
from graphs import conv, matmul
from hypothesis import assume, given
from hypothesis import strategies as st

from tvm_ext.tile import LevelTile, Tile, TilePlan
from tvm_ext.tile.shift import is_parted, plan_shifts, shiftable, shifts

PLAIN = matmul(7, 500, 64, block=0)
COLUMNS = 1


def columns(core: int, register: int) -> tuple[Tile, Tile]:
    """Tiles of the plain product that cut its columns only."""
    return Tile((7, core, 64)), Tile((7, register, 4))


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 12))
def test_moved_tiles_cover_the_axis(extent: int, register: int, in_core: int) -> None:
    """As the writer places them: register tile t of core tile o begins at min(o c + t r, E - r),
    if o c + t r is inside."""
    assume(register <= extent)
    core = min(extent, register * in_core)
    graph = matmul(1, extent, 1, block=0)
    node = graph.nodes[0]
    cut, tile = Tile((1, core, 1)), Tile((1, register, 1))
    moved = shifts(graph, node, cut, tile, 16)
    parted = is_parted(node, COLUMNS, cut, tile, 16)
    assert moved == ((COLUMNS,) if extent % register and not parted else ())
    assume(not parted)
    starts = [
        min(first + place, extent - register)
        for first in range(0, extent, core)
        for place in range(0, core, register)
        if first + place < extent
    ]
    assert min(starts) == 0
    assert {i for start in starts for i in range(start, start + register)} == set(range(extent))
    assert len(starts) == len(set(starts)) == -(-extent // register), "no tile is done twice"


@pytest.mark.parametrize(
    ("core", "register", "moved"),
    [
        (500, 48, (COLUMNS,)),
        (256, 32, (COLUMNS,)),
        (192, 48, (COLUMNS,)),  # 11 tiles by 4: one lies outside
        (500, 50, ()),  # no tail
        (200, 20, ()),  # a tail of whole register tiles
    ],
)
def test_which_tiles_are_moved(core: int, register: int, moved: tuple[int, ...]) -> None:
    assert shifts(PLAIN, PLAIN.nodes[0], *columns(core, register), 16) == moved


def test_a_long_tail_of_whole_vectors_has_a_loop_of_its_own() -> None:
    """80 columns by 48 are 48 and 32; 13 rows by 7 are 7 and 6; 84 columns would end in a part."""

    def parted(rows: int, columns: int, row: int, column: int, core: int) -> tuple[bool, bool]:
        node = matmul(rows, columns, 8, block=0).nodes[0]
        cut, tile = Tile((core, columns, 8)), Tile((row, column, 4))
        return is_parted(node, 0, cut, tile, 16), is_parted(node, 1, cut, tile, 16)

    assert parted(13, 80, 7, 48, 13) == (True, True)
    assert parted(13, 84, 7, 48, 7) == (False, False)
    assert parted(197, 96, 11, 48, 197) == (False, False)


def test_what_is_packed_stays_where_it_is() -> None:
    packed = matmul(7, 500, 64, block=16)
    assert not shiftable(packed, packed.nodes[0], COLUMNS)
    assert shifts(packed, packed.nodes[0], *columns(500, 48), 16) is None
    assert shiftable(packed, packed.nodes[0], 0)


def test_an_image_is_moved_back_and_its_packed_channels_are_not() -> None:
    graph = conv(13, 13, 16, 32)
    node = next(node for node in graph.nodes if node.kind == "reduce")
    assert [shiftable(graph, node, axis) for axis in node.space] == [True, True, True, False]


@pytest.mark.parametrize(
    ("core", "inside"),
    [
        (64, False),  # every core tile is one register tile
        (128, True),  # the last core tile, 116 columns, holds the moved one
        (448, False),  # of the last core tile 52 columns are left, less than the tile needs
        (500, True),
    ],
)
def test_what_is_copied_for_a_core_tile_holds_its_moved_tile(core: int, inside: bool) -> None:
    """One that began in another core tile read what another thread was still copying."""

    def moved(*staged: int) -> tuple[int, ...] | None:
        tiles = zip(("core", "register"), columns(core, 64), strict=True)
        levels = tuple(LevelTile(level, tile) for level, tile in tiles)
        plan = TilePlan("tile", 0, levels, (0, 1, 2), 1, 16, 4, staged=staged)
        return plan_shifts(PLAIN, plan)

    assert moved() == moved(0) == (COLUMNS,), "the left operand has no columns"
    assert moved(1) == (moved() if inside else None)
