"""`StitchGlobal`: which products and norms become one kernel of two pieces, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from fused_modules import HARDWARE, by_model, called, kernels

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import packed_shape, winograd
from tvm_ext.graph.stitch_global import StitchGlobal
from tvm_ext.picker import pick
from tvm_ext.records.manifest import Fusion
from tvm_ext.tile.cut import cut
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    Target,
    constant,
    structural_walk,
    te,
    tirx,
    topi,
)

ROWS = (64, 96)
Build = Callable[..., list[Any]]


def stitched(mod: IRModule, predict_us: Any = None, **options: Any) -> IRModule:
    with Target(HARDWARE.target):
        return StitchGlobal(predict_us or by_model, **options)(mod)


def weight(columns: int = 96) -> Any:
    return constant(np.ones((96, columns), "float32"))


def softmax(x: Any) -> Any:
    return topi.nn.softmax(x, -1)


def merged_one(mod: IRModule) -> PrimFunc:
    (func,) = (
        func
        for variable, func in mod.functions.items()
        if isinstance(func, PrimFunc) and str(variable.name_hint).startswith("fused_")
    )
    return func


def parallel_loops(func: PrimFunc) -> int:
    found: list[Any] = []
    structural_walk(func.body, (tirx.For, found.append))
    return sum(loop.kind == tirx.ForKind.PARALLEL for loop in found)


def norm_behind(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    return [emit(softmax, emit(topi.matmul, x, weight()))]


def norm_before(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    return [emit(topi.matmul, emit(softmax, x), weight())]


def read_by_others(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    product = emit(topi.matmul, x, weight())
    return [emit(softmax, product), emit(topi.add, product, y)]


@pytest.mark.parametrize("build", [norm_behind, norm_before, read_by_others])
def test_a_product_and_a_norm_are_two_pieces_of_one_kernel(build: Build) -> None:
    """softmax(x @ w)   →   x @ w | max, exp, sum, divide"""
    before = called(build, (512, 96))
    after = stitched(before)
    assert len(kernels(after)) == len(kernels(before)) - 1
    func = merged_one(after)
    prepared = prepare(func)
    assert prepared is not None
    assert len(cut(prepared.graph)) == 2
    plans = [one.plan for one in pick(prepared.graph, HARDWARE, 32)]
    plan = next(one for one in plans if one.rule != "strips")
    assert {part.rule for part in plan.parts()} == {"tile", "rows"}
    assert parallel_loops(write(func, plan)) == 2


def test_a_product_that_is_called_elsewhere_too_stays() -> None:
    """It would be compiled twice."""

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        return [emit(softmax, emit(topi.matmul, x, weight())), emit(topi.matmul, y, weight())]

    told: list[Fusion] = []
    before = called(build, ROWS)
    assert kernels(stitched(before, explain=told.append)) == kernels(before)
    assert [one.stopped for one in told] == ["with matmul: is called without it as well"]


def test_the_product_behind_takes_a_norm_that_the_one_before_leaves() -> None:
    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        first = emit(topi.matmul, x, weight())
        wide = emit(topi.matmul, emit(softmax, first), weight(32))
        return [wide, emit(topi.matmul, y, weight())]

    assert kernels(stitched(called(build, ROWS))) == ["matmul", "fused_softmax_matmul1", "matmul"]


def test_what_lies_between_them_is_no_part_of_another_path() -> None:
    """softmax(h + g(h)): g stands between the product and the norm."""

    def norm(x: Any, y: Any) -> Any:
        return softmax(topi.add(x, y))

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        product = emit(topi.matmul, x, weight())
        return [emit(norm, product, emit(topi.cumsum, product, 1))]

    before = called(build, ROWS)
    assert kernels(stitched(before, lambda *_, **__: 1.0)) == kernels(before)


def test_a_norm_that_would_be_in_two_pieces_stays() -> None:
    """Two sums of rows, the second of products by a vector, are one task; behind a product each
    would be a piece."""

    def norms(x: Any, w: Any) -> Any:
        k = te.reduce_axis((0, 96), "k")
        total = te.compute((64,), lambda i: te.sum(x[i, k], axis=k), "total")
        j = te.reduce_axis((0, 96), "j")
        return te.compute((64,), lambda i: te.sum((x[i, j] - total[i]) * w[0, j], axis=j), "dot")

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        return [emit(norms, emit(topi.matmul, x, weight()), constant(np.ones((1, 96), "float32")))]

    before = called(build, ROWS)
    assert kernels(stitched(before, lambda *_, **__: 1.0)) == kernels(before)


def test_slower_regions_stay() -> None:
    def slow(func: PrimFunc, rule: str = "") -> float:
        prepared = prepare(func)
        assert prepared is not None
        return inf if len(prepared.graph.nodes) > 4 else 1.0

    told: list[Fusion] = []
    before = called(norm_behind, ROWS)
    assert kernels(stitched(before, slow, explain=told.append)) == kernels(before)
    assert [one.stopped for one in told] == ["with matmul: no plan for one kernel"]


def test_a_chain_is_no_piece() -> None:
    """A convolution along one axis by Winograd has stages that are written as a whole kernel only:
    as a piece beside a norm it had no plan, and ran without one (Whisper: 0.28 → 31 ms)."""
    geometry = ConvGeometry((3,), (1,), (1,), (1,), (1,), 1, 96, 96)
    packed = constant(np.ones(packed_shape(geometry, HARDWARE.lanes(4), 4), "float32"))

    def chain(x: Any, w: Any) -> Any:
        return winograd(x, w, geometry, 4)

    def build(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        return [emit(softmax, emit(chain, x, packed))]

    told: list[Fusion] = []
    before = called(build, (1, 64, 96))
    after = stitched(before, lambda *_, **__: 1.0, explain=told.append)
    assert kernels(after) == kernels(before)
    assert [one.stopped for one in told] == ["with chain: a chain is no piece"]
