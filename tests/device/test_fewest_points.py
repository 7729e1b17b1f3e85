"""Products that go where points are fewest compute the same, whatever enlarges or pools."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, run_plainly, value

import tvm_ext

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(3)
MODES = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    "corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "cubic": {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
}


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def neck(mode: dict[str, Any]) -> onnx.ModelProto:
    """A fine map beside a coarse and a coarser one, and a summary of all."""
    constants = {
        "w": drawn(61, 37 + 64 + 96 + 50, 1, 1) / 16,
        "b": drawn(61),
        "none": np.zeros(0, "float32"),
        "size": np.array([1, 64, 13, 18]),
        "smaller": np.array([1, 96, 13, 18]),
        "shape": np.array([1, 50, 13, 18]),
    }
    nodes = [
        helper.make_node("Resize", ["g", "none", "none", "size"], ["large"], **mode),
        helper.make_node("Resize", ["h", "none", "none", "smaller"], ["larger"], **mode),
        helper.make_node("Expand", ["s", "shape"], ["everywhere"]),
        helper.make_node("Concat", ["x", "large", "everywhere", "larger"], ["all"], axis=1),
        helper.make_node("Conv", ["all", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    shapes = {"x": (37, 13, 18), "g": (64, 6, 9), "h": (96, 4, 5), "s": (50, 1, 1)}
    given = [value(name, 1, *shape) for name, shape in shapes.items()]
    return make_model(nodes, given, ["y"], constants)


def check(model: onnx.ModelProto) -> None:
    inputs = {
        one.name: drawn(*(dim.dim_value for dim in one.type.tensor_type.shape.dim))
        for one in model.graph.input
    }
    (expected,) = run_plainly(model, inputs)
    (found,) = tvm_ext.compile(model)(inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("mode", MODES)
def test_necks(mode: str) -> None:
    check(neck(MODES[mode]))


@pytest.mark.parametrize("bias", [False, True])
def test_pools(bias: bool) -> None:
    constants = {"w": drawn(70, 90, 1, 1) / 9, "b": drawn(70)}
    nodes = [
        helper.make_node("Conv", ["x", "w", *(["b"] if bias else [])], ["c"]),
        helper.make_node("AveragePool", ["c"], ["p"], kernel_shape=[3, 2], strides=[2, 2]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    check(make_model(nodes, [value("x", 2, 90, 15, 19)], ["y"], constants))


def test_two_products_that_are_one() -> None:
    """Tokens brought to one width, made an image, enlarged and multiplied again."""
    constants = {
        "a": drawn(40, 96) / 6,
        "b": drawn(96),
        "shape": np.array([1, 96, 15, 10]),
        "none": np.zeros(0, "float32"),
        "size": np.array([1, 96, 30, 19]),
        "w": drawn(70, 96 + 64, 1, 1) / 12,
    }
    nodes = [
        helper.make_node("MatMul", ["t", "a"], ["m"]),
        helper.make_node("Add", ["b", "m"], ["s"]),
        helper.make_node("Transpose", ["s"], ["p"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["p", "shape"], ["i"]),
        helper.make_node("Resize", ["i", "none", "none", "size"], ["l"], **MODES["linear"]),
        helper.make_node("Concat", ["l", "x"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "w"], ["y"]),
    ]
    given = [value("t", 1, 150, 40), value("x", 1, 64, 30, 19)]
    model = make_model(nodes, given, ["y"], constants)
    check(model)
    kinds = [group.kind for group in tvm_ext.compile(model).manifest.groups]
    assert sum(kind.count("dense") + kind.count("conv2d") for kind in kinds) == 2
