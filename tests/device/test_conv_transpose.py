"""Transposed convolutions beside ONNX Runtime: strides, kernels, padding, one to three axes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.compute.conv_transpose import TransposedGeometry
from tvm_ext.costs import predicted_us
from tvm_ext.graph import legalise_conv_transpose, split_phases
from tvm_ext.hardware import get
from tvm_ext.tvm_api import Target

BOUND = 1e-5


def transposed(channels, out, sizes, kernel, strides, pads, extra, groups=1, holes=1):
    """relu(ConvTranspose(x, w, b)) as a model."""
    source = np.random.default_rng(0)
    weight = source.standard_normal((channels, out // groups, *kernel), dtype="float32")
    bias = source.standard_normal(out, dtype="float32")
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w", "b"],
        ["y"],
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        output_padding=extra,
        group=groups,
        dilations=[holes] * len(kernel),
    )
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["y"], ["z"])],
        "transposed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, channels, *sizes])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


CASES = {
    "kernel is twice the stride": (8, 16, (5, 7), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0)),
    "kernel is the stride": (8, 16, (5, 7), (2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
    "odd everything": (7, 5, (5, 7), (3, 3), (2, 2), (1, 1, 1, 1), (0, 0)),
    "output padding": (7, 5, (5, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "one-sided padding": (5, 9, (5, 7), (5, 4), (2, 3), (2, 0, 1, 3), (0, 0)),
    "much padding": (8, 16, (6, 6), (3, 3), (2, 2), (2, 2, 2, 2), (0, 0)),
    "stride 1": (8, 16, (5, 7), (3, 3), (1, 1), (1, 1, 1, 1), (0, 0)),
    "a stride of its own for each axis": (8, 16, (5, 7), (3, 2), (1, 3), (2, 1, 2, 1), (0, 0)),
    "gaps between kernels": (8, 16, (6, 6), (2, 2), (3, 3), (0, 0, 0, 0), (0, 0)),
    "a single tap": (8, 16, (5, 7), (1, 1), (2, 2), (0, 0, 0, 0), (0, 0)),
    "one pixel": (20, 16, (1, 1), (4, 4), (1, 1), (0, 0, 0, 0), (0, 0)),
    "one axis, stride 8": (4, 6, (9,), (16,), (8,), (4, 4), (0,)),
    "one axis, stride 8, many channels": (32, 16, (64,), (8,), (8,), (0, 0), (0,)),
    "one axis, stride 3": (4, 8, (9,), (5,), (3,), (1, 1), (1,)),
    "three axes": (3, 4, (3, 4, 5), (3, 3, 3), (2, 2, 2), (1,) * 6, (1, 1, 1)),
    "depthwise": (6, 6, (5, 6), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 6),
    "depthwise, stride 3": (16, 16, (5, 6), (6, 6), (3, 3), (1, 1, 2, 2), (0, 0), 16),
    "groups": (8, 12, (6, 6), (3, 3), (2, 2), (1, 1, 1, 1), (0, 0), 4),
    "groups of whole vectors": (8, 64, (6, 6), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 2),
    "groups, output padding": (6, 9, (5, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 3),
    "groups, one axis": (6, 9, (11,), (7,), (3,), (1, 2), (0,), 3),
    "groups, stride 1": (8, 12, (6, 6), (3, 3), (1, 1), (1, 1, 1, 1), (0, 0), 4),
    "two outputs for each channel": (6, 12, (5, 6), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 6),
    "depthwise, stride 1": (16, 16, (5, 6), (3, 3), (1, 1), (1, 1, 1, 1), (0, 0), 16),
    "holes": (8, 16, (5, 7), (3, 3), (2, 2), (1, 1, 1, 1), (0, 0), 1, 2),
    "holes, stride 1": (8, 16, (9, 7), (3, 2), (1, 1), (2, 1, 0, 1), (0, 0), 1, 3),
    "holes in groups": (8, 12, (5, 7), (3, 3), (3, 2), (1, 1, 2, 1), (1, 0), 2, 2),
    "stride 1, cut beyond its padding": (8, 16, (9, 7), (3, 3), (1, 1), (3, 1, 1, 4), (0, 0)),
}


FEW_CHANNELS = {
    **{name: case for name, case in CASES.items() if case[1] <= 4 and len(case) == 7},
    "to an image": (16, 3, (6, 7), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0)),
    "to one channel, cropped": (16, 1, (9, 6), (3, 3), (2, 2), (1, 1, 1, 1), (0, 0)),
    "a tap for each output": (16, 3, (6, 7), (2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
    "stride 3, cropped on both sides": (8, 2, (5, 7), (5, 4), (3, 3), (2, 1, 1, 2), (1, 0)),
}


@pytest.mark.parametrize(
    ("case", "by_taps"),
    [
        *(pytest.param(case, False, id=name) for name, case in {**CASES, **FEW_CHANNELS}.items()),
        *(pytest.param(case, True, id=f"{name}, taps") for name, case in FEW_CHANNELS.items()),
    ],
)
def test_as_onnxruntime_and_by_plans_of_the_picker(
    case, by_taps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legalise_conv_transpose, "takes_taps", lambda *_: by_taps)
    model = transposed(*case)
    x = np.random.default_rng(1).standard_normal((2, case[0], *case[2]), dtype="float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    compiled = tvm_ext.compile(model)
    (y,) = compiled(x)
    assert np.abs(y - expected).max() <= BOUND * np.abs(expected).max()
    kernels = [g for g in compiled.manifest.groups if "transpose_" in g.kind]
    assert {(g.source, g.fallback) for g in kernels} == {("picker", ())}
    assert any("taps" in group.kind for group in kernels) == by_taps


APART = {
    "odd kernel": (16, 16, (6, 9), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "odd on one axis": (5, 32, (6, 7), (3, 2), (2, 2), (1, 0, 1, 0), (1, 0)),
    "phases together": (16, 16, (9,), (16,), (8,), (4, 4), (0,)),
    "three axes": (4, 16, (3, 4, 5), (3, 3, 3), (2, 2, 2), (1,) * 6, (1, 1, 1)),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in APART.items()])
def test_phases_apart_as_onnxruntime(case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bias and activation are part of each kernel, which writes where the output has its phase."""
    monkeypatch.setattr(split_phases, "pays", lambda *_: True)
    model = transposed(*case)
    x = np.random.default_rng(1).standard_normal((2, case[0], *case[2]), dtype="float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    compiled = tvm_ext.compile(model)
    (y,) = compiled(x)
    assert np.abs(y - expected).max() <= BOUND * np.abs(expected).max()
    kernels = [g for g in compiled.manifest.groups if g.multiply_flops]
    assert len(kernels) > 1
    assert all("relu" in group.kind and "sliced" in group.kind for group in kernels)
    assert {group.source for group in kernels} == {"picker"}


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [(1, True), (3, True), (64, False)],
)
def test_the_model_takes_all_taps_at_once_for_few_channels(outputs: int, chosen: bool) -> None:
    hw = get("cpu/x86-avx2")
    geometry = TransposedGeometry((4, 4), (2, 2), (1, 1), (128, 128), 64, outputs)
    with Target(hw.target):
        found = legalise_conv_transpose.takes_taps(
            geometry, (1, 64, 64, 64), 8, lambda func: predicted_us(func, hw)
        )
    assert found == chosen


def test_no_zeros_are_multiplied() -> None:
    """Twice the extents, half the taps of each axis: the products of a quarter of the kernel."""
    model = transposed(16, 16, (8, 8), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0))
    (group,) = [g for g in tvm_ext.compile(model).manifest.groups if "transpose_" in g.kind]
    assert group.multiply_flops == 2 * (2 * 16 * 16 * 16) * 16 * 4
