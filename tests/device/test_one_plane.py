"""A convolution of one plane to one, which is as much depthwise as it is dense."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import make_model, random_inputs, run_plainly, value

import tvm_ext

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("stride", [1, 2])
def test_equals_direct_convolution(stride: int) -> None:
    """Behind it, channels lie innermost."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["z"], pads=[1] * 4, strides=[stride] * 2),
        helper.make_node("Conv", ["z", "w"], ["y"]),
    ]
    weights = {
        "v": rng.standard_normal((1, 1, 3, 3)).astype(np.float32),
        "w": rng.standard_normal((24, 1, 1, 1)).astype(np.float32),
    }
    made = make_model(nodes, [value("x", 1, 1, 17, 13)], ["y"], weights)
    given = random_inputs(made)
    (found,), (wanted,) = tvm_ext.compile(made)(given), run_plainly(made, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
