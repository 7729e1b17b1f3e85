"""Windows with holes as plain ones over several images: the same numbers, where it is worth it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import conv_relu, random_inputs, run_plainly

import tvm_ext
from tvm_ext.graph import fold_dilation
from tvm_ext.runtime.executor import Compiled

pytest.importorskip("onnxruntime")
BOUND = 1e-5
CASES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "sequences with a rest": ((2, 16, 61), 32, {"pads": [3, 3], "dilations": [3]}),
    # name: (data, output channels, attributes)
    "as large": ((1, 16, 24, 24), 16, {"pads": [2] * 4, "dilations": [2, 2]}),
    "odd": ((2, 8, 13, 17), 16, {"pads": [2] * 4, "dilations": [2, 2]}),
    "padding of no whole step": ((1, 8, 19, 15), 16, {"pads": [1, 4, 3, 0], "dilations": [3, 2]}),
    "no padding": ((1, 8, 21, 20), 16, {"dilations": [4, 4]}),
    "along rows": ((1, 12, 9, 30), 32, {"pads": [1, 3, 1, 3], "dilations": [1, 3]}),
}


STEPS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # name: (data, window, attributes)
    "a sequence": ((2, 16, 60), (3,), {"pads": [4, 4], "dilations": [4]}),
    "a past": ((1, 16, 64), (5,), {"pads": [8, 0], "dilations": [2]}),
    "a long past": ((1, 16, 64), (7,), {"pads": [12, 0], "dilations": [2]}),
    "rows": ((1, 16, 9, 24), (1, 3), {"pads": [0, 3, 0, 3], "dilations": [1, 3]}),
    "columns": ((2, 8, 30, 11), (4, 1), {"dilations": [5, 1]}),
}


def model(name: str, **more: object) -> onnx.ModelProto:
    data, outputs, attributes = CASES[name]
    return conv_relu(data, outputs, (3,) * (len(data) - 2), **(attributes | more))


@pytest.mark.parametrize("name", STEPS)
def test_steps_along_one_axis_are_rows_of_an_image(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_dilation, "pays", lambda *_: True)
    data, window, attributes = STEPS[name]
    made = conv_relu(data, 32, window, **attributes)
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    assert not folds(compiled)
    assert any("conv2d" in group.kind for group in compiled.manifest.groups)
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


def folds(compiled: Compiled) -> bool:
    """Whether a kernel makes images of one."""
    return any("images" in group.kind for group in compiled.manifest.groups)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_window_with_holes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_dilation, "pays", lambda *_: True)
    made = model(name)
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    assert folds(compiled)
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


def test_strides_and_plain_windows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_dilation, "pays", lambda *_: True)
    for more in ({"strides": [2, 2]}, {"dilations": [1, 1]}):
        assert not folds(tvm_ext.compile(model("as large", **more)))


def test_few_channels_stay_by_the_model() -> None:
    assert not folds(tvm_ext.compile(model("along rows")))
