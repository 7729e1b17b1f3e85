"""Rows of outputs that lie one after another are counted by one axis."""

from __future__ import annotations

from typing import Any

import pytest
from funcs import dense, placeholder, prepared_graph

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.strassen import packed_shape, strassen
from tvm_ext.tile.fuse import epilogue_of
from tvm_ext.tile.strassen import products_of_quarters
from tvm_ext.tvm_api import PrimFunc, te, tirx


def conv_func(
    batch: int = 1, kernel: int = 1, stride: int = 1, columns: int = 7, epilogue: bool = True
) -> PrimFunc:
    """24 channels of 5 rows to 32, with a residual input and ReLU or without."""
    geometry = ConvGeometry((kernel, kernel), (stride, stride), (0, 0), (0, 0), (1, 1), 1, 24, 32)
    size = (stride * 4 + kernel, stride * (columns - 1) + kernel)
    x = placeholder("x", batch, *size, 24)
    w = placeholder("w", 2, kernel, kernel, 24, 16)
    y = conv(x, w, geometry, 8)
    if not epilogue:
        return te.create_prim_func([x, w, y])
    r = placeholder("r", batch, 5, columns, 32)
    z = te.compute(
        y.shape, lambda *at: tirx.max(y[at] + r[at], tirx.const(0.0, "float32")), name="z"
    )
    return te.create_prim_func([x, w, r, z])


def extents(func: PrimFunc) -> list[tuple[int, ...]]:
    return [node.extents for node in prepared_graph(func).nodes]


def test_rows_and_columns_of_a_pointwise_convolution_are_one_axis() -> None:
    graph = prepared_graph(conv_func())
    assert [node.extents for node in graph.nodes] == [(1, 35, 32, 1, 1, 24), (1, 35, 32)]
    assert epilogue_of(graph, 0) == 1
    assert {tensor.shape for tensor in graph.tensors} == {
        (1, 35, 24),
        (2, 1, 1, 24, 16),
        (1, 35, 32),
    }


def test_images_of_a_batch_are_part_of_it() -> None:
    assert extents(conv_func(batch=3)) == [(105, 32, 1, 1, 24), (105, 32)]


def test_a_product_without_an_epilogue_gets_a_copy() -> None:
    assert extents(conv_func(epilogue=False)) == [(1, 35, 32, 1, 1, 24), (1, 35, 32)]


def test_columns_that_are_left_out_stay_so() -> None:
    """28 of 32 columns are kept."""
    x, w = placeholder("x", 5, 7, 24), placeholder("w", 2, 24, 16)
    k = te.reduce_axis((0, 24), name="k")

    def product(i: Any, j: Any, o: Any) -> Any:
        return te.sum(x[i, j, k] * w[o // 16, k, o % 16], axis=k)

    y = te.compute((5, 7, 32), product, name="dense")
    z = te.compute((5, 7, 28), lambda *at: tirx.max(y[at], tirx.const(0.0, "float32")), name="z")
    assert extents(te.create_prim_func([x, w, z])) == [(35, 32, 24), (35, 28)]


def test_windows_and_steps_keep_their_axes() -> None:
    for func in (conv_func(kernel=3), conv_func(stride=2)):
        assert extents(func)[0][:4] == (1, 5, 7, 32)


def test_a_column_alone_is_joined_with_nothing() -> None:
    assert extents(conv_func(columns=1))[1] == (1, 5, 1, 32)


def test_sentences_of_a_batch_are_one_axis() -> None:
    """x [3, 5, 24] times W: 15 rows."""
    x, b = placeholder("x", 3, 5, 24), placeholder("b", 64)
    w = placeholder("w", 2, 24, 32)
    k = te.reduce_axis((0, 24), name="k")

    def product(i: Any, j: Any, o: Any) -> Any:
        return te.sum(x[i, j, k] * w[o // 32, k, o % 32], axis=k)

    y = te.compute((3, 5, 64), product, name="dense")
    z = te.compute((3, 5, 64), lambda i, j, o: y[i, j, o] + b[o], name="biased")
    assert extents(te.create_prim_func([x, w, b, z])) == [(15, 64, 24), (15, 64)]
    rows = placeholder("x", 15, 24)
    flat = dense(rows, w)
    shifted = te.compute((15, 64), lambda i, o: flat[i, o] + b[o], name="biased")
    assert extents(te.create_prim_func([rows, w, b, shifted])) == [(15, 64, 24), (15, 64)]


@pytest.mark.parametrize("behind", ["bias", "greatest", "turned", "part"])
def test_only_what_follows_products_of_quarters_by_rows_comes_to_them(behind: str) -> None:
    """The greatest of all rows, a column beside another one's, or half of the columns do not."""
    x = te.placeholder((8, 64), "float32", "x")
    w = te.placeholder(packed_shape(64, 64, 16), "float32", "w")
    y = strassen(x, w, (8, 64))
    row = te.reduce_axis((0, 8), "row")
    z = {
        "bias": te.compute((8, 64), lambda i, j: y[i, j] + 1.0),
        "greatest": te.compute((64,), lambda j: te.max(y[row, j], axis=row)),
        "turned": te.compute((8, 64), lambda i, j: y[i, j] + y[i, (j + 32) % 64]),
        "part": te.compute((8, 32), lambda i, j: y[i, j] + 1.0),
    }[behind]
    graph = prepared_graph(te.create_prim_func([x, w, z]))
    assert products_of_quarters(graph)
    assert (graph.nodes[-1].kind == "map" and len(graph.nodes) == 3) == (behind == "bias")
