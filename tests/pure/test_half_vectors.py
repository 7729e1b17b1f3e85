"""Half vectors, where units are half as wide as vectors are: as fast, and less padding."""

from __future__ import annotations

import msgspec
import pytest
from graphs import depthwise, matmul

from tvm_ext.compute.blocking import lanes_along
from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.picker.halves import most_vectors, product_lanes
from tvm_ext.picker.perf import register_cycles
from tvm_ext.tile import Tile

WIDE = get("cpu/x86-avx512")
HALVES = msgspec.structs.replace(WIDE, fma_per_cycle=1)
AVX2 = get("cpu/x86-avx2")


def test_half_vectors_go_twice_as_fast_through_units_half_as_wide() -> None:
    assert [WIDE.fmas_per_cycle(lanes) for lanes in (4, 8, 16)] == [WIDE.fma_per_cycle] * 3
    assert [HALVES.fmas_per_cycle(lanes) for lanes in (4, 8, 16)] == [2, 2, 1]
    assert AVX2.fmas_per_cycle(4) == AVX2.fma_per_cycle
    assert [most_vectors(lanes, HALVES) for lanes in (8, 16)] == [8, 4]
    assert most_vectors(8, WIDE) == 4


@pytest.mark.parametrize(
    ("columns", "lanes"), [(24, 8), (40, 8), (56, 8), (72, 8), (120, 8), (136, 16), (20, 8)]
)
def test_weights_are_packed_in_them_if_they_pad_less(columns: int, lanes: int) -> None:
    assert lanes_along(columns, HALVES) == lanes
    assert lanes_along(columns, WIDE) == 16
    assert lanes_along(columns, AVX2) == 8


@pytest.mark.parametrize("columns", [3, 8, 16, 64, 1000, 50257])
def test_weights_are_packed_in_whole_ones_where_halves_pad_no_less(columns: int) -> None:
    assert lanes_along(columns, HALVES) == 16


def test_a_short_row_of_a_product_that_ends_in_the_middle_of_a_vector_is_in_them() -> None:
    rows = {columns: matmul(64, columns, 32).nodes[0] for columns in (24, 32, 40, 56, 72)}
    found = {columns: product_lanes(node, 16, HALVES, 4) for columns, node in rows.items()}
    assert found == {24: 8, 32: 16, 40: 8, 56: 8, 72: 16}, "72 are more than a register tile"
    assert product_lanes(rows[24], 16, WIDE, 4) == 16
    assert product_lanes(rows[24], 8, HALVES, 8) == 8, "doubles"
    (window,) = (node for node in depthwise(56, 56, 24).nodes if node.kind == "reduce")
    assert product_lanes(window, 16, HALVES, 4) == 16, "nothing goes to every lane"


def test_two_in_a_row_are_slower_than_three() -> None:
    narrow, wide = matmul(3136, 24, 144), matmul(3136, 16, 144)
    each = [
        register_cycles(graph, graph.nodes[0], Tile((8, width, 4)), 8, HALVES) / width
        for graph, width in ((narrow, 16), (narrow, 24), (wide, 16))
    ]
    assert each[1] < each[0] > each[2]
    assert pick(narrow, HALVES)[0].plan.at("register").extents[1] == 24
