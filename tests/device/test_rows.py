"""Softmax and arg-reductions on rows with infinities, NaN and ties: what numpy makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import tvm_ext
from tvm_ext import passes
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.planner import plan_task
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import Target, relax, te, topi, tvm

op, nn = relax.op, relax.op.nn
LENGTHS = (5, 16, 37, 128, 203)


def run(build_op: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The result of one operator, each of its kernels planned and run in turn."""
    hardware = resolve("cpu")
    builder = relax.BlockBuilder()
    param = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [param]):
        with builder.dataflow():
            output = builder.emit_output(build_op(param))
        builder.emit_func_output(output)
    with Target(hardware.target):
        lowered = tvm.transform.Sequential(passes.graph_passes(hardware))(builder.finalize())
    value = x  # between kernels only its shape changes
    for task in passes.tasks_of(lowered).values():
        planned = plan_task(task, hardware)
        assert planned.option.source == "picker", planned.reasons
        built = build(planned.func, Target(hardware.target))
        assert isinstance(built, Built), built
        given, out = ([int(extent) for extent in buffer.shape] for buffer in task.func.params)
        result = tvm.runtime.empty(out, str(task.func.params[-1].dtype))
        built.main(tvm.runtime.tensor(value.reshape(given)), result)
        value = result.numpy()
    return value


def rows(length: int) -> np.ndarray:
    """Rows of one length: plain, huge, masked in part, masked but for one, fully masked, with NaN,
    with an infinity, constant, denormal."""
    rng = np.random.default_rng(length)
    x = rng.standard_normal((9, length)).astype(np.float32)
    x[1] *= 1e37
    x[2, rng.permutation(length)[: length // 2]] = -np.inf
    x[3, 1:] = -np.inf
    x[4] = -np.inf
    x[5, length - 1] = np.nan
    x[6, 2] = np.inf
    x[7] = 3.0
    x[8] *= 1e-42
    return x


@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_of_masked_rows(length: int) -> None:
    """Masked places are exactly 0, a row with nothing left is NaN, as ONNX says."""
    x = rows(length)
    got = run(lambda x: nn.softmax(x, -1), x)
    with np.errstate(invalid="ignore"):
        want = special.softmax(x.astype(np.float64), -1)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-38)
    assert (got[2][np.isneginf(x[2])] == 0).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_log_softmax_of_masked_rows(length: int) -> None:
    x = rows(length)
    got = run(lambda x: nn.log_softmax(x, -1), x)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
        top = wide.max(-1, keepdims=True)
        want = wide - top - np.log(np.exp(wide - top).sum(-1, keepdims=True))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("how", ["argmax", "argmin"])
def test_arg_reduction_takes_the_first(how: str, length: int) -> None:
    """Ties, rows of one infinity and a row whose extreme is a NaN."""
    x = np.concatenate([rows(length), -rows(length)])
    x[0] = np.round(x[0])
    x[5] = np.abs(x[5]) if how == "argmin" else -np.abs(x[5])
    x[5, length // 2] = np.nan
    plain = ~np.isnan(x).any(-1)
    got = run(lambda x: getattr(op, how)(x, -1), x)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got[plain], getattr(np, how)(x[plain], -1))
    assert ((got >= 0) & (got < length)).all()


@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_arg_reduction_along_any_axis(axis: int | None, keepdims: bool) -> None:
    x = np.random.default_rng(0).integers(-4, 4, (6, 35, 19)).astype(np.float32)
    got = run(lambda x: op.argmax(x, axis, keepdims=keepdims), x)
    want = np.argmax(x, axis, keepdims=keepdims)
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_a_softmax_across_rows_of_what_is_masked() -> None:
    """The mask is a stage that two others read: no part of the first one's tile."""
    x = np.random.default_rng(0).standard_normal((300, 300, 8)).astype(np.float32)
    shown = np.random.default_rng(1).random((300, 300, 1)) < 0.5
    shown[:, 0] = True
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(x.shape, "float32"))
    mask = relax.Var("mask", relax.TensorType(shown.shape, "bool"))
    with builder.function("main", [given, mask]):
        with builder.dataflow():
            low = relax.const(np.float32(-np.inf))
            kept = builder.emit(op.where(mask, builder.emit(op.tanh(given)), low))
            output = builder.emit_output(nn.softmax(kept, axis=1))
        builder.emit_func_output(output)
    compiled = tvm_ext.compile(builder.finalize())
    assert [(g.source, g.fallback) for g in compiled.manifest.groups] == [("picker", ())]
    (found,) = compiled({"x": x, "mask": shown})
    expected = special.softmax(np.where(shown, np.tanh(x), -np.inf), axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(1, 203, 37), (2, 64, 128), (1, 5, 16), (3, 1, 40)])
def test_a_variance_over_columns_has_a_plan_for_each_reduction(shape: tuple[int, ...]) -> None:
    x = (3 + 2 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    result = run(lambda x: op.variance(x, [1], keepdims=True), x)
    expected = x.astype(np.float64).var(axis=1, keepdims=True)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    func = te.create_prim_func(variance_of_columns(*shape))
    prepared = prepare(func)
    assert prepared is not None
    assert len(pick(prepared.graph, resolve("cpu"))[0].plan.parts()) == 2


def variance_of_columns(*shape: int) -> list[Any]:
    x = te.placeholder(shape, "float32", "x")
    mean = topi.sum(x, 1, keepdims=True)
    distance = x - mean / float(shape[1])
    return [x, topi.sum(distance * distance, 1, keepdims=True)]
