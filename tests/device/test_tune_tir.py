"""`tune_tir`: any PrimFunc, several reductions among them, tuned, built and right."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvm_ext
from tvm_ext.errors import TargetError
from tvm_ext.records import Database
from tvm_ext.search import Sketch
from tvm_ext.search.sketch import State
from tvm_ext.tuner import TunedKernel
from tvm_ext.tvm_api import PrimFunc, te, tvm


def matmul(m: int, n: int, k: int) -> PrimFunc:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    depth = te.reduce_axis((0, k))
    y = te.compute((m, n), lambda i, j: te.sum(a[i, depth] * b[depth, j], axis=depth))
    return te.create_prim_func([a, b, y])


def attention(rows: int, columns: int, depth: int) -> PrimFunc:
    """Two products with a softmax between them, in one function."""
    q, k = te.placeholder((rows, depth), name="q"), te.placeholder((depth, columns), name="k")
    v = te.placeholder((columns, depth), name="v")
    d, j0, j1, j2 = (te.reduce_axis((0, x)) for x in (depth, columns, columns, columns))
    scores = te.compute((rows, columns), lambda i, j: te.sum(q[i, d] * k[d, j], axis=d))
    top = te.compute((rows,), lambda i: te.max(scores[i, j0], axis=j0))
    powers = te.compute((rows, columns), lambda i, j: te.exp(scores[i, j] - top[i]))
    total = te.compute((rows,), lambda i: te.sum(powers[i, j1], axis=j1))
    shares = te.compute((rows, columns), lambda i, j: powers[i, j] / total[i])
    y = te.compute((rows, depth), lambda i, j: te.sum(shares[i, j2] * v[j2, j], axis=j2))
    return te.create_prim_func([q, k, v, y])


def run(kernel: TunedKernel, *arrays: np.ndarray) -> np.ndarray:
    *given, shape = arrays
    out = tvm.runtime.empty(tuple(shape), "float32")
    kernel.build()["main"](*map(tvm.runtime.tensor, given), out)
    return out.numpy()


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_a_product_is_tuned_and_goes_on_from_its_log(tmp_path: Path) -> None:
    func = matmul(96, 64, 48)
    seen: list[int] = []
    tuned = tvm_ext.tune_tir(
        func, trials=12, log=tmp_path, watch=lambda _tasks, done: seen.append(done)
    )
    assert tuned.trials == seen[-1] == 12
    assert tuned.plan is not None
    assert 0 < tuned.latency_us < float("inf")
    assert 0 < tuned.first_us < float("inf")
    a, b = random(96, 48), random(48, 64)
    np.testing.assert_allclose(run(tuned, a, b, (96, 64)), a @ b, rtol=1e-4, atol=1e-4)
    again = tvm_ext.tune_tir(func, trials=12, log=tmp_path)
    assert again.trials == 12
    plans = {record.plan for record in Database.open(tmp_path).records()}
    assert again.plan in plans
    assert len(plans) == 12


def test_a_log_without_the_pickers_plan_gets_it_whatever_was_spent(tmp_path: Path) -> None:
    """Its own plans may all be slower: those of another version, or of an imported log."""
    func = matmul(128, 128, 128)
    picked = tvm_ext.tune_tir(func, trials=1, log=tmp_path / "first").plan
    tvm_ext.tune_tir(func, trials=4, log=tmp_path / "whole")
    others = [r for r in Database.open(tmp_path / "whole").records() if r.ok and r.plan != picked]
    slow = msgspec.structs.replace(others[0], latency_us=(1e6,), drift=1.0)
    Database.open(tmp_path / "slow", create=True).append([slow])
    again = tvm_ext.tune_tir(func, trials=1, log=tmp_path / "slow")
    assert 0 < again.first_us < 1e6
    assert again.plan == picked
    assert again.trials == 2


def test_several_reductions_have_a_plan_each(tmp_path: Path) -> None:
    func = attention(24, 40, 16)
    tuned = tvm_ext.tune_tir(func, trials=10, log=tmp_path)
    assert tuned.plan is not None
    assert len(tuned.plan.parts()) == 3
    q, k, v = random(24, 16), random(16, 40), random(40, 16)
    scores = np.exp(q @ k - (q @ k).max(1, keepdims=True))
    wanted = scores / scores.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(run(tuned, q, k, v, (24, 16)), wanted, rtol=1e-4, atol=1e-4)


def test_a_function_that_cannot_be_cut_stays_as_it_is(tmp_path: Path) -> None:
    n = te.var("n", "int64")
    x = te.placeholder((n,), name="x")
    func = te.create_prim_func([x, te.compute((n,), lambda i: x[i] + x[0])])
    tuned = tvm_ext.tune_tir(func, trials=4, log=tmp_path)
    assert (tuned.plan, tuned.trials) == (None, 0)
    assert any("extents: not known" in note for note in tuned.notes)


def test_tiles_are_tuned_of_what_has_no_known_extent(tmp_path: Path) -> None:
    n = te.var("n", "int64")
    x = te.placeholder((n, 64), name="x")
    w = te.placeholder((64, 96), name="w")
    k = te.reduce_axis((0, 64), name="k")
    y = te.compute((n, 96), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))
    tuned = tvm_ext.tune_tir(te.create_prim_func([x, w, y]), trials=8, log=tmp_path)
    assert tuned.plan is not None
    assert len({record.task.signature for record in Database.open(tmp_path).records()}) > 1
    rng = np.random.default_rng(0)
    for rows in (1, 7, 70):
        a = rng.standard_normal((rows, 64)).astype(np.float32)
        b = rng.standard_normal((64, 96)).astype(np.float32)
        out = tvm.runtime.empty((rows, 96), "float32")
        tuned.build()["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
        np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_a_rule_of_the_users_own_is_measured(tmp_path: Path) -> None:
    """A product as whole rows, which no rule of ours proposes."""

    def whole_rows(graph, state, cores):  # type: ignore[no-untyped-def]
        if state.sketch is None:
            yield State(-1, Sketch("rows", 0, derivation=("whole_rows",)))

    tuned = tvm_ext.tune_tir(matmul(32, 32, 32), trials=40, log=tmp_path, rules=[whole_rows])
    records = Database.open(tmp_path).records()
    assert tuned.trials == len({record.plan for record in records})
    assert {record.plan.rule for record in records} == {"tile", "rows"}


def test_a_gpu_is_refused_for_now(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        tvm_ext.tune_tir(matmul(8, 8, 8), "cuda/sm_80", log=tmp_path)
