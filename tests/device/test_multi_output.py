"""Kernels with several results: each is what it should be, and each element of it is written."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from fused_modules import called
from scipy import special

import tvm_ext
from tvm_ext import passes
from tvm_ext.graph import fuse_multi_output
from tvm_ext.graph.fuse_multi_output import FuseMultiOutput
from tvm_ext.graph.split_reductions import SplitReductions
from tvm_ext.graph.stitch import RULE
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import relax

op, nn = relax.op, relax.op.nn
Emit = Callable[[Any], Any]
Build = Callable[[Emit, Any, Any], list[Any]]
Array = np.ndarray


def residual_and_norm(emit: Emit, x: Any, y: Any) -> list[Any]:
    h = emit(op.add(x, y))
    return [h, emit(nn.softmax(h, -1)), emit(op.max(h, -1))]


def exact_residual_and_norm(x: Array, y: Array) -> list[Array]:
    h = x + y
    return [h, special.softmax(h, -1), h.max(-1)]


def siblings(emit: Emit, x: Any, y: Any) -> list[Any]:
    return [emit(op.mean(x, -1, True)), emit(op.max(x, -1)), emit(op.tanh(x))]


def exact_siblings(x: Array, y: Array) -> list[Array]:
    return [x.mean(-1, keepdims=True), x.max(-1), np.tanh(x)]


def lengths(emit: Emit, x: Any, y: Any) -> list[Any]:
    """The last result has an axis of one element that the first one's rows have not."""
    h = emit(op.add(x, y))
    squares = emit(op.sum(emit(op.multiply(h, h)), -1, True))
    return [h, emit(op.sqrt(squares))]


def exact_lengths(x: Array, y: Array) -> list[Array]:
    return [x + y, np.linalg.norm(x + y, axis=-1, keepdims=True)]


def maps(emit: Emit, x: Any, y: Any) -> list[Any]:
    """As of a cell and its state: one result is read by the next."""
    cell = emit(op.multiply(emit(op.sigmoid(x)), y))
    return [cell, emit(op.multiply(emit(op.tanh(cell)), x))]


def exact_maps(x: Array, y: Array) -> list[Array]:
    cell = special.expit(x) * y
    return [cell, np.tanh(cell) * x]


def halves(emit: Emit, x: Any, y: Any) -> list[Any]:
    """Slices of one tensor, one of them joined to what is computed: parts written in place."""
    h = emit(op.add(x, y))
    width = int(x.ty.shape[-1]) // 2
    first = emit(op.strided_slice(h, [len(x.ty.shape) - 1], [0], [width]))
    second = emit(op.strided_slice(h, [len(x.ty.shape) - 1], [width], [2 * width]))
    return [h, emit(op.concat([emit(op.negative(second)), first], -1))]


def exact_halves(x: Array, y: Array) -> list[Array]:
    h, width = x + y, x.shape[-1] // 2
    return [h, np.concatenate([-h[..., width : 2 * width], h[..., :width]], -1)]


def rows_and_columns(emit: Emit, x: Any, y: Any) -> list[Any]:
    first = len(x.ty.shape) - 2
    return [emit(op.mean(x, [-1])), emit(op.max(x, [first])), emit(op.sum(x, [first, first + 1]))]


def exact_rows_and_columns(x: Array, y: Array) -> list[Array]:
    return [x.mean(-1), x.max(-2), x.sum((-2, -1))]


CASES: dict[str, tuple[Build, Callable[[Array, Array], list[Array]]]] = {
    "residual and norm": (residual_and_norm, exact_residual_and_norm),
    "rows and columns": (rows_and_columns, exact_rows_and_columns),
    "siblings": (siblings, exact_siblings),
    "lengths": (lengths, exact_lengths),
    "maps": (maps, exact_maps),
    "halves": (halves, exact_halves),
}
SHAPES = ((64, 96), (1, 256), (7, 1), (31, 37), (2, 5, 203), (3, 8, 64, 64), (512, 768))


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be one kernel is, and all tensors are too large for a cache."""

    def chosen(predict_us: Callable[..., float], **options: Any) -> FuseMultiOutput:
        def shorter(func: Any, rule: str = "") -> float:
            return 1.0 if predict_us(func, rule=rule) < inf else inf

        return FuseMultiOutput(shorter, **options)

    def in_parts(hardware: HardwareModel, cached_bytes: float) -> SplitReductions:
        return SplitReductions(hardware, 0)

    monkeypatch.setattr(passes, "FuseMultiOutput", chosen)
    monkeypatch.setattr(passes, "SplitReductions", in_parts)


@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_results_are_exact(case: str, shape: tuple[int, ...]) -> None:
    build, exact = CASES[case]
    compiled = tvm_ext.compile(called(build, shape, operators=True))
    by_rows = [g for g in compiled.manifest.groups if g.plan and g.plan.rule == RULE]
    if shape not in ((1, 256), (7, 1)):  # of those TVM makes maps that are inlined
        assert by_rows
    assert all(group.verified for group in by_rows)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype("float32") for _ in "xy")
    found = compiled(x, y)
    for one, want in zip(found, exact(x.astype("float64"), y.astype("float64")), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=2e-6)


def test_it_is_part_of_a_compile() -> None:
    compiled = tvm_ext.compile(called(residual_and_norm, (256, 768), operators=True))
    assert len(compiled.manifest.groups) == 1
    (told,) = (f for f in compiled.manifest.fusions if f.by == fuse_multi_output._Fuser.name)
    assert len(told.kernels) == 3
