"""Engines in processes of their own: what the benchmark learns of them, and how they may fail."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny import tiny_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from compare import compare
from engines import installed
from peers import EngineError, Worker, random_inputs


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return path


def test_our_engine_reports_its_roofline_and_saves_what_it_compiled(tiny: Path) -> None:
    inputs = random_inputs(onnx.load(tiny))
    with Worker("tvm_ext", tiny, inputs, 2, save=True) as ours:
        assert ours.facts["roof_us"] > 0
        assert ours.facts["kernels"] >= ours.facts["fallbacks"]
        assert 0 < ours.load_rss_bytes <= ours.peak_rss_bytes
        assert ours.artifact is not None
        with Worker("tvm_ext", ours.artifact, inputs, 2) as loaded:
            assert loaded.peak_rss_bytes < ours.load_rss_bytes
            for mine, theirs in zip(ours.outputs, loaded.outputs, strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_a_model_is_compared_with_its_error_and_the_share_of_its_roofline(tiny: Path) -> None:
    model = compare(tiny, ["tvm_ext", "onnxruntime"], threads=2, rounds=2)
    ours = model.row("tvm_ext")
    assert ours is not None
    assert len(ours.round_s) == 2
    assert ours.error is not None
    assert ours.error < 1e-4
    assert ours.run_rss_bytes
    assert model.roof_share
    assert model.best_peer is not None
    assert model.best_peer.engine == "onnxruntime"


def test_an_engine_that_cannot_load_the_model_is_a_line_and_not_the_end(tmp_path: Path) -> None:
    proto = tiny_model()
    proto.graph.node[-1].domain = "nobody.knows"
    proto.opset_import.append(onnx.helper.make_opsetid("nobody.knows", 1))
    path = tmp_path / "odd.onnx"
    onnx.save(proto, path)
    model = compare(path, ["onnxruntime"], threads=1, rounds=1)
    assert model.rows[0].failure
    assert "nobody.knows" in model.rows[0].failure
    with pytest.raises(EngineError, match=r"nobody\.knows"):
        Worker("onnxruntime", path, random_inputs(proto), 1)


@pytest.mark.skipif(not installed("torch"), reason="torch and onnx2torch are not installed")
def test_torch_computes_what_onnx_runtime_does(tmp_path: Path) -> None:
    """Opset 18 with `allowzero`, which onnx2torch does not read by itself."""
    proto = tiny_model()
    flatten = next(node for node in proto.graph.node if node.op_type == "Flatten")
    shape = onnx.numpy_helper.from_array(np.array([1, -1]), "shape")
    proto.graph.initializer.append(shape)
    flatten.op_type = "Reshape"
    flatten.input.append("shape")
    flatten.attribute.append(onnx.helper.make_attribute("allowzero", 1))
    proto.opset_import[0].version = 18
    path = tmp_path / "reshape.onnx"
    onnx.save(proto, path)
    inputs = random_inputs(proto)
    with Worker("torch", path, inputs, 2) as torch, Worker("onnxruntime", path, inputs, 2) as ort:
        for mine, theirs in zip(torch.outputs, ort.outputs, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
