"""Convolution by a product with all taps and the sum of its shifted results."""

from __future__ import annotations

import numpy as np
import pytest
from few_channels import few_channels
from onnx_models import random_inputs, run_plainly

import tvm_ext
from tvm_ext.compute import taps
from tvm_ext.costs import predicted_us
from tvm_ext.graph import legalise_conv
from tvm_ext.hardware import get
from tvm_ext.tvm_api import Target

pytest.importorskip("onnxruntime")
BOUND = 5e-6
CASES = {
    # name: (data, output channels, kernel, attributes)
    "an image": ((1, 16, 12, 20), 3, (3, 3), {"pads": [1] * 4}),
    "one channel": ((1, 8, 9, 7), 1, (3, 3), {"pads": [1] * 4}),
    "odd channels": ((2, 5, 7, 11), 2, (5, 3), {"pads": [2, 1, 0, 3]}),
    "no padding": ((1, 16, 11, 13), 3, (3, 3), {}),
    "dilated": ((1, 8, 13, 13), 3, (3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "one row": ((1, 12, 40), 2, (9,), {"pads": [4, 4]}),
    "volumes": ((1, 8, 4, 6, 5), 3, (3, 3, 3), {"pads": [1] * 6}),
    "few pixels": ((1, 4, 2, 2), 3, (3, 3), {"pads": [1] * 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_direct_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(geometry: legalise_conv.ConvGeometry, *_: object) -> int:
        return legalise_conv.TAPS if taps.applies(geometry, 8) else legalise_conv.DIRECT

    monkeypatch.setattr(legalise_conv, "choose_algorithm", choose)
    made = few_channels(CASES[name])
    given = random_inputs(made)
    compiled = tvm_ext.compile(made)
    assert any("taps" in group.kind for group in compiled.manifest.groups)
    (found,), (wanted,) = compiled(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("inputs", "outputs", "side", "chosen"),
    [
        (60, 3, 128, legalise_conv.TAPS),
        (60, 1, 128, legalise_conv.TAPS),
        (64, 3, 128, legalise_conv.DOTS),
        (64, 1, 128, legalise_conv.DOTS),
        (64, 64, 56, 4),
    ],
)
def test_the_model_takes_it_for_few_channels(
    inputs: int, outputs: int, side: int, chosen: int
) -> None:
    """Dot products need whole vectors to read. Of images that no cache holds the columns would wait
    for memory, at 42 GB/s for 8 cores."""
    hw = get("cpu/x86-avx2")
    ones = (1, 1)
    geometry = legalise_conv.ConvGeometry((3, 3), ones, ones, ones, ones, 1, inputs, outputs)
    with Target(hw.target):
        found = legalise_conv.choose_algorithm(
            geometry, (1, side, side, inputs), 8, (4, 2), lambda func: predicted_us(func, hw), 1e9
        )
    assert found == chosen
