"""`FuseMultiOutput`: which kernels become one with several results, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from fused_modules import HARDWARE, by_model, called, kernels

from tvm_ext.costs import predicted_us
from tvm_ext.graph.fuse_multi_output import FuseMultiOutput
from tvm_ext.graph.name_fields import name_fields
from tvm_ext.records.manifest import Fusion
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, constant, relax, structural_walk, te, topi

ROWS = (48, 96)
Build = Callable[[Callable[..., Any], Any, Any], list[Any]]


def by_count(func: PrimFunc, rule: str = "") -> float:
    """One kernel is faster than several."""
    return 1.0 if predicted_us(func, HARDWARE, rule) < inf else inf


def fused(mod: IRModule, predict_us: Callable[..., float] = by_count, **options: Any) -> IRModule:
    with Target(HARDWARE.target):
        return FuseMultiOutput(predict_us, **options)(mod)


def softmax(x: Any) -> Any:
    return topi.nn.softmax(x, -1)


def weight() -> Any:
    return constant(np.ones((96, 96), "float32"))


def test_what_others_read_is_a_result_too() -> None:
    """h = x + y; softmax(h) and h leave   →   one call with two results."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        h = emit(topi.add, x, y)
        return [h, emit(softmax, h)]

    before = called(build, ROWS)
    assert len(kernels(before)) == 2
    after = fused(before)
    assert kernels(after) == ["fused_add_softmax"]
    (func,) = (one for one in after.functions.values() if isinstance(one, PrimFunc))
    assert [tuple(map(int, param.shape)) for param in func.params] == [ROWS] * 4


def test_kernels_that_read_the_same_are_one() -> None:
    """Two results of different shapes, each written once."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        return [emit(topi.max, x, 1), emit(softmax, x), emit(topi.exp, y)]

    assert sorted(map(len, kernels(fused(called(build, ROWS))))) == [
        len("exp"),
        len("fused_max_softmax"),
    ]


def test_columns_have_other_rows() -> None:
    """All rows as one task of one core are no gain."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        return [emit(topi.max, x, 0), emit(softmax, x)]

    mod = called(build, (512, 768))
    told: list[Fusion] = []
    assert kernels(fused(mod, by_model, explain=told.append)) == kernels(mod)
    assert any("slower" in one.stopped for one in told)


def test_rows_in_another_order_are_not_shared() -> None:
    """A result that is read from its end: its row is not there yet."""

    def turned(x: Any) -> Any:
        return te.compute(x.shape, lambda i, j: x[x.shape[0] - 1 - i, j] * 2.0)

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        h = emit(topi.add, x, y)
        return [h, emit(turned, h)]

    mod = called(build, (512, 768))
    assert kernels(fused(mod, by_model)) == kernels(mod)


def test_no_path_leads_away_and_back() -> None:
    """exp(x) and what takes its product cannot be one call."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        h = emit(topi.exp, x)
        product = emit(topi.matmul, h, weight())
        return [emit(topi.multiply, h, product)]

    mod = called(build, ROWS)
    assert kernels(fused(mod)) == kernels(mod)


def test_regions_do_not_wait_for_each_other() -> None:
    """Of two regions, each of which is fine alone, only one is made."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        first, second = emit(topi.exp, x), emit(topi.tanh, y)
        a = emit(topi.matmul, first, weight())
        b = emit(topi.matmul, second, weight())
        return [emit(topi.subtract, x, b), emit(topi.multiply, y, a)]

    names = kernels(fused(called(build, ROWS)))
    assert len(names) == 5


def test_readers_follow_what_they_read() -> None:
    """A reader that stood between the two kernels comes after their call."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        h = emit(topi.add, x, y)
        product = emit(topi.matmul, h, weight())
        return [product, emit(softmax, h)]

    after = fused(called(build, ROWS))
    assert kernels(after) == ["fused_add_softmax", "matmul"]
    relax.analysis.well_formed(after)


def test_the_model_decides() -> None:
    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        h = emit(topi.add, x, y)
        return [h, emit(softmax, h)]

    mod, told = called(build, ROWS), list[Fusion]()
    same = fused(mod, lambda func, rule="": 9.0 if rule else 1.0, explain=told.append)
    assert kernels(same) == kernels(mod)
    assert any("slower: 9.0 us" in one.stopped for one in told)
    hardly = fused(mod, lambda func, rule="": 2.1 if rule else 1.0, explain=told.append)
    assert kernels(hardly) == kernels(mod)
    assert any("hardly faster" in one.stopped for one in told)


def test_results_have_names_of_their_own() -> None:
    """t = (a, b); h = t[0]   →   h = a: as memory is planned."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        h = emit(topi.add, x, y)
        return [emit(topi.exp, h), emit(topi.matmul, h, weight())]

    rewritten = relax.transform.CallTIRRewrite()(
        relax.transform.RemovePurityChecking()(
            relax.transform.ToNonDataflow()(fused(called(build, ROWS)))
        )
    )
    fields: list[Any] = []
    structural_walk(rewritten["main"], (relax.TupleGetItem, fields.append))
    assert len(fields) == 2
    named = name_fields(rewritten)
    fields.clear()
    structural_walk(named["main"], (relax.TupleGetItem, fields.append))
    assert not fields
    relax.analysis.well_formed(named)
