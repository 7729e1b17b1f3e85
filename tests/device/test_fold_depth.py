"""Volumes convolved as planes beside their neighbours: the same numbers, where it is worth it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx_models import conv_relu, random_inputs, run_plainly

import tvm_ext
from tvm_ext.graph import fold_depth
from tvm_ext.runtime.executor import Compiled

pytest.importorskip("onnxruntime")
BOUND = 1e-5
CASES = {
    # name: (data, output channels, kernel, attributes)
    "cube": ((1, 16, 4, 12, 12), 16, (3, 3, 3), {"pads": [1] * 6}),
    "two volumes": ((2, 8, 3, 9, 10), 16, (3, 3, 3), {"pads": [1] * 6}),
    "one side of the depth": ((1, 8, 5, 8, 8), 8, (3, 3, 3), {"pads": [2, 1, 1, 0, 1, 1]}),
    "deeper than wide": ((1, 4, 9, 7, 5), 8, (5, 3, 3), {"pads": [0, 1, 0, 0, 0, 1]}),
    "odd channels": ((1, 5, 4, 6, 6), 7, (3, 3, 3), {"pads": [1] * 6}),
}


def model(name: str, **more: object) -> onnx.ModelProto:
    data, outputs, kernel, attributes = CASES[name]
    return conv_relu(data, outputs, kernel, **(attributes | more))


def kinds(compiled: Compiled) -> Counter[str]:
    """How many kernels convolve volumes, and how many put planes together."""
    names = [group.kind for group in compiled.manifest.groups]
    return Counter(word for name in names for word in ("conv3d", "planes") if word in name)


@pytest.mark.parametrize("name", CASES)
def test_equals_convolution_of_the_volume(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_depth, "pays", lambda *_: True)
    made = model(name)
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    assert kinds(compiled) == {"planes": 1}
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((1, 3, 3), {"pads": [0, 1, 1, 0, 1, 1], "strides": [1, 2, 2]}),
        ((1, 3, 5), {"pads": [0, 2, 2] * 2, "dilations": [3, 2, 1]}),
        ((3, 1, 1), {"pads": [1, 0, 0] * 2}),
        ((3, 1, 1), {"pads": [2, 0, 0, 1, 0, 0], "strides": [2, 1, 1], "dilations": [1, 2, 2]}),
        ((1, 1, 1), {}),
    ],
)
def test_windows_of_images_are_convolutions_of_images(
    kernel: tuple[int, ...], attributes: dict[str, object]
) -> None:
    made = conv_relu((2, 8, 7, 9, 10), 16, kernel, **attributes)
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    assert kinds(compiled) == {}
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


@pytest.mark.parametrize("more", [{"strides": [1, 2, 2]}, {"dilations": [1, 2, 2]}])
def test_what_winograd_does_not_know_stays(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_depth, "pays", lambda *_: True)
    assert kinds(tvm_ext.compile(model("cube", **more)))["conv3d"] == 1


def test_one_plane_is_an_image() -> None:
    """Taps beyond it are dead."""
    made = conv_relu((1, 8, 1, 6, 6), 8, (3, 3, 3), pads=[1] * 6)
    assert kinds(tvm_ext.compile(made)) == {}


def test_small_volumes_stay_by_the_model() -> None:
    assert kinds(tvm_ext.compile(model("odd channels"))) == {"conv3d": 1}
