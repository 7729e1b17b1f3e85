"""Register tiles for the matrix unit: the laws of matrices, and which are worth a look."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.hardware import get
from tvm_ext.picker.amx import amx_cycles, amx_tiles
from tvm_ext.tile.amx import ISA, REGISTERS, SIDE, matrices
from tvm_ext.tile.axis import Axis, Tile
from tvm_ext.tile.graph import Access, AffineDim, Tensor, TileGraph, TileNode

X86 = get("cpu/x86-avx512")
UNIT = msgspec.structs.replace(X86, isa=(*X86.isa, ISA))


def products(rows: int, columns: int, words: int, block: int = 32) -> TileGraph:
    """Dots of rows and packed columns."""
    axes = (Axis("i", rows, "space"), Axis("j", columns, "space"), Axis("k", words, "reduce"))
    i, j, k = (AffineDim(tuple(int(a == b) for b in range(3))) for a in range(3))
    panel = AffineDim((0, 1, 0), div=block)
    inside = AffineDim((0, 1, 0), mod=block)
    tensors = (
        Tensor("x", (rows, words), "int32", 4, "input"),
        Tensor("w", (-(-columns // block), words, block), "int32", 4, "input"),
        Tensor("y", (rows, columns), "int32", 4, "output"),
    )
    reads = (Access(0, (i, k)), Access(1, (panel, k, inside)))
    node = TileNode("dense", "reduce", axes, reads, Access(2, (i, j)), 2.0, (), True)
    return TileGraph("products", tensors, (node,))


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 12), st.integers(1, 200))
def test_every_tile_falls_into_matrices(rows: int, columns: int, words: int) -> None:
    graph = products(rows, 32 * columns, words)
    (node,) = graph.nodes
    for tile in amx_tiles(graph, node, SIDE, UNIT):
        assert tile.fits(node.axes)
        unit = matrices(graph, node, tile)
        assert unit is not None
        height, width, dots = tile.extents
        assert (unit.rows * unit.down, SIDE * unit.across) == (height, width)
        assert 1 < unit.rows <= SIDE
        assert 1 < dots <= SIDE
        assert words % dots == 0
        assert unit.down * unit.across + 2 <= REGISTERS


def test_rows_are_shared_out_evenly() -> None:
    """56 rows are four times 14, not three times 16 and a tail; 49 four times 13, moved back."""
    for rows, wanted in ((56, {14, 28, 56}), (49, {7, 13, 26})):
        graph = products(rows, 64, 16)
        heights = {tile.extents[0] for tile in amx_tiles(graph, graph.nodes[0], SIDE, UNIT)}
        assert wanted <= heights


@pytest.mark.parametrize(
    "graph",
    [products(1, 64, 16), products(56, 64, 17), products(56, 24, 16, block=8)],
    ids=["a single row", "a prime number of dots", "half a matrix of columns"],
)
def test_what_it_is_not_for(graph: TileGraph) -> None:
    assert not list(amx_tiles(graph, graph.nodes[0], SIDE, UNIT))


def test_only_machines_with_the_unit_and_sums_of_dots_have_any() -> None:
    graph = products(56, 64, 16)
    (node,) = graph.nodes
    floats = msgspec.structs.replace(node, dots=False)
    assert list(amx_tiles(graph, node, SIDE, UNIT))
    assert not list(amx_tiles(graph, node, SIDE, X86))
    assert not list(amx_tiles(msgspec.structs.replace(graph, nodes=(floats,)), floats, SIDE, UNIT))


def test_full_matrices_cost_least() -> None:
    graph = products(64, 64, 16)
    (node,) = graph.nodes

    def per_sum(height: int, width: int) -> float:
        tile = Tile((height, width, 16))
        unit = matrices(graph, node, tile)
        assert unit is not None
        return amx_cycles(unit, tile) / (height * width)

    assert per_sum(32, 32) < per_sum(16, 32) <= per_sum(16, 16)
    assert per_sum(32, 32) < per_sum(16, 64) * 1.01
    assert per_sum(32, 32) < per_sum(8, 32)
