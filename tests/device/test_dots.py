"""Convolution to few channels by dot products along the channels that are read."""

from __future__ import annotations

import numpy as np
import pytest
from few_channels import few_channels
from onnx_models import random_inputs, run_plainly

import tvm_ext
from tvm_ext.compute import dots
from tvm_ext.graph import legalise_conv
from tvm_ext.hardware import get

pytest.importorskip("onnxruntime")
BOUND = 5e-6
CASES = {
    # name: (data, output channels, kernel, attributes)
    "an image": ((1, 32, 12, 20), 3, (3, 3), {"pads": [1] * 4}),
    "one channel": ((1, 16, 9, 7), 1, (3, 3), {"pads": [1] * 4}),
    "uneven": ((2, 48, 7, 11), 2, (5, 3), {"pads": [2, 1, 0, 3]}),
    "no padding, stride": ((1, 64, 11, 13), 3, (3, 3), {"strides": [2, 3]}),
    "dilated": ((1, 16, 13, 13), 4, (3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "one row": ((1, 32, 40), 2, (9,), {"pads": [4, 4]}),
    "volumes": ((1, 16, 4, 6, 5), 3, (3, 3, 3), {"pads": [1] * 6}),
    "one pixel": ((1, 128, 1, 1), 3, (1, 1), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_direct_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(geometry: legalise_conv.ConvGeometry, _: object, lanes: int, *others: object) -> int:
        taken = dots.applies(geometry, lanes)
        return legalise_conv.DOTS if taken else legalise_conv.DIRECT

    monkeypatch.setattr(legalise_conv, "choose_algorithm", choose)
    made = few_channels(CASES[name])
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    kinds = [group.kind for group in compiled.manifest.groups]
    assert sum("dots" in kind for kind in kinds) == sum("total" in kind for kind in kinds) == 1
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "taken"),
    [(32, 3, 9, True), (24, 3, 9, False), (32, 16, 3, False), (32, 2, 1, False), (128, 2, 1, True)],
)
def test_where_it_applies(inputs: int, outputs: int, kernel: int, taken: bool) -> None:
    """Whole vectors read, at most half of one written, and enough of them for each sum."""
    ones, zeros = (1, 1), (0, 0)
    geometry = legalise_conv.ConvGeometry(
        (kernel, kernel), ones, zeros, zeros, ones, 1, inputs, outputs
    )
    assert dots.applies(geometry, get("cpu/x86-avx512").lanes(4)) is taken
