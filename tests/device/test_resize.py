"""Planes enlarged linearly, each row of a plane once, beside ONNX's own definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, value

import tvm_ext

MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, int]]] = {
    "by whole factors": ((1, 5, 7, 9), (28, 36)),
    "by others": ((2, 3, 5, 4), (13, 37)),
    "one row": ((1, 2, 1, 6), (17, 24)),
    "one element": ((1, 1, 1, 1), (3, 5)),
    "along one axis": ((1, 3, 6, 20), (18, 20)),
    "as it is": ((1, 2, 4, 16), (4, 16)),
    "one large plane": ((1, 1, 31, 29), (120, 116)),
}


def resized(shape: tuple[int, ...], sizes: tuple[int, int], **more: Any) -> onnx.ModelProto:
    target = np.array([*shape[:2], *sizes], np.int64)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", **more)
    return make_model([node], [value("x", *shape)], ["y"], {"sizes": target})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "sizes"), SHAPES.values(), ids=SHAPES)
def test_enlarged(shape: tuple[int, ...], sizes: tuple[int, int], mode: str) -> None:
    model = resized(shape, sizes, coordinate_transformation_mode=mode)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    compiled = tvm_ext.compile(model, num_threads=2)
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4, atol=1e-4)


def kernels(model: onnx.ModelProto) -> set[str]:
    return {
        group.kind.split("_")[0]
        for group in tvm_ext.compile(model, num_threads=2).manifest.groups
        if group.source == "written"
    }


def test_behind_a_convolution() -> None:
    """Which stays channels last."""
    nodes = [
        helper.make_node("Conv", ["x", "taps"], ["c"], pads=[1] * 4),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["y"], mode="linear"),
    ]
    taps = np.random.default_rng(1).standard_normal((21, 16, 3, 3)).astype("float32")
    constants = {"taps": taps, "sizes": np.array([1, 21, 24, 24], np.int64)}
    model = make_model(nodes, [value("x", 1, 16, 8, 8)], ["y"], constants)
    compiled = tvm_ext.compile(model, num_threads=2)
    assert not compiled.manifest.notes
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4, atol=1e-4)


def test_which_are() -> None:
    """Those that make planes larger, but not what a convolution of many channels reads."""
    assert kernels(resized((1, 24, 7, 7), (28, 28))) == {"resize"}
    assert not kernels(resized((1, 24, 28, 28), (7, 7)))
    weights = {"taps": np.ones((8, 24, 3, 3), np.float32)}
    model = resized((1, 24, 7, 7), (28, 28))
    nodes = [*model.graph.node, helper.make_node("Conv", ["y", "taps"], ["z"])]
    weights["sizes"] = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert not kernels(make_model(nodes, [value("x", 1, 24, 7, 7)], ["z"], weights))
