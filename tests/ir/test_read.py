"""From PrimFuncs to tile graphs: what is read off a block, and what preparation leaves of it."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from funcs import (
    FUNCS,
    argmax_func,
    chain_func,
    conv_func,
    dense_func,
    gather_func,
    map_func,
    matmul_func,
    norm_func,
    placeholder,
    pool_func,
    relu,
    softmax_func,
    transpose_func,
)

from tvm_ext.tile import TileGraph, TileNode
from tvm_ext.tile.classify import is_flat, vector_axis, vectorisable
from tvm_ext.tile.graph import AffineDim
from tvm_ext.tir import prepare, read
from tvm_ext.tvm_api import PrimFunc, te, tirx, topi


def graph_of(func: PrimFunc) -> TileGraph:
    graph = read(func)
    assert graph is not None
    return graph


def named(graph: TileGraph, name: str) -> TileNode:
    (node,) = (node for node in graph.nodes if node.name == name)
    return node


def strides(graph: TileGraph, node: TileNode, tensor: str) -> list[int | None]:
    """The stride of each axis of a node in the named tensor it reads or writes."""
    (access,) = (a for a in (*node.reads, node.write) if graph.tensors[a.tensor].name == tensor)
    shape = graph.tensors[access.tensor].shape
    return [access.stride(axis, shape) for axis in range(len(node.axes))]


def test_a_product() -> None:
    graph = graph_of(matmul_func(24, 40, 16))
    (node,) = graph.nodes
    assert node.kind == "reduce"
    assert [(axis.extent, axis.kind) for axis in node.axes] == [
        (24, "space"),
        (40, "space"),
        (16, "reduce"),
    ]
    assert node.flops == graph.flops == 2 * 24 * 40 * 16
    assert [(t.name, t.shape, t.role) for t in graph.tensors if t.role == "output"] == [
        ("matmul", (24, 40), "output")
    ]
    assert graph.io_bytes == 4 * (24 * 16 + 16 * 40 + 24 * 40)
    assert strides(graph, node, "a") == [16, 0, 1]
    assert strides(graph, node, "b") == [0, 1, 40]
    assert strides(graph, node, "matmul") == [40, 1, 0]
    assert vector_axis(node) == 1
    assert vectorisable(graph, node)


def test_a_packed_product() -> None:
    graph = graph_of(dense_func(24, 16, 64))
    node = named(graph, "dense")
    (weight,) = (a for a in node.reads if graph.tensors[a.tensor].name == "w")
    block, inner, lane = weight.dims
    assert block is not None
    assert lane is not None
    assert (block.coeffs, block.div) == ((0, 1, 0), 32)
    assert (lane.coeffs, lane.mod) == ((0, 1, 0), 32)
    assert inner is not None
    assert inner.coeffs == (0, 0, 1)
    assert strides(graph, node, "w") == [0, 1, 32]
    assert graph.consumers(graph.nodes.index(node)) == (1,)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_a_convolution(stride: int, dilation: int) -> None:
    func = conv_func(17, 8, 32, 3, stride, dilation, pad=0, epilogue=False)
    graph = graph_of(func)
    (node,) = graph.nodes
    out = (17 - 2 * dilation - 1) // stride + 1
    assert node.extents == (1, out, out, 32, 3, 3, 8)
    assert node.flops == 2 * prod(node.extents)
    row = 17 * 8
    assert strides(graph, node, "x") == [
        17 * row, stride * row, stride * 8, 0, dilation * row, dilation * 8, 1,
    ]  # fmt: skip
    assert vector_axis(node) == 3
    assert vectorisable(graph, node)


def test_a_depthwise_convolution() -> None:
    graph = graph_of(conv_func(14, 16, 16, groups=16, pad=0, epilogue=False))
    (node,) = graph.nodes
    assert node.extents == (1, 12, 12, 16, 3, 3)
    assert strides(graph, node, "w") == [0, 0, 0, 1, 48, 16]
    assert strides(graph, node, "x")[3] == 1


@pytest.mark.parametrize(("channels", "out", "groups"), [(8, 24, 2), (64, 64, 2), (32, 32, 8)])
def test_a_grouped_convolution_runs_in_vectors(channels: int, out: int, groups: int) -> None:
    """Neighbouring outputs of one group read one input element: stride 0 inside a block."""
    graph = graph_of(conv_func(14, channels, out, groups=groups, pad=0, epilogue=False))
    (node,) = graph.nodes
    assert vectorisable(graph, node)


def test_a_padded_window() -> None:
    """Padding costs no arithmetic, and its index is an affine one with an offset."""
    graph = graph_of(pool_func(9, 24, pad=1))
    pad = graph.nodes[0]
    assert (pad.kind, pad.flops) == ("map", 0.0)
    (access,) = pad.reads
    assert [dim.offset for dim in access.dims if dim is not None] == [0, -1, -1, 0]


def test_a_softmax() -> None:
    graph = graph_of(softmax_func(12, 48))
    assert [(node.name, node.kind) for node in graph.nodes] == [
        ("row_max", "reduce"),
        ("row_exp", "map"),
        ("row_sum", "reduce"),
        ("softmax", "map"),
    ]
    assert [tensor.role for tensor in graph.tensors].count("inner") == 3
    assert graph.nodes[1].flops_per_point >= 10, "an exponential is not free"
    assert graph.io_bytes == 2 * 12 * 48 * 4
    assert [graph.consumers(index) for index in range(4)] == [(1,), (2, 3), (3,), ()]
    assert [graph.producer(node.write.tensor) for node in graph.nodes] == [0, 1, 2, 3]


def test_an_element_read_twice_is_one_access() -> None:
    x = placeholder("x", 8, 8)
    y = te.compute((8, 8), lambda i, j: x[i, j] * x[i, j] + x[i, j], name="y")
    (node,) = graph_of(te.create_prim_func([x, y])).nodes
    assert len(node.reads) == 1
    assert node.flops_per_point == 2


def test_what_walks_memory_in_order() -> None:
    for func, flat in (
        (map_func(12, 48), True),
        (map_func(1, 7, 1), True),
        (transpose_func(), False),
    ):
        graph = graph_of(func)
        assert is_flat(graph, graph.nodes[0]) == flat


def test_an_index_from_data_is_not_affine() -> None:
    graph = graph_of(gather_func())
    (node,) = graph.nodes
    (rows,) = (a for a in node.reads if graph.tensors[a.tensor].name == "x")
    assert rows.dims[0] is None
    assert rows.dims[1] is not None
    assert rows.uses(0)


INDICES = {
    "shifted": (lambda i: i + 3, ((1,), 3, 1, 0)),
    "scaled": (lambda i: 2 * i, ((2,), 0, 1, 0)),
    "reversed": (lambda i: 15 - i, ((-1,), 15, 1, 0)),
    "halved": (lambda i: (i + 1) // 2, ((1,), 1, 2, 0)),
    "wrapped": (lambda i: (i + 1) % 4, ((1,), 1, 1, 4)),
    "digit": (lambda i: i // 2 % 4, ((1,), 0, 2, 4)),
    "constant": (lambda i: 5, ((0,), 5, 1, 0)),
    "squared": (lambda i: i * i % 7, None),
}


@pytest.mark.parametrize("name", INDICES)
def test_index_expressions(name: str) -> None:
    index, expected = INDICES[name]
    x = placeholder("x", 40)
    y = te.compute((16,), lambda i: x[index(i)] * 2.0, name="y")
    (node,) = graph_of(te.create_prim_func([x, y])).nodes
    (dim,) = node.reads[0].dims
    found = None if dim is None else (dim.coeffs, dim.offset, dim.div, dim.mod)
    assert found == expected


def test_element_sizes() -> None:
    for dtype, size in {"float16": 2, "bfloat16": 2, "int8": 1, "bool": 1, "int64": 8}.items():
        x = placeholder("x", 4, dtype=dtype)
        graph = graph_of(te.create_prim_func([x, topi.identity(x)]))
        assert {tensor.dtype_bytes for tensor in graph.tensors} == {size}


def test_a_block_that_stores_twice_is_opaque() -> None:
    graph = graph_of(argmax_func())
    assert graph.nodes[0].kind == "opaque"
    assert all(dim is None for dim in graph.nodes[0].write.dims)


def test_functions_without_a_tile_graph() -> None:
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), name="x")
    symbolic = te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, name="y")])
    assert read(symbolic) is None
    scattered = te.create_prim_func(
        [x, te.extern((n,), [x], lambda i, o: tirx.call_packed("f", i[0], o[0]), dtype="float32")]
    )
    assert prepare(scattered) is None


def test_the_signature_is_carried() -> None:
    graph = read(map_func(), "abc")
    assert graph is not None
    assert graph.signature == "abc"


def stages(func: PrimFunc) -> list[str]:
    prepared = prepare(func)
    assert prepared is not None
    assert len(prepared.blocks) == len(prepared.graph.nodes)
    for block, node in zip(prepared.blocks, prepared.graph.nodes, strict=True):
        assert prepared.schedule.get(block).name_hint == node.name
    return [node.name for node in prepared.graph.nodes]


def test_padding_stays_before_a_convolution() -> None:
    assert stages(conv_func(pad=1)) == ["pad", "conv", "relu"]
    assert stages(conv_func(out=17, pad=1)) == ["pad", "conv", "relu"], "the crop is absorbed"
    assert stages(pool_func(pad=1))[0] == "pad_temp"


def test_an_epilogue_becomes_one_stage() -> None:
    assert stages(conv_func(pad=0)) == ["conv", "relu"]
    assert stages(chain_func()) == ["last"]
    prepared = prepare(conv_func(pad=0))
    assert prepared is not None
    (epilogue,) = prepared.graph.nodes[1:]
    assert {prepared.graph.tensors[a.tensor].name for a in epilogue.reads} == {"conv", "b"}


def test_reductions_and_what_they_share_stay() -> None:
    assert stages(softmax_func()) == ["row_max", "row_exp", "row_sum", "softmax"]
    assert stages(norm_func()) == ["row_sum", "row_square", "normalise"]


def test_a_stage_goes_into_a_reduction_that_reads_each_element_once() -> None:
    x, y = placeholder("x", 12, 48), placeholder("y", 48, 8)
    assert stages(te.create_prim_func([x, topi.sum(relu(x), axis=1)])) == ["relu_red"]
    k = te.reduce_axis((0, 48), name="k")
    r = relu(x)
    product = te.compute((12, 8), lambda i, j: te.sum(r[i, k] * y[k, j], axis=k), name="product")
    assert stages(te.create_prim_func([x, y, product])) == ["relu", "product"], (
        "it reads them 8 times"
    )


def test_an_output_is_never_inlined() -> None:
    x = placeholder("x", 12, 48)
    first = relu(x, "first")
    assert stages(te.create_prim_func([x, first, relu(first, "second")])) == ["first", "second"]


@pytest.mark.parametrize("name", FUNCS)
def test_preparing_leaves_the_function_alone(name: str) -> None:
    func = FUNCS[name]()
    before = func.script()
    first, second = prepare(func), prepare(func)
    assert func.script() == before
    assert first is not None
    assert second is not None
    assert first.graph == second.graph


@pytest.mark.parametrize("name", FUNCS)
def test_arithmetic_and_traffic_survive_preparation(name: str) -> None:
    """Inlining never repeats arithmetic, and inputs and outputs are what they were."""
    func: Any = FUNCS[name]()
    whole, prepared = graph_of(func), prepare(func)
    assert prepared is not None
    assert prepared.graph.io_bytes == whole.io_bytes
    assert prepared.graph.flops <= whole.flops * (1 + 1e-9)


def phased(pad: int) -> PrimFunc:
    """y[h, o] = sum over k, c of x[(h + pad) // 4 + k, c] * w[h % 4, k, c, o]."""
    x, w = placeholder("x", 8, 16), placeholder("w", 4, 2, 16, 32)
    k, c = te.reduce_axis((0, 2), name="k"), te.reduce_axis((0, 16), name="c")
    y = te.compute(
        (24, 32),
        lambda h, o: te.sum(x[(h + pad) // 4 + k, c] * w[h % 4, k, c, o], axis=[k, c]),
        name="y",
    )
    return te.create_prim_func([x, w, y])


@pytest.mark.parametrize("pad", [0, 2])
def test_a_quotient_in_a_sum_is_affine(pad: int) -> None:
    node = named(graph_of(phased(pad)), "y")
    (dim, _), (phase, *_) = (access.dims for access in node.reads)
    assert dim == AffineDim((1, 0, 4, 0), pad, 4)
    assert phase == AffineDim((1, 0, 0, 0), 0, 1, 4)


def test_phases_become_an_axis() -> None:
    """h → (h // 4, h % 4): neighbours on the one axis share weights, on the other data."""
    prepared = prepare(phased(0))
    assert prepared is not None
    node = named(prepared.graph, "y")
    assert node.extents == (6, 4, 32, 2, 16)
    assert strides(prepared.graph, node, "x") == [16, 0, 0, 16, 1]
    assert strides(prepared.graph, node, "y") == [128, 32, 1, 0, 0]
