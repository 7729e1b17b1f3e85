"""Kernels of several pieces that ran as loops, their plan refused or wrong, have the picker's."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from onnx_models import make_model, value

import tvm_ext

RANDOM = np.random.default_rng(17)


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
    made = make_model(nodes, [value("x", *x.shape)], ["y"], {"scale": scale})
    (y,) = planned(made, x)
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
    constants = {"scale": scale, "shift": shift}
    made = make_model(nodes, [value("x", *x.shape)], outputs, constants)
    turned, moved, y = planned(made, x)
    np.testing.assert_array_equal(turned, x.transpose(3, 2, 0, 1))
    np.testing.assert_allclose(moved, turned * scale + shift, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(y, softmax(x, 2), rtol=1e-5, atol=1e-7)
