"""Where the largest elements of windows lie, and their way back there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_cases import check_case
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.errors import ModelError

RANDOM = np.random.default_rng(9)


def found(x: np.ndarray, opset: int = 22, **attributes: Any) -> list[np.ndarray]:
    """The largest elements and their places."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    places = helper.make_tensor_value_info("places", TensorProto.INT64, None)
    best = helper.make_tensor_value_info("y", kind, None)
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], **attributes)
    model = make_model([node], [value("x", *x.shape, dtype=kind)], [best, places], opset=opset)
    return list(tvm_ext.compile(model)(x=x))


@pytest.mark.parametrize(
    "name",
    [
        "maxpool_with_argmax_2d_precomputed_pads",
        "maxpool_with_argmax_2d_precomputed_strides",
        "maxunpool_export_with_output_shape",
        "maxunpool_export_without_output_shape",
    ],
)
def test_cases(name: str) -> None:
    check_case(name, fed=["xI"])


@pytest.mark.parametrize(
    ("extents", "attributes"),
    [
        ((7,), {"kernel_shape": [3], "strides": [2], "pads": [2, 1]}),
        ((5, 8), {"kernel_shape": [2, 3], "dilations": [2, 3], "pads": [1, 2, 0, 3]}),
        ((5, 7), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ((5, 7), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
        ((6, 4), {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER", "storage_order": 1}),
        ((3, 1, 4), {"kernel_shape": [2, 1, 3], "strides": [1, 1, 1], "storage_order": 1}),
    ],
)
@pytest.mark.parametrize("kind", [np.float32, np.int8])
def test_places_hold_what_is_found(
    extents: tuple[int, ...], attributes: dict[str, Any], kind: Any
) -> None:
    x = RANDOM.permutation(2 * 3 * np.prod(extents)).reshape(2, 3, *extents)
    x = (x % 120 - 128).astype(kind)
    best, places = found(x, **attributes)
    alone = helper.make_node("MaxPool", ["x"], ["y"], **attributes)
    numbers = helper.np_dtype_to_tensor_dtype(x.dtype)
    result = helper.make_tensor_value_info("y", numbers, None)
    model = make_model([alone], [value("x", *x.shape, dtype=numbers)], [result], opset=22)
    (wanted,) = tvm_ext.compile(model)(x=x)
    np.testing.assert_array_equal(best, wanted)
    order = [0, 1, *range(2, x.ndim)[:: -1 if attributes.get("storage_order") else 1]]
    np.testing.assert_array_equal(x.transpose(order).reshape(-1)[places], best)
    assert (places // np.prod(extents) == np.arange(6).reshape(2, 3, *[1] * len(extents))).all()


def test_the_first_of_equals_is_found_in_the_image() -> None:
    x = np.full((1, 1, 4, 4), -128, np.int8)
    _, places = found(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0])
    np.testing.assert_array_equal(places[0, 0], [[0, 1], [4, 5]])


@pytest.mark.parametrize("opset", [9, 22])
@pytest.mark.parametrize("extents", [(6, 4), (5, 7)])
def test_what_was_found_goes_back_to_where_it_was(extents: tuple[int, int], opset: int) -> None:
    """Rows that no window holds count, too, where they lie before others."""
    x = RANDOM.standard_normal((2, 3, *extents), np.float32)
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["best", "places"], **windows),
        helper.make_node("Neg", ["best"], ["turned"]),
        helper.make_node("MaxUnpool", ["turned", "places", "shape"], ["y"], **windows),
    ]
    constants = {"shape": np.array(x.shape)}
    model = make_model(nodes, [value("x", *x.shape)], ["y"], constants, opset=opset)
    (y,) = tvm_ext.compile(model)(x=x)
    wanted = np.zeros_like(x)
    for n, c, row, column in np.ndindex(2, 3, extents[0] // 2, extents[1] // 2):
        window = np.s_[n, c, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        part = x[window]
        wanted[window] = np.where(part == part.max(), -part, 0)
    np.testing.assert_array_equal(y, wanted)


def test_places_of_too_large_windows_are_refused() -> None:
    with pytest.raises(ModelError, match="MaxPool whose indices are read"):
        found(np.zeros((1, 1, 20, 20), np.float32), kernel_shape=[12, 12])
