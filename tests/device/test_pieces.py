"""Kernels of several pieces that ran as loops, their plan refused or wrong, have the picker's."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_ext

RANDOM = np.random.default_rng(17)


def model(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    outputs: list[str],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def planned(made: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """What a model computes, all of whose kernels have plans of the picker."""
    compiled = tvm_ext.compile(made)
    assert {group.source for group in compiled.manifest.groups} == {"picker"}
    return compiled(x)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


def test_what_is_computed_twice_is_not_computed_in_place() -> None:
    """Five columns are two vectors of four, of which TVM computed the second from the first's
    results: a power of a power."""
    x = RANDOM.standard_normal((1, 16, 8, 5)).astype(np.float32)
    scale = RANDOM.standard_normal((1, 16, 8, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["y"], axis=2),
    ]
    (y,) = planned(model(nodes, x.shape, ["y"], {"scale": scale}), x)
    np.testing.assert_allclose(y, softmax(x * scale, 2), rtol=1e-5, atol=1e-7)


def test_a_piece_has_rows_of_its_own() -> None:
    """Two results by rows, and a third that is another piece of the kernel."""
    x = RANDOM.standard_normal((1, 4, 3, 9)).astype(np.float32)
    scale, shift = RANDOM.standard_normal((2, 3, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[3, 2, 0, 1]),
        helper.make_node("Mul", ["turned", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "shift"], ["moved"]),
        helper.make_node("Softmax", ["x"], ["y"], axis=2),
    ]
    outputs = ["turned", "moved", "y"]
    made = model(nodes, x.shape, outputs, {"scale": scale, "shift": shift})
    turned, moved, y = planned(made, x)
    np.testing.assert_array_equal(turned, x.transpose(3, 2, 0, 1))
    np.testing.assert_allclose(moved, turned * scale + shift, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(y, softmax(x, 2), rtol=1e-5, atol=1e-7)
