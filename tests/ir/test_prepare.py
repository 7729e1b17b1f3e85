"""Preparing splits axes in blocks, so that what reads or writes them is affine."""

from __future__ import annotations

from typing import Any

from funcs import prepared_graph
from msgspec.structs import replace

from tvm_ext.compute import power
from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose
from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import has_no_gaps
from tvm_ext.tile.fuse import epilogue_of
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import Attach
from tvm_ext.tir import prepare, write
from tvm_ext.tir.prepare import MOST_FLOPS, MOST_IN_INDEX, MOST_LOADS
from tvm_ext.tvm_api import TensorLoad, structural_walk, te, tirx, topi


def relu(x: Any) -> Any:
    return te.compute(x.shape, lambda *at: tirx.max(x[at], tirx.const(0.0, "float32")), name="relu")


def test_what_pads_a_result_is_no_epilogue_of_it() -> None:
    """It would leave the padding of its buffer as it was: every register tile writes its own part
    only (a stride of 2 behind a product, padded at the end; wrong in batches, where no strip has
    the padding first)."""
    x = te.placeholder((2, 8, 8, 16), "float32", "x")
    w = te.placeholder((16, 32), "float32", "w")
    k = te.reduce_axis((0, 16), "k")
    y = te.compute((2, 8, 8, 32), lambda n, h, v, c: te.sum(x[n, h, v, k] * w[k, c], axis=k), "y")
    for after, fused in ((0, 1), (1, None)):
        whole = topi.nn.pad(topi.nn.relu(y), (0, 0, 0, 0), (0, after, after, 0))
        graph = prepared_graph(te.create_prim_func([x, w, whole]))
        assert epilogue_of(graph, 0) == fused
        plan = pick(graph, get("cpu/x86-avx2"))[0].plan
        attached = replace(plan, attach=(Attach(1, "register"),))
        assert is_legal(graph, attached, plan.lanes) == (fused is not None)


def test_a_result_of_the_group_has_no_epilogue() -> None:
    """It was to stay in registers, which TVM refuses; the kernel was left as TVM wrote it."""
    x, w = te.placeholder((784, 56), "float32", "x"), te.placeholder((56, 64), "float32", "w")
    k, j, t = (te.reduce_axis((0, extent)) for extent in (56, 48, 16))
    y = te.compute((784, 64), lambda i, c: te.sum(x[i, k] * w[k, c], axis=k), "y")
    squares = te.compute(y.shape, lambda i, c: y[i, c] * y[i, c], "squares")
    most = te.compute((784,), lambda i: te.sum(squares[i, j], axis=j), "most")
    rest = te.compute((784,), lambda i: te.sum(squares[i, t + 48], axis=t), "rest")
    total = te.compute((784,), lambda i: most[i] + rest[i], "total")
    inside = prepared_graph(te.create_prim_func([x, w, total]))
    assert epilogue_of(inside, 0) == 1
    func = te.create_prim_func([x, w, y, total])
    graph = prepared_graph(func)
    assert epilogue_of(graph, 0) is None
    plan = pick(graph, get("cpu/x86-avx2"))[0].plan
    assert {part.rule for part in plan.parts()} == {"tile", "rows"}
    write(func, plan)


