"""Convolutions some of whose taps lie in padding wherever they are: they go without those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import make_model, run_plainly, value
from simplify_case import assert_same, simplified

import tvm_ext

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], list[int]]] = {
    "all but the middle": ((14, 14), {"dilations": [24, 24], "pads": [24] * 4}, [1, 1]),
    "along one axis": ((14, 30), {"dilations": [24, 24], "pads": [24] * 4}, [1, 3]),
    "just out of reach": ((12, 12), {"dilations": [12, 12], "pads": [12] * 4}, [1, 1]),
    "just within reach": ((13, 13), {"dilations": [12, 12], "pads": [12] * 4}, [3, 3]),
    "padded behind": ((5, 5), {"dilations": [5, 5], "pads": [0, 0, 10, 10]}, [1, 1]),
    "padded before": ((5, 5), {"dilations": [5, 5], "pads": [10, 10, 0, 0]}, [1, 1]),
    "by strides": ((4, 4), {"strides": [2, 2], "pads": [2] * 4}, [3, 3]),
    "over one element": ((1, 1), {"pads": [1] * 4}, [1, 1]),
    "nothing but padding": ((2, 2), {"strides": [9, 9], "pads": [5, 5, 0, 0]}, [3, 3]),
    "each channel alone": ((6, 6), {"dilations": [9, 9], "pads": [9] * 4, "group": 4}, [1, 1]),
    "a signal": ((7,), {"dilations": [8], "pads": [8, 8]}, [1]),
}


@pytest.mark.parametrize(("extents", "attributes", "left"), CASES.values(), ids=CASES)
def test_dead_taps(extents: tuple[int, ...], attributes: dict[str, Any], left: list[int]) -> None:
    rng = np.random.default_rng(0)
    inputs = 4 // attributes.get("group", 1)
    taps = rng.standard_normal((8, inputs, *[3] * len(extents))).astype("float32")
    bias = rng.standard_normal(8).astype("float32")
    node = helper.make_node("Conv", ["x", "taps", "bias"], ["y"], **attributes)
    model = make_model([node], [value("x", 1, 4, *extents)], ["y"], {"taps": taps, "bias": bias})
    shapes = [tensor.dims[2:] for tensor in simplified(model).graph.initializer if tensor.dims[1:]]
    assert shapes == [left]
    x = rng.standard_normal((1, 4, *extents)).astype("float32")
    assert_same(tvm_ext.compile(model, num_threads=2)(x), run_plainly(model, {"x": x}))
