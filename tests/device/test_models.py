"""Whole networks against ONNX Runtime, with random weights: the light ones that compile quickly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_ext
from tvm_ext.frontend.randomise import randomise

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_model(name: str) -> None:
    """Fire modules with concatenation; grouped convolutions with channel shuffles."""
    model = randomise(onnx.load(str(LIGHT / f"light_{name}.onnx")))
    compiled = tvm_ext.compile(model)
    (info,) = compiled.inputs
    x = np.random.default_rng(0).standard_normal(info.shape, dtype="float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for y, expected in zip(compiled(x), session.run(None, {info.name: x}), strict=True):
        assert np.abs(y - expected).max() <= 1e-4 * np.abs(expected).max()
    assert {group.source for group in compiled.manifest.groups} == {"picker"}
