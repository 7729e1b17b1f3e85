"""A summary beside every point, multiplied once: the numbers beside ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import make_model, run_plainly, value

import tvm_ext

pytest.importorskip("onnxruntime")


def test_a_network_with_a_summary_at_every_point() -> None:
    source = np.random.default_rng(0)
    weight = source.standard_normal((70, 61 + 37, 1)).astype(np.float32) / 10
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], axes=[2], keepdims=1),
        helper.make_node("Conv", ["top", "w0"], ["summary"]),
        helper.make_node("Expand", ["summary", "shape"], ["everywhere"]),
        helper.make_node("Concat", ["everywhere", "x"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "w1", "b1"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    constants = {
        "w0": source.standard_normal((37, 61, 1)).astype(np.float32) / 10,
        "shape": np.array([2, 37, 311], np.int64),
        "w1": weight,
        "b1": source.standard_normal(70).astype(np.float32),
    }
    model = make_model(nodes, [value("x", 2, 61, 311)], ["y"], constants)
    x = source.standard_normal((2, 61, 311), dtype=np.float32)
    (want,) = run_plainly(model, {"x": x})
    compiled = tvm_ext.compile(model)
    (got,) = compiled(x=x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    convolutions = [group for group in compiled.manifest.groups if "conv" in group.kind]
    assert len(convolutions) == 3, "two products where there was one"
