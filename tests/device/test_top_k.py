"""The first elements of rows in order, beside numpy's stable sort."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.compute.top_k import TopK
from tvm_ext.graph.lower_top_k import LowerTopK
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.tvm_api import Target, relax, te, tvm

ROWS = {
    "one element": (1, 1, 1),
    "fewer than a vector": (5, 3, 2),
    "one block": (7, 13, 4),
    "all of one block": (3, 16, 16),
    "several blocks, the last one short": (2, 97, 10),
    "whole blocks": (3, 256, 7),
    "all of a prime": (2, 211, 211),
    "few of many": (1, 8400, 300),
    "shared out": (40, 1000, 5),
}


def run(x: np.ndarray, count: int, largest: bool, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and places from a kernel with vectors of so many lanes."""
    kernel = TopK(*x.shape, count, largest, lanes)
    given = te.placeholder(x.shape, "float32", name="x")
    func = te.create_prim_func([given, *kernel(given, parallel=x.shape[0] > 8)])
    built = build(func, Target(resolve("cpu").target))
    assert isinstance(built, Built), built
    values = tvm.runtime.tensor(np.zeros((x.shape[0], count), np.float32))
    places = tvm.runtime.tensor(np.zeros((x.shape[0], count), np.int64))
    built.main(tvm.runtime.tensor(x), values, places)
    return values.numpy(), places.numpy()


def check(x: np.ndarray, count: int, largest: bool, lanes: int) -> None:
    values, places = run(x, count, largest, lanes)
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :count]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("name", ROWS)
def test_values_and_places(name: str, largest: bool, lanes: int) -> None:
    rows, length, count = ROWS[name]
    x = np.random.default_rng(0).standard_normal((rows, length), dtype=np.float32)
    check(x, count, largest, lanes)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_equal_elements_come_in_the_order_of_their_places(largest: bool) -> None:
    x = np.random.default_rng(0).integers(-2, 3, (3, 150)).astype(np.float32)
    x[:, ::7] = -0.0
    check(x, 150, largest, 16)


def test_an_infinity_is_taken_once() -> None:
    x = np.full((2, 70), -np.inf, np.float32)
    x[:, 33] = np.inf
    check(x, 70, True, 16)


def test_a_nan_is_in_order_too_and_taken_once() -> None:
    x = np.arange(40, dtype=np.float32)[None]
    x[0, 5] = np.nan
    _, places = run(x, 40, True, 8)
    assert places[0, 0] == 5
    np.testing.assert_array_equal(np.sort(places[0]), np.arange(40))


def top_k(shape: tuple[int, ...], count: int, **attributes: int) -> onnx.ModelProto:
    node = helper.make_node("TopK", ["x", "k"], ["top", "places"], **attributes)
    count_of = {"k": np.array([count], np.int64)}
    return make_model([node], [value("x", *shape)], ["top", "places"], count_of)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_along_any_axis_of_a_model(axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7, 9), dtype=np.float32)
    compiled = tvm_ext.compile(top_k((5, 7, 9), 3, axis=axis, largest=0))
    top, places = compiled({"x": x})
    order = np.argsort(x, axis=axis, kind="stable").take(range(3), axis)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(top, np.take_along_axis(x, order, axis))
    kernels = [group for group in compiled.manifest.groups if group.source == "written"]
    assert [group.kind for group in kernels] == ["top_k"]
    assert not kernels[0].fallback
    assert "written loop by loop" in str(compiled.report)


@pytest.mark.parametrize(("wanted", "dtype"), [("values", "float32"), ("indices", "int32")])
def test_one_of_both_results(wanted: str, dtype: str) -> None:
    x = relax.Var("x", relax.TensorType((6, 50), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            call = relax.op.topk(x, 4, ret_type=wanted, dtype="int32")
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    data = np.random.default_rng(0).standard_normal((6, 50), dtype=np.float32)
    (found,) = tvm_ext.compile(builder.finalize())(data)
    order = np.argsort(-data, axis=-1, kind="stable")[:, :4]
    expected = order if wanted == "indices" else np.take_along_axis(data, order, -1)
    assert str(found.dtype) == dtype
    np.testing.assert_array_equal(found, expected)


def test_integers_are_left_to_tvm() -> None:
    x = relax.Var("x", relax.TensorType((6, 50), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.topk(x, 4, ret_type="values"))
        builder.emit_func_output(result)
    mod = builder.finalize()
    tvm.ir.assert_structural_equal(LowerTopK(resolve("cpu"))(mod), mod)
