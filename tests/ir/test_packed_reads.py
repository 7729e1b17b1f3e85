"""Which operands count as weights packed in panels: cold in a model, and asked for ahead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose
from tvm_ext.compute.dense import dense, matmul
from tvm_ext.compute.winograd import packed_shape, winograd
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import packed_reads, takes_whole_panels, vector_axis
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import PrimFunc, te


def product(columns: int) -> PrimFunc:
    x = te.placeholder((96, 128), "float32", "x")
    w = te.placeholder((-(-columns // 32), 128, 32), "float32", "w")
    return te.create_prim_func([x, w, dense(x, w, columns)])


def filtering(outer: int) -> PrimFunc:
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 64, outer)
    x = te.placeholder((1, 16, 16, 64), "float32", "x")
    w = te.placeholder(packed_shape(geometry, 16, 4), "float32", "w")
    return te.create_prim_func([x, w, winograd(x, w, geometry, 4)])


def convolution(columns: int) -> PrimFunc:
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 24, columns)
    x = te.placeholder((1, 12, 12, 24), "float32", "x")
    w = te.placeholder((-(-columns // 32), 3, 3, 24, 32), "float32", "w")
    return te.create_prim_func([x, w, conv(x, w, geometry, 16)])


def transposed(columns: int) -> PrimFunc:
    """Phases lie between the panel's number and the taps."""
    geometry = TransposedGeometry((4, 4), (2, 2), (1, 1), (24, 24), 24, columns)
    x = te.placeholder((1, 12, 12, 24), "float32", "x")
    w = te.placeholder((-(-columns // 32), 2, 2, 2, 2, 24, 32), "float32", "w")
    return te.create_prim_func([x, w, conv_transpose(x, w, geometry)])


def computed(*batch: int) -> PrimFunc:
    """A product of two activations, as narrow as a panel."""
    a = te.placeholder((*batch, 96, 128), "float32", "a")
    b = te.placeholder((*batch, 128, 32), "float32", "b")
    return te.create_prim_func([a, b, matmul(a, b, 16)])


def graph_of(func: PrimFunc) -> TileGraph:
    prepared = prepare(func)
    assert prepared is not None
    return prepared.graph


def weights_of(func: PrimFunc) -> list[str]:
    graph = graph_of(func)
    reductions = [node for node in graph.nodes if node.kind == "reduce"]
    return [graph.tensors[x.tensor].name for node in reductions for x in packed_reads(node)]


@pytest.mark.parametrize("make", [product, filtering, convolution, transposed])
@pytest.mark.parametrize("columns", [32, 64, 96])
def test_weights_of_one_panel_and_of_several(make: Callable[[int], PrimFunc], columns: int) -> None:
    assert weights_of(make(columns)) == ["w"]


@pytest.mark.parametrize("make", [product, convolution, transposed])
@pytest.mark.parametrize("columns", [32, 64])
def test_half_of_a_panel_is_no_whole_one(make: Callable[[int], PrimFunc], columns: int) -> None:
    graph = graph_of(make(columns))
    node = next(node for node in graph.nodes if node.kind == "reduce" and packed_reads(node))
    last = vector_axis(node)
    whole = {
        width
        for width in (8, 16, 32, 64)
        if takes_whole_panels(node, Tile(tuple(width * (a == last) for a in range(len(node.axes)))))
    }
    assert whole == {32, 64}


@pytest.mark.parametrize("batch", [(), (4,), (1, 12), (2, 1)])
def test_what_is_computed_is_no_weight(batch: tuple[int, ...]) -> None:
    assert not weights_of(computed(*batch))


def test_a_row_of_pixels_is_no_panel() -> None:
    """Of a picture one pixel high, rows do not move what is read."""
    x = te.placeholder((1, 1, 34, 32), "float32", "x")
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((1, 1, 32, 32), lambda n, h, w, c: te.sum(x[n, h, w + k, c], axis=k), name="y")
    assert not weights_of(te.create_prim_func([x, y]))
