"""Running products and determinants."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_cases import check_case
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.frontend.products import LARGEST

RANDOM = np.random.default_rng(2)


@pytest.mark.parametrize(
    "name", ["cumprod_1d_int32_exclusive", "cumprod_1d_reverse_exclusive", "det_2d", "det_nd"]
)
def test_cases(name: str) -> None:
    check_case(name)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((3, 1), 1), ((13, 2), 0), ((2, 31, 3), -2)])
def test_running_products(shape: tuple[int, ...], axis: int, exclusive: int, reverse: int) -> None:
    x = RANDOM.uniform(0.5, 1.5, shape).astype(np.float32)
    x.flat[1] = 0
    node = helper.make_node("CumProd", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    model = make_model([node], [value("x", *shape)], ["y"], {"a": np.array(axis)}, opset=26)
    (y,) = tvm_ext.compile(model)(x=x)
    given = np.flip(x, axis) if reverse else x
    wanted = np.cumprod(given.astype(np.float64), axis)
    if exclusive:
        ones = np.ones_like(np.take(wanted, [0], axis))
        wanted = np.concatenate([ones, np.delete(wanted, -1, axis)], axis)
    np.testing.assert_allclose(y, np.flip(wanted, axis) if reverse else wanted, rtol=1e-5)


def determinant(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """A model's result, and what it is of."""
    x = RANDOM.standard_normal(shape, np.float32)
    model = make_model([helper.make_node("Det", ["x"], ["y"])], [value("x", *shape)], ["y"])
    (y,) = tvm_ext.compile(model)(x=x)
    return y, x


@pytest.mark.parametrize("shape", [(1, 1), (5, 2, 2), (2, 1, 3, 3), (7, 4, 4)])
def test_small_determinants(shape: tuple[int, ...]) -> None:
    y, x = determinant(*shape)
    np.testing.assert_allclose(y, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_large_determinants_are_refused() -> None:
    with pytest.raises(ModelError, match=f"Det of more than {LARGEST} rows"):
        determinant(5, 5)
