"""Quantised constants are what ONNX's definition makes of them, before the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tvm_ext.frontend.quantised_weights import fold_quantised

RNG = np.random.default_rng(0)
SHAPE = (6, 8)
ONE = np.float32(0.02)
ROWS = RNG.uniform(0.005, 0.02, 6).astype(np.float32)
COLUMNS = RNG.uniform(0.005, 0.02, 8).astype(np.float32)
BLOCKS = RNG.uniform(0.005, 0.02, (6, 2)).astype(np.float32)


def whole(low: int, high: int, dtype: Any, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


CASES: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "one_scale": ("DequantizeLinear", [whole(-128, 128, np.int8), ONE, np.int8(3)], {}),
    "without_point": ("DequantizeLinear", [whole(0, 256, np.uint8), ONE], {}),
    "of_each_row": (
        "DequantizeLinear",
        [whole(0, 256, np.uint8), ROWS, whole(0, 256, np.uint8, (6,))],
        {"axis": 0},
    ),
    "of_each_column": (
        "DequantizeLinear",
        [whole(-128, 128, np.int8), COLUMNS, whole(-9, 9, np.int8, (8,))],
        {"axis": -1},
    ),
    "by_default_of_each_column": ("DequantizeLinear", [whole(-128, 128, np.int8), COLUMNS], {}),
    "biases": ("DequantizeLinear", [whole(-9999, 9999, np.int32), ONE], {}),
    "in_blocks": (
        "DequantizeLinear",
        [whole(-128, 128, np.int8), BLOCKS, whole(-9, 9, np.int8, (6, 2))],
        {"axis": 1, "block_size": 4},
    ),
    "quantised_here": (
        "QuantizeLinear",
        [RNG.standard_normal(SHAPE, dtype=np.float32), ONE, np.int8(-3)],
        {},
    ),
    "quantised_here_by_rows": (
        "QuantizeLinear",
        [RNG.standard_normal(SHAPE, dtype=np.float32), ROWS, np.zeros(6, np.uint8)],
        {"axis": 0},
    ),
}


def model(op_type: str, constants: list[np.ndarray], attributes: dict[str, Any]) -> onnx.ModelProto:
    names = [f"c{place}" for place in range(len(constants))]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    kind = TensorProto.FLOAT
    if op_type == "QuantizeLinear":
        kind = helper.np_dtype_to_tensor_dtype(constants[2].dtype)
    graph = helper.make_graph(
        [node],
        op_type,
        [],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
        [numpy_helper.from_array(np.asarray(c), n) for c, n in zip(constants, names, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("name", CASES)
def test_constants_are_what_onnx_makes_of_them(name: str) -> None:
    made = model(*CASES[name])
    read = ir.from_proto(made)
    fold_quantised(read.graph)
    assert not len(read.graph)
    found = ir.convenience.get_const_tensor(read.graph.outputs[0])
    assert found is not None
    (expected,) = ReferenceEvaluator(made).run(None, {})
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


def test_biases_of_halves_are_multiplied_in_floats() -> None:
    """As integers they are no number of 16 bits."""
    values, scale = np.array([[9_000_000, -70_001]], np.int32), np.float16(1 / 1024)
    nodes = [helper.make_node("DequantizeLinear", ["b", "scale"], ["y"])]
    constants = [numpy_helper.from_array(values, "b"), numpy_helper.from_array(scale, "scale")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, (1, 2))]
    graph = helper.make_graph(nodes, "biases", [], outputs, constants)
    read = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    fold_quantised(read.graph)
    found = ir.convenience.get_const_tensor(read.graph.outputs[0])
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), (values / 1024).astype(np.float16))


def test_what_is_not_known_stays() -> None:
    made = model(*CASES["one_scale"])
    del made.graph.initializer[1]
    made.graph.input.append(helper.make_tensor_value_info("c1", TensorProto.FLOAT, ()))
    read = ir.from_proto(made)
    fold_quantised(read.graph)
    assert [node.op_type for node in read.graph] == ["DequantizeLinear"]


def test_a_product_has_its_weights_packed() -> None:
    """No kernel makes floats of them."""
    constants = CASES["of_each_column"][1]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "point"], ["floats"], axis=1),
        helper.make_node("MatMul", ["x", "floats"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (5, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (5, 8))],
        [
            numpy_helper.from_array(c, n)
            for c, n in zip(constants, ("w", "scale", "point"), strict=True)
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert [group.kind for group in tvm_ext.compile(made).manifest.groups] == ["dense"]