def test_groups_side_by_side_have_an_epilogue() -> None:
    """34 channels a group are no whole vectors: y[c] = relu(conv[c // 34, c % 34] + b[c])."""
    geometry = ConvGeometry((1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 2, 12, 68)
    x = te.placeholder((1, 5, 7, 2, 6), "float32", "x")
    w = te.placeholder((2, 2, 1, 1, 6, 24), "float32", "w")
    b = te.placeholder((68,), "float32", "b")
    y = conv(x, w, geometry, 8)
    biased = te.compute(y.shape, lambda n, h, v, c: y[n, h, v, c] + b[c], name="biased")
    graph = prepared_graph(te.create_prim_func([x, w, b, relu(biased)]))
    product, last = graph.nodes
    assert epilogue_of(graph, 0) == 1
    assert last.extents == (1, 5, 7, 2, 34)
    assert last.write.dims[-1] is not None
    assert last.write.dims[-1].coeffs == (0, 0, 0, 34, 1)
    assert product.write.dims[-1] is not None


def test_a_shuffle_of_channels_is_affine() -> None:
    """y[c] = x[c % 4 * 17 + c // 4]  →  y[o * 4 + g] = x[g * 17 + o]"""
    x = te.placeholder((3, 68), "float32", "x")
    turned = topi.transpose(topi.reshape(x, (3, 4, 17)), (0, 2, 1))
    (node,) = prepared_graph(te.create_prim_func([x, topi.reshape(turned, (3, 68))])).nodes
    assert node.extents == (3, 17, 4)
    assert [dim.coeffs for dim in node.reads[0].dims if dim] == [(1, 0, 0), (0, 1, 17)]
    assert [dim.coeffs for dim in node.write.dims if dim] == [(1, 0, 0), (0, 4, 1)]


def test_windows_are_affine() -> None:
    """6 windows of 5 x 7 positions, each a row: both axes of windows and both inside them."""
    x = te.placeholder((10, 21, 12), "float32", "x")
    parts = topi.transpose(topi.reshape(x, (2, 5, 3, 7, 12)), (0, 2, 1, 3, 4))
    (node,) = prepared_graph(te.create_prim_func([x, topi.reshape(parts, (6, 35, 12))])).nodes
    assert node.extents == (2, 3, 5, 7, 12)
    assert all(dim is not None for dim in (*node.reads[0].dims, *node.write.dims))


def test_a_sigmoid_for_each_channel_is_not_computed_for_each_pixel() -> None:
    """Squeeze and excitation: y[h, w, c] = x[h, w, c] * sigmoid(gate[c] + b[c])."""
    x = te.placeholder((9, 7, 24), "float32", "x")
    gate, b = (te.placeholder((24,), "float32", name) for name in ("gate", "b"))
    moved = te.compute((24,), lambda c: gate[c] + b[c], name="moved")
    opened = te.compute((24,), lambda c: tirx.sigmoid(moved[c]), name="opened")
    y = te.compute(x.shape, lambda h, w, c: x[h, w, c] * opened[c], name="y")
    graph = prepared_graph(te.create_prim_func([x, gate, b, y]))
    assert [node.extents for node in graph.nodes] == [(24,), (9, 7, 24)]
    plain = te.compute(x.shape, lambda h, w, c: x[h, w, c] * moved[c], name="plain")
    (node,) = prepared_graph(te.create_prim_func([x, gate, b, plain])).nodes
    assert node.extents == (9, 7, 24)


def test_what_is_read_twice_by_what_is_read_twice_does_not_grow_without_end() -> None:
    """Thirty squares of squares would be a statement of 2 ** 30 loads."""

    def squared(value: te.Tensor) -> te.Tensor:
        return te.compute(value.shape, lambda i, j: value[i, j] * value[i, j], name="squared")

    x = te.placeholder((8, 16), name="x")
    value = x
    for _ in range(30):
        value = squared(value)
    prepared = prepare(te.create_prim_func([x, value]))
    assert prepared is not None
    assert [node.flops_per_point for node in prepared.graph.nodes] == [MOST_LOADS - 1.0] * 5
    body = prepared.schedule.mod["main"].body
    found: list[Any] = []
    structural_walk(body, (TensorLoad, found.append))
    assert len(found) == 5 * MOST_LOADS


def test_nor_does_what_costs_much() -> None:
    """A power that is asked for its sign, and used, and that again: sixteen and more of them in one
    statement took TVM's simplifier minutes."""

    def absolute(value: te.Tensor) -> te.Tensor:
        def element(i: Any, j: Any) -> Any:
            return te.if_then_else(value[i, j] > 0, value[i, j], -value[i, j])

        return te.compute(value.shape, element, name="absolute")

    x = te.placeholder((8, 16), name="x")
    value = te.compute(x.shape, lambda i, j: power.pow(x[i, j], x[i, j]), name="raised")
    for _ in range(4):
        value = absolute(value)
    graph = prepared_graph(te.create_prim_func([x, value]))
    assert len(graph.nodes) > 1
    assert max(node.flops_per_point for node in graph.nodes) <= MOST_FLOPS


def test_what_takes_many_steps_is_no_part_of_an_index() -> None:
    """Each read of a gathered row would look through all of them: a detector's places of boxes,
    which tell what is alive and divide, took TVM seconds to inline."""
    table = te.placeholder((9, 4), "float32", "table")
    given = [te.placeholder((50,), "int64", name) for name in ("a", "b", "c", "d", "e")]
    for count, stages in ((MOST_IN_INDEX, 1), (MOST_IN_INDEX + 1, 2)):
        index = given[0]
        for other in given[1:count]:
            index = topi.add(index, other)
        rows = topi.take(table, index, axis=0, mode="clip")
        func = te.create_prim_func([table, *given[:count], rows])
        assert len(prepared_graph(func).nodes) == stages


def test_tensors_of_one_name_are_told_apart() -> None:
    """Merged functions have names twice: y[p, q] = x[p // 3 * 2 + q] * x'[p // 3]."""
    x = te.placeholder((16,), "float32", "x")
    other = te.placeholder((4, 2), "float32", "x")
    y = te.compute((6, 4), lambda p, q: x[p // 3 * 2 + q] * other[p // 3, q // 2], name="y")
    (node,) = prepared_graph(te.create_prim_func([x, other, y])).nodes
    assert all(dim is not None for read in node.reads for dim in read.dims)


def transposed(kernel: int, pad: int, out: int) -> Any:
    """relu of a transposed convolution of 6 elements, its stride 2."""
    geometry = TransposedGeometry((kernel,), (2,), (pad,), (out,), 4, 8)
    x = te.placeholder((1, 6, 4), "float32", "x")
    w = te.placeholder((1, 2, geometry.taps(0), 4, 8), "float32", "w")
    return prepared_graph(te.create_prim_func([x, w, relu(conv_transpose(x, w, geometry))]))


def test_phases_of_a_transposed_convolution_are_an_axis_of_all_stages() -> None:
    """y[h] = relu(conv[h])  →  y[2 * h + phase] = relu(conv[h, phase])"""
    graph = transposed(kernel=4, pad=1, out=12)
    product, last = graph.nodes[-2:]
    assert epilogue_of(graph, len(graph.nodes) - 2) == len(graph.nodes) - 1
    assert product.extents == (1, 6, 2, 8, 2, 4)
    assert last.extents == (1, 6, 2, 8)
    assert graph.tensors[product.write.tensor].shape == last.extents
    assert has_no_gaps(product, Tile((1, 6, 1, 8, 1, 4)))
    assert last.write.dims[1] is not None
    assert last.write.dims[1].coeffs == (0, 2, 1, 0)


def test_phases_of_which_some_are_cut_off_stay_side_by_side() -> None:
    graph = transposed(kernel=3, pad=1, out=11)
    product, last = graph.nodes[-2:]
    assert last.extents == (1, 11, 8)
    assert not has_no_gaps(product, Tile((1, 6, 1, 8, 1, 4)))
