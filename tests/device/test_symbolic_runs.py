"""Kernels for extents that are not known until they run, against numpy at awkward ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext.passes  # noqa: F401  registers the pipelines
from tvm_ext.hardware import resolve
from tvm_ext.planner import make_task
from tvm_ext.symbolic import plan
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, constant, relax, te, tirx, topi, tvm

HOST = resolve("cpu")
N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
EXTENTS = [1, 2, 3, 5, 7, 16, 17, 63, 64, 65, 131, 1023, 1024, 1500]


def built(func: PrimFunc) -> Any:
    planned = plan(make_task(func, "main"), HOST)
    assert planned.option.source == "picker", planned.reasons
    kernel = planned.func.with_attr("global_symbol", "main")
    return tvm.compile(IRModule({"main": kernel}), Target(HOST.target), tir_pipeline="tvm_ext")


def run(built: Any, shape: tuple[int, ...], *given: np.ndarray) -> np.ndarray:
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    built["main"](*(tvm.runtime.tensor(one) for one in given), out)
    return out.numpy()


def dense(shape: tuple[Any, ...]) -> PrimFunc:
    x = te.placeholder((*shape, 48), "float32", "x")
    w = te.placeholder((48, 80), "float32", "w")
    k = te.reduce_axis((0, 48), "k")
    y = te.compute(
        (*shape, 80), lambda *at: te.sum(x(*at[:-1], k) * w[k, at[-1]], axis=k), name="y"
    )
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def check_dense(kernel: Any, rng: np.random.Generator, *rows: int) -> None:
    x = rng.standard_normal((*rows, 48)).astype("float32")
    w = rng.standard_normal((48, 80)).astype("float32")
    np.testing.assert_allclose(
        run(kernel, (*rows, 80), x, w), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4
    )


def test_rows_of_a_product() -> None:
    kernel, rng = built(dense((N,))), np.random.default_rng(0)
    for rows in EXTENTS:
        check_dense(kernel, rng, rows)


def test_sentences_of_words() -> None:
    kernel, rng = built(dense((N, M))), np.random.default_rng(1)
    for sentences, words in ((1, 1), (1, 64), (3, 7), (5, 13), (2, 131)):
        check_dense(kernel, rng, sentences, words)


def test_rows_with_others_outside() -> None:
    """A tile is no dense piece of memory."""
    kernel, rng = built(dense((3, N))), np.random.default_rng(2)
    for rows in EXTENTS:
        check_dense(kernel, rng, 3, rows)


def test_one_cut_inside_another() -> None:
    x = te.placeholder((N, M, 24), "float32", "x")
    p = te.placeholder((M, 24), "float32", "p")
    y = te.compute((N, M, 24), lambda b, i, j: x[b, i, j] * p[i, j], name="y")
    kernel, rng = built(te.create_prim_func([x, p, y])), np.random.default_rng(3)
    for sentences, words in ((1, 1), (3, 5), (2, 70), (7, 16)):
        a = rng.standard_normal((sentences, words, 24)).astype("float32")
        b = rng.standard_normal((words, 24)).astype("float32")
        np.testing.assert_array_equal(run(kernel, a.shape, a, b), a * b)


def test_slices_of_several_rows() -> None:
    x = te.placeholder((N * 6, 8), "float32", "x")
    y = te.compute((N, 6, 8), lambda b, i, j: x[b * 6 + i, j] + 1, name="y")
    kernel, rng = built(te.create_prim_func([x, y])), np.random.default_rng(4)
    for slices in EXTENTS:
        a = rng.standard_normal((slices * 6, 8)).astype("float32")
        out = run(kernel, (slices, 6, 8), a)
        np.testing.assert_array_equal(out, a.reshape(slices, 6, 8) + 1)


def block(*rows: Any) -> IRModule:
    """Layer norm, a product, GELU, a product, the residual, softmax."""
    rng, op, builder = np.random.default_rng(5), relax.op, relax.BlockBuilder()
    wide = constant(rng.standard_normal((96, 200)).astype("float32") / 10)
    narrow = constant(rng.standard_normal((200, 96)).astype("float32") / 14)
    scale, shift = (constant(rng.standard_normal(96).astype("float32")) for _ in range(2))
    x = relax.Var("x", relax.TensorType((*rows, 96), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.layer_norm(x, scale, shift, [-1]))
            y = builder.emit(op.nn.gelu(op.matmul(y, wide)))
            y = builder.emit(op.add(op.matmul(y, narrow), x))
            result = builder.emit_output(op.nn.softmax(y, -1))
        builder.emit_func_output(result)
    return builder.finalize()


def compiled(mod: IRModule) -> Any:
    pipelines = {"relax_pipeline": "tvm_ext", "tir_pipeline": "tvm_ext"}
    return relax.VirtualMachine(tvm.compile(mod, Target(HOST.target), **pipelines), tvm.cpu())


@pytest.mark.parametrize("rows", [(N,), (N, M), (N, 5)])
def test_a_block_in_someone_elses_flow(rows: tuple[Any, ...]) -> None:
    """As of static shapes, to the rounding of sums in another order."""
    anywhere = compiled(block(*rows))
    rng = np.random.default_rng(6)
    for n, m in ((1, 1), (3, 5), (17, 4)):
        own = [e if isinstance(e, int) else n if e is N else m for e in rows]
        x = tvm.runtime.tensor(rng.standard_normal((*own, 96)).astype("float32"))
        wanted = compiled(block(*own))["main"](x).numpy()
        np.testing.assert_allclose(anywhere["main"](x).numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_cut_keeps_its_loops() -> None:
    x = te.placeholder((N, 8), "float32", "x")
    y = te.compute((N, 8), lambda i, j: x[i, j] + i.astype("float32"), name="y")
    planned = plan(make_task(te.create_prim_func([x, y]), "main"), HOST)
    assert planned.option.source == "loose"
    assert "extents" in planned.reasons[0]
