"""Kernels whose reductions go in chunks (`tile.chunk`) compute what their operators mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_cases import names
from onnx import helper, numpy_helper
from test_kernels import assert_right, fresh

from tvm_ext import flow
from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.errors import PlanError
from tvm_ext.hardware import get, resolve
from tvm_ext.picker import pick
from tvm_ext.planner import Option, Planned, Task
from tvm_ext.tile.axis import divisors
from tvm_ext.tile.chunk import LEVEL, Chunk, with_chunk
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import block_values, s_tir, structural_walk, substitute, te, tirx, uses

Array = np.ndarray[Any, Any]
SIZES = 2
"""Largest sizes of a chunk tried on each axis, beside the smallest."""
LONG = 16384
"""Steps of a reduction for which no core of today has room."""


def in_chunks(task: Task) -> Iterator[TilePlan]:
    """The picker's best plans with every axis of the reduction in chunks, where that is legal."""
    if task.graph is None:
        return
    for candidate in pick(task.graph, resolve("cpu"), 2):
        plan = candidate.plan
        if plan.rule != "tile" or plan.also:
            continue
        node = task.graph.nodes[plan.anchor]
        for axis in node.reduce:
            step = plan.at("register").extents[axis]
            sizes = [n for n in divisors(node.extents[axis])[:-1] if n % step == 0 and n > 1]
            for size in {*sizes[:1], *sizes[-SIZES:]}:
                yield with_chunk(node, plan, Chunk(axis, size))


def product(rows: int, weights: Array, bias: Array) -> onnx.ModelProto:
    """relu(x @ weights + bias)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    steps, columns = weights.shape
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (rows, steps))
    made = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (rows, columns))
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "product", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("name", names("convolutions", "products", "pooling"))
def test_chunked_kernels_are_right(name: str) -> None:
    planned = []
    for task in fresh(name, "cpu", "chunks"):
        for plan in in_chunks(task):
            try:
                func = write(task.func, plan)
            except PlanError:
                continue  # legality is the business of tests/pure
            planned.append(Planned(task, func, Option("search", plan), []))
    assert_right(planned, resolve("cpu"))


def test_sums_of_chunks_are_added_in_vectors() -> None:
    """Behind the columns of a convolution come its taps, of which there may be one."""
    geometry = ConvGeometry((1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1, 64, 32)
    x = te.placeholder((1, 4, 4, 64), "float32", "x")
    w = te.placeholder((1, 1, 1, 64, 32), "float32", "w")
    b = te.placeholder((32,), "float32", "b")
    y = conv(x, w, geometry, 16)
    z = te.compute(y.shape, lambda *at: y[at] + b[at[-1]], name="z")
    func = te.create_prim_func([x, w, b, z])
    prepared = prepare(func)
    assert prepared is not None
    node = prepared.graph.nodes[0]
    picked = pick(prepared.graph, get("cpu/x86-avx512"), 20)
    plan = next(found.plan for found in picked if found.plan.rule == "tile")
    chunked = write(func, with_chunk(node, plan, Chunk(len(node.axes) - 1, 32)))
    values: dict[Any, Any] = {}
    structural_walk(chunked.body, (s_tir.SBlockRealize, lambda r: values.update(block_values(r))))
    along: list[bool] = []

    def look(loop: Any) -> None:
        def note(store: Any) -> None:
            if store.buffer.scope() == "global":
                along.append(uses(substitute(store.indices[-1], values), loop.loop_var))

        if loop.kind == tirx.ForKind.VECTORIZED:
            structural_walk(loop.body, (tirx.BufferStore, note))

    structural_walk(chunked.body, (tirx.For, look))
    assert along
    assert all(along)


@pytest.mark.parametrize(("rows", "columns"), [(24, 96), (97, 250)])
def test_a_long_product_is_picked_in_chunks_and_right(rows: int, columns: int) -> None:
    """Rows that no register tile divides get loops of their own, columns are cut to size."""
    rng = np.random.default_rng(rows)
    weights = rng.standard_normal((LONG, columns), dtype=np.float32)
    bias = rng.standard_normal(columns, dtype=np.float32)
    given = rng.standard_normal((rows, LONG), dtype=np.float32)
    source = product(rows, weights, bias)
    compiled = flow.compile(source, "cpu")
    plans = [group.plan for group in compiled.manifest.groups if group.plan is not None]
    assert any(entry.level == LEVEL for plan in plans for entry in plan.tiles)
    (found,) = compiled(x=given)
    wanted = np.maximum(given.astype(np.float64) @ weights + bias, 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * LONG**0.5)
