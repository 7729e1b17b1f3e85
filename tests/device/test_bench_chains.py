"""The chains of the benchmarks compute what ONNX Runtime computes, with each fusion and none."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx_models import random_inputs, run_plainly

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from chains import CHAINS, attention, chain
from engines import FORMS
from fusion import counted, our_fused, recurrent, tvm_fused

import tvm_ext
from tvm_ext.frontend.from_onnx import import_onnx
from tvm_ext.passes import tasks_of
from tvm_ext.tvm_api import tvm

pytest.importorskip("onnxruntime")
MODELS = {name: chain(name, 48, 96) for name in CHAINS} | {"attention": attention(20)}
FUSIONS = (), *FORMS.values()
FOUND = {"softmax"}
"""Read as one operator, which no pass has to put together (`frontend/restate.py`)."""


@pytest.mark.parametrize("name", MODELS)
def test_chains_without_each_fusion(name: str) -> None:
    inputs = random_inputs(MODELS[name])
    (expected,) = run_plainly(MODELS[name], inputs)
    kernels = []
    for passes in FUSIONS:
        with tvm.transform.PassContext(disabled_pass=list(passes)):
            compiled = tvm_ext.compile(MODELS[name])
        kernels.append(sum(group.calls for group in compiled.manifest.groups))
        (y,) = compiled(inputs)
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert kernels == sorted(kernels)
    assert kernels[0] == 1
    assert (kernels[-1] == 1) == (name in FOUND)


def test_kernels_are_counted() -> None:
    model = MODELS["whole"]
    ours, seconds = our_fused(import_onnx(model).mod)
    mine, theirs = counted(tasks_of(ours)), counted(tasks_of(tvm_fused(import_onnx(model).mod)))
    assert mine["kernels"] == mine["others"] == 1
    assert theirs["kernels"] > 3
    assert mine["mb"] < theirs["mb"]
    assert seconds > 0


def test_a_recurrent_network_of_a_given_size() -> None:
    model = recurrent(60)
    assert 60 <= len(model.graph.node) < 75
    mine = counted(tasks_of(our_fused(import_onnx(model).mod)[0]))
    assert mine["others"] <= mine["kernels"] < 30
