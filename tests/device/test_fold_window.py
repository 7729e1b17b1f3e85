"""Strided and long windows as short plain ones over blocks of points: the same numbers, where it is
worth it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import conv_relu, random_inputs, run_plainly

import tvm_ext
from tvm_ext.graph import fold_window
from tvm_ext.runtime.executor import Compiled

pytest.importorskip("onnxruntime")
BOUND = 1e-5
CASES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = {
    # name: (data, output channels, window, attributes)
    "first layer": ((1, 3, 45, 38), 32, (7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "first layer by four": ((2, 3, 51, 51), 16, (11, 11), {"strides": [4, 4]}),
    "halved": ((1, 32, 17, 24), 48, (3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "uneven padding": ((2, 16, 19, 16), 16, (5, 5), {"pads": [0, 2, 1, 3], "strides": [2, 2]}),
    "rest of no window": ((1, 16, 20, 20), 16, (4, 4), {"strides": [3, 3]}),
    "rows alone": ((1, 16, 21, 12), 16, (4, 1), {"strides": [2, 1]}),
    "strides of two sizes": ((1, 8, 21, 23), 16, (6, 9), {"strides": [2, 3], "pads": [2] * 4}),
    "a sequence": ((1, 16, 70), 32, (4,), {"pads": [1, 1], "strides": [2]}),
    "long": ((2, 16, 18, 21), 16, (7, 7), {"pads": [3] * 4}),
    "long rows": ((1, 16, 17, 17), 32, (1, 7), {"pads": [0, 3, 0, 3]}),
    "long columns of planes": ((1, 3, 31, 30), 16, (9, 1), {"pads": [4, 0, 4, 0]}),
    "long and strided": ((1, 8, 60, 33), 16, (12, 12), {"pads": [5, 6] * 2, "strides": [2, 2]}),
    "a long sequence": ((1, 16, 90), 32, (11,), {"pads": [5, 5]}),
    "sequences of one channel": ((2, 1, 81), 32, (10,), {"strides": [5]}),
}


def model(name: str) -> onnx.ModelProto:
    data, outputs, window, attributes = CASES[name]
    return conv_relu(data, outputs, window, **attributes)


def folds(compiled: Compiled) -> bool:
    """Whether a kernel makes blocks of points."""
    return any("blocks" in group.kind for group in compiled.manifest.groups)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_whole_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_window, "pays", lambda *_: True)
    made = model(name)
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    assert folds(compiled)
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


def test_plain_windows_and_those_with_holes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_window, "pays", lambda *_: True)
    for more in ({}, {"strides": [2, 2], "dilations": [2, 2]}):
        made = conv_relu((1, 16, 17, 17), 32, (3, 3), **more)
        assert not folds(tvm_ext.compile(made))


@pytest.mark.parametrize(
    ("data", "outputs", "window", "pays"),
    [((1, 3, 224, 224), 64, (7, 7), True), ((1, 256, 14, 14), 256, (3, 3), False)],
)
def test_it_is_done_where_the_model_says_so(
    data: tuple[int, ...], outputs: int, window: tuple[int, ...], pays: bool
) -> None:
    """Seven rows of results by tiles of five would be ten."""
    pads = [window[0] // 2] * 4
    made = conv_relu(data, outputs, window, pads=pads, strides=[2, 2])
    assert folds(tvm_ext.compile(made, "cpu/x86-avx512")) == pays
