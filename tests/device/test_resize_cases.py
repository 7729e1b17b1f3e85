"""Resizing in all of its modes, of any axes, against onnx's own cases and definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import check_case
from onnx_models import make_model, value

import tvm_ext

CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
CORNERS = {"coordinate_transformation_mode": "align_corners"}
CASES = (
    "downsample_scales_cubic",
    "downsample_scales_cubic_A_n0p5_exclude_outside",
    "downsample_scales_cubic_antialias",
    "downsample_scales_linear",
    "downsample_scales_linear_antialias",
    "downsample_scales_linear_half_pixel_symmetric",
    "downsample_sizes_cubic_antialias",
    "downsample_sizes_linear_antialias",
    "downsample_sizes_nearest_not_larger",
    "downsample_sizes_nearest_not_smaller",
    "tf_crop_and_resize",
    "tf_crop_and_resize_axes_2_3",
    "tf_crop_and_resize_axes_3_2",
    "tf_crop_and_resize_extrapolation_value",
    "upsample_scales_linear_half_pixel_symmetric",
    "upsample_scales_nearest_axes_2_3",
    "upsample_scales_nearest_axes_3_2",
    "upsample_sizes_nearest_axes_3_2",
    "upsample_sizes_nearest_not_larger",
    "upsample_sizes_nearest_not_smaller",
)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    check_case(f"resize_{name}", atol=1e-5)


def resized(
    shape: tuple[int, ...], dtype: int = TensorProto.FLOAT, opset: int = 19, **asked: Any
) -> onnx.ModelProto:
    """`asked` are operands, `roi`, `scales` or `sizes`, and attributes."""
    kinds = {"roi": np.float32, "scales": np.float32, "sizes": np.int64}
    operands = {n: np.array(asked.pop(n), kind) for n, kind in kinds.items() if n in asked}
    names = ["x", *(name if name in operands else "" for name in kinds)]
    node = helper.make_node("Resize", names, ["y"], **asked)
    result = helper.make_tensor_value_info("y", dtype, None)
    return make_model([node], [value("x", *shape, dtype=dtype)], [result], operands, opset)


MODELS = {
    "a row": resized((7,), scales=[0.6], mode="linear"),
    "a matrix": resized((5, 7), sizes=[8, 3], mode="cubic"),
    "a matrix, nearest": resized((5, 7), sizes=[8, 3]),
    "signals": resized((2, 3, 11), scales=[1, 1, 0.6], mode="cubic"),
    "to one, by corners": resized((2, 3, 5, 7), sizes=[2, 3, 1, 1], mode="linear", **CORNERS),
    "a part of an element": resized((1, 3, 7, 13), scales=[1, 1, 0.6, 1.3], mode="linear"),
    "volumes": resized((1, 3, 5, 7, 6), scales=[1, 1, 0.7, 0.5, 1.4], mode="linear", antialias=1),
    "images and channels": resized((2, 3, 4, 5), sizes=[3, 5, 4, 7], mode="linear"),
    "channels, nearest": resized((1, 3, 4, 5), sizes=[1, 6, 4, 5]),
    "channels": resized((2, 7, 3, 5), scales=[1, 0.5, 1, 1], mode="cubic", antialias=1),
    "of ones": resized((1, 1, 1, 1), scales=[1, 1, 3.5, 2.2], mode="cubic"),
    "enlarged, against aliasing": resized(
        (1, 2, 4, 5), sizes=[1, 2, 8, 9], mode="cubic", antialias=1
    ),
    "few of many": resized((1, 1, 3, 257), sizes=[1, 1, 3, 100], mode="linear", antialias=1),
    "few of many rows": resized((1, 2, 130, 3), scales=[1, 1, 0.77, 1], mode="linear"),
    "outside left out": resized(
        (1, 2, 9, 11), sizes=[1, 2, 5, 4], mode="cubic", antialias=1, exclude_outside=1
    ),
    "sizes of axes": resized((1, 2, 7, 9), sizes=[11, 5], axes=[3, 2], mode="linear"),
    "one scale": resized(
        (1, 2, 7, 9),
        sizes=[11, 5],
        axes=[2, 3],
        mode="cubic",
        keep_aspect_ratio_policy="not_larger",
    ),
    "a part": resized(
        (1, 2, 7, 9), roi=[0.2, -0.3, 0.9, 1.2], sizes=[5, 1], axes=[2, 3], mode="cubic", **CROP
    ),
    "a part, nearest": resized(
        (1, 2, 7, 9), roi=[0.45, -0.3, 1.25, 0.85], sizes=[5, 6], axes=[2, 3], **CROP
    ),
    "doubles": resized((1, 2, 5, 7), TensorProto.DOUBLE, scales=[1, 1, 0.6, 0.6], mode="cubic"),
    "half floats": resized(
        (1, 2, 5, 7), TensorProto.FLOAT16, scales=[1, 1, 0.6, 1.7], mode="linear"
    ),
    "as it is": resized((1, 2, 5, 7), sizes=[1, 2, 5, 7], mode="cubic"),
}


def check(model: onnx.ModelProto, reference: onnx.ModelProto) -> None:
    kind = model.graph.input[0].type.tensor_type
    shape = [one.dim_value for one in kind.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape)
    x = x.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    (expected,) = ReferenceEvaluator(reference).run(None, {"x": x})
    (found,) = tvm_ext.compile(model)(x)
    assert (found.shape, found.dtype) == (expected.shape, x.dtype)
    close = 2e-3 if x.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", MODELS)
def test_definition(name: str) -> None:
    check(MODELS[name], MODELS[name])


def test_corners_are_aligned_by_whole_extents() -> None:
    """As PyTorch and ONNX Runtime do: 0.6 of 7 columns are the first, third, fifth and last."""
    (found,) = tvm_ext.compile(
        resized((1, 2, 5, 7), scales=[1, 1, 1, 0.6], mode="linear", **CORNERS)
    )(x := np.random.default_rng(0).random((1, 2, 5, 7), np.float32))
    np.testing.assert_allclose(found, x[..., ::2], rtol=1e-6)


PLACES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
SCALES = ((1, 1, 2, 3), (1, 1, 1.5, 1.25), (2, 1, 1, 1.75))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize(("op_type", "opset"), [("Upsample", 8), ("Upsample", 9), ("Resize", 10)])
def test_old(op_type: str, opset: int, scales: tuple[float, ...], mode: str) -> None:
    """Elements lie from the first one on, whether onnx converts the model or not."""
    meant = resized((1, 3, 5, 7), scales=scales, mode=mode, **PLACES)
    constants = {} if opset < 9 else {"s": np.array(scales, np.float32)}
    given = {"scales": list(map(float, scales))} if opset < 9 else {}
    node = helper.make_node(op_type, ["x", *constants], ["y"], mode=mode, **given)
    check(make_model([node], [value("x", 1, 3, 5, 7)], ["y"], constants, opset), meant)


def test_old_by_scales_that_are_worked_out() -> None:
    """Behind one another, in a model that is converted for the sake of another operator."""
    nodes = [
        helper.make_node("Shape", ["x"], ["extents"]),
        helper.make_node("Cast", ["extents"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "twice"], ["wanted"]),
        helper.make_node("Div", ["wanted", "floats"], ["s"]),
        helper.make_node("Upsample", ["x", "s"], ["a"], mode="linear"),
        helper.make_node("Upsample", ["a", "s"], ["b"], mode="linear"),
    ]
    cut = helper.make_node("Slice", ["b"], ["y"], starts=[1], ends=[9], axes=[3])
    whole = helper.make_node("Relu", ["b"], ["y"])
    x = np.random.default_rng(0).random((1, 2, 3, 4), np.float32)
    constants = {"twice": np.array([1, 1, 2, 2], np.float32)}
    results = [
        tvm_ext.compile(make_model([*nodes, last], [value("x", *x.shape)], ["y"], constants, 9))(x)[
            0
        ]
        for last in (cut, whole)
    ]
    np.testing.assert_allclose(results[0], results[1][..., 1:9], rtol=1e-6)
    expected = x
    for _ in range(2):
        meant = resized(expected.shape, scales=[1, 1, 2, 2], mode="linear", **PLACES)
        (expected,) = ReferenceEvaluator(meant).run(None, {"x": expected})
    np.testing.assert_allclose(results[1], expected, rtol=1e-5)


def test_in_branches() -> None:
    branches = {}
    for name, scale in (("then_branch", 0.6), ("else_branch", 0.65)):
        inner = resized((1, 3, 7, 7), scales=[1, 1, scale, scale], mode="linear").graph
        del inner.input[:]
        branches[name] = inner
    node = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = [value("x", 1, 3, 7, 7), value("c", dtype=TensorProto.BOOL)]
    model = make_model([node], inputs, ["y"], opset=19)
    compiled = tvm_ext.compile(model)
    x = np.random.default_rng(0).standard_normal((1, 3, 7, 7), np.float32)
    for choice in (True, False):
        given = {"x": x, "c": np.array(choice)}
        (expected,) = ReferenceEvaluator(model).run(None, given)
        np.testing.assert_allclose(compiled(**given)[0], expected, rtol=1e-5, atol=1e-6)
