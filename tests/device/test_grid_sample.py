"""Images sampled at points that data say, by vectors of channels and plane by plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.hardware import resolve

RANDOM = np.random.default_rng(3)


def model_of(x: np.ndarray, grid: np.ndarray, mode: str, beyond: str, corners: int) -> ModelProto:
    options = {"mode": mode, "padding_mode": beyond, "align_corners": corners}
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], **options)
    entries = [value("x", *x.shape), value("grid", *grid.shape)]
    return make_model([node], entries, [value("y", *x.shape[:2], *grid.shape[1:3])], opset=20)


def sampled(x: np.ndarray, grid: np.ndarray, *given: Any) -> np.ndarray:
    made: np.ndarray = tvm_ext.compile(model_of(x, grid, *given))(x=x, grid=grid)[0]
    return made


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize(
    ("shape", "points"), [((2, 19, 5, 7), (3, 4)), ((1, 32, 2, 9), (1, 11)), ((3, 2, 6, 6), (2, 5))]
)
def test_points_in_and_beside_an_image(
    shape: tuple[int, ...], points: tuple[int, int], mode: str, beyond: str, corners: int
) -> None:
    x = RANDOM.standard_normal(shape).astype("float32")
    grid = RANDOM.uniform(-1.6, 1.6, (shape[0], *points, 2)).astype("float32")
    model = model_of(x, grid, mode, beyond, corners)
    compiled = tvm_ext.compile(model)
    made = compiled(x=x, grid=grid)[0]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "grid": grid})
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    written = "written" in {group.source for group in compiled.manifest.groups}
    assert written == (2 * shape[1] >= resolve("cpu").lanes(4))


def test_what_is_not_there_is_nothing_whatever_lies_nearest() -> None:
    """Infinite elements at the edge, points far away and of no number: zeros without NaN."""
    x = np.full((1, 16, 4, 4), np.inf, "float32")
    grid = np.float32([[-9, 0], [1e30, -1e30], [3, 3], [-1.6, 0.2]]).reshape(1, 1, 4, 2)
    assert not sampled(x, grid, "linear", "zeros", 0).any()


def test_edges_and_middles_are_met_exactly() -> None:
    x = np.arange(16 * 9, dtype="float32").reshape(1, 16, 3, 3)
    grid = np.float32([[-1, -1], [1, 1], [0, 0], [1, -1]]).reshape(1, 1, 4, 2)
    made = sampled(x, grid, "linear", "border", 1)
    np.testing.assert_array_equal(made[0, :, 0], x[0][:, [0, 2, 1, 0], [0, 2, 1, 2]])


def test_of_one_row_all_points_lie_in_it() -> None:
    """Between the middles of its first and last row there is nothing to turn back at."""
    x = RANDOM.standard_normal((1, 16, 1, 5)).astype("float32")
    grid = np.float32([[-1, -7], [1, 0.3], [0, 5]]).reshape(1, 1, 3, 2)
    made = sampled(x, grid, "linear", "border", 1)
    folded = sampled(x, grid, "linear", "reflection", 1)
    np.testing.assert_array_equal(folded, made)
    np.testing.assert_array_equal(folded[0, :, 0], x[0, :, 0][:, [0, 4, 2]])
