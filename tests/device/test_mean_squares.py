"""The normalisation over neighbouring channels is one kernel, and what ONNX says it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, value

import tvm_ext


@pytest.mark.parametrize("size", [1, 3, 5, 8])
@pytest.mark.parametrize("shape", [(2, 7), (2, 7, 9), (2, 1, 5, 6), (2, 48, 5, 6), (1, 6, 2, 3, 4)])
def test_neighbouring_channels(shape: tuple[int, ...], size: int) -> None:
    channels = shape[1]
    given = {"alpha": 0.3, "beta": 0.75, "bias": 1.5, "size": size}
    node = helper.make_node("LRN", ["x"], ["y"], **given)
    model = make_model([node], [value("x", *shape)], [value("y", *shape)])
    onnx.checker.check_model(model)
    compiled = tvm_ext.compile(model)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    squares = np.zeros(shape)
    before = (size - 1) // 2
    for channel in range(channels):
        window = slice(max(0, channel - before), channel - before + size)
        squares[:, channel] = (x.astype(np.float64)[:, window] ** 2).sum(axis=1)
    wanted = x / (1.5 + 0.3 / size * squares) ** 0.75
    (y,) = compiled(x)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    sums = [group.name for group in compiled.manifest.groups if "square" in group.name]
    assert len(sums) == (size > 1)
