"""Whole models on a CUDA device, or an emulator of one, against ONNX Runtime, numpy and the CPU."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import tvm
from funcs import matmul_func
from kernel_cases import CASES, Case, module, names
from random_graph import RandomGraph, assert_computed
from tiny import X, assert_close, reference, saved

import tvm_ext
from tvm_ext.check import check_model, distance
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.profile import random_inputs
from tvm_ext.tvm_api import relax

pytestmark = pytest.mark.skipif(not tvm.cuda(0).exist, reason="no CUDA device on this machine")

BOUND = 1e-5
UNFIT = {
    "cumprod": "TVM's threads of a warp rely on going in step",
    "add_float16": "the emulator has no halves",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def compiled(model: Path) -> Compiled:
    return tvm_ext.compile(str(model), "cuda")


def test_a_model_is_right(model: Path, compiled: Compiled) -> None:
    """Every kernel by itself, and the whole."""
    assert compiled.manifest.device == "cuda"
    assert all(group.verified for group in compiled.manifest.groups)
    assert {group.source for group in compiled.manifest.groups} == {"picker"}
    assert_close(compiled(X), reference(model))
    assert check_model(compiled, str(model)) is not None


def test_an_artifact_runs(model: Path, compiled: Compiled, tmp_path: Path) -> None:
    """Its weights lie behind the library, and go to the device from there."""
    loaded = tvm_ext.load(compiled.save(tmp_path / "tiny.so"))
    assert_close(loaded(X), reference(model))
    assert_close(loaded(X), reference(model))
    assert len(loaded.seconds(X, repeats=2)) == 2


def test_a_search_finds_kernels_that_are_right(model: Path, tmp_path: Path) -> None:
    tuned = tvm_ext.tune(str(model), "cuda", trials=8, log=tmp_path)
    assert {group.source for group in tuned.manifest.groups} == {"log"}
    assert not [note for note in tuned.manifest.notes if "failed" in note]
    assert_close(tuned(X), reference(model))
    replayed = tvm_ext.replay(str(model), tmp_path, "cuda", strict=True)
    assert replayed.manifest.code_hash == tuned.manifest.code_hash


def test_a_function_is_tuned(tmp_path: Path) -> None:
    tuned = tvm_ext.tune_tir(matmul_func(24, 40, 16), "cuda", trials=4, log=tmp_path)
    assert tuned.plan is not None
    assert tuned.plan.rule == "block"
    assert isfinite(tuned.latency_us)


def test_kernels_are_timed(compiled: Compiled) -> None:
    timed = compiled.profile(runs=1)
    assert set(timed.measured_us) == {group.name for group in compiled.manifest.groups}


def product(emit: Any, a: Any, b: Any) -> Any:
    return emit(relax.op.matmul(a, b))


MORE = {
    **{name: CASES[name] for name in ("adaptive_pool", "argsort", "cumsum")},
    **{name: CASES[name] for name in ("scatter_elements", "scatter_nd")},
    "product_of_several_batch_axes": Case(
        "products", product, (((2, 3, 16, 48), "float32"), ((2, 3, 48, 64), "float32"))
    ),
}
"""What was wrong or refused once. Of a product whose batch axes are one to us, threads copied
vectors down the columns, as if they lay side by side."""
CHECKED = MORE | {name: CASES[name] for name in names()[::14] if name not in UNFIT}


@pytest.mark.parametrize("name", CHECKED)
def test_operators_are_right(name: str) -> None:
    """As the CPU's code has them; every fourteenth, for time."""
    mod = module(CHECKED[name])
    ours, others = tvm_ext.compile(mod, "cuda"), tvm_ext.compile(mod, "cpu", verify=False)
    inputs = random_inputs(others.inputs)
    for one, other in zip(ours(*inputs), others(*inputs), strict=True):
        assert distance(one, other) <= BOUND


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed: int) -> None:
    graph = RandomGraph(seed)
    mod, expected = graph.module(int(graph.rng.integers(4, 16)))
    compiled = tvm_ext.compile(mod, "cuda")
    assert all(group.verified for group in compiled.manifest.groups)
    assert_computed(compiled({"x": graph.x}), expected)
