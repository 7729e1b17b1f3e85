"""Attention in one kernel equals its definition in float64, by every form of plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tvm_ext.compute.attention import attention as counted_attention
from tvm_ext.compute.attention import bias_by_keys, padded_queries
from tvm_ext.hardware import get, resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.tile.attention import COLUMN, attention_stages
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import PrimFunc, Target, te, topi, tvm

BOUND = 5e-6
"""max|error| / max|y| against float64."""
SHAPES = {
    # name: (batch, queries, keys, heads, depth, width)
    "whole": (1, 64, 64, 2, 32, 32),
    "windows": (5, 49, 49, 3, 32, 32),
    "prime": (1, 37, 41, 3, 20, 12),
    "odd depth": (2, 33, 18, 2, 7, 5),
    "one key": (1, 17, 1, 2, 16, 16),
    "one query": (3, 1, 29, 2, 16, 16),
    "one of all": (1, 1, 1, 1, 1, 1),
    "cross": (1, 48, 77, 4, 64, 64),
    "wide heads": (1, 32, 300, 1, 80, 80),
    "long": (1, 130, 1031, 2, 16, 16),
}
BIASES: dict[str, tuple[int, ...]] = {
    "none": (),
    "keys": (1, 1, 1, 0),
    "heads": (1, 0, 0, 0),
    "full": (0, 0, 0, 0),
}
"""Whether an axis of the bias, b, h, i, j, has one element; empty for no bias."""


def attention(
    q: Any, k: Any, v: Any, bias: Any, scale: float, lanes: int, guarded: bool = False
) -> Any:
    """With no more queries than fill register tiles."""
    columns = padded_queries(int(q.shape[1]), lanes)
    return counted_attention(q, k, v, bias, scale, guarded, columns)


def shape_of_bias(shape: str, bias: str) -> tuple[int, ...]:
    batch, queries, keys, heads, *_ = SHAPES[shape]
    full = (batch, heads, queries, keys)
    return tuple(1 if one else size for one, size in zip(BIASES[bias], full, strict=False))


def program(shape: str, bias: str, lanes: int) -> PrimFunc:
    batch, queries, keys, heads, depth, width = SHAPES[shape]
    q = te.placeholder((batch, queries, heads, depth), "float32", "q")
    k = te.placeholder((batch, keys, heads, depth), "float32", "k")
    v = te.placeholder((batch, keys, heads, width), "float32", "v")
    added = shape_of_bias(shape, bias)
    if not added:
        return te.create_prim_func([q, k, v, attention(q, k, v, None, depth**-0.5, lanes)])
    b, h, i, j = added
    columns = padded_queries(queries, lanes) if i > 1 else 1
    m = te.placeholder((b, h, j, columns), "float32", "m")
    return te.create_prim_func([q, k, v, m, attention(q, k, v, m, depth**-0.5, lanes)])


def heads_first(shape: str, lanes: int) -> PrimFunc:
    """The same of operands whose heads lie before their positions, as is the result."""
    batch, queries, keys, heads, depth, width = SHAPES[shape]
    sizes = ((queries, depth), (keys, depth), (keys, width))
    given = [
        te.placeholder((batch, heads, *size), "float32", name)
        for name, size in zip("qkv", sizes, strict=True)
    ]
    turned = [topi.transpose(operand, (0, 2, 1, 3)) for operand in given]
    y = attention(*turned, None, depth**-0.5, lanes)
    return te.create_prim_func([*given, topi.transpose(y, (0, 2, 1, 3))])


@cache
def arrays(shape: str, bias: str) -> tuple[np.ndarray, ...]:
    """q, k, v, the bias if there is one, and what they make in float64."""
    batch, queries, keys, heads, depth, width = SHAPES[shape]
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((batch, count, heads, size)).astype("float32")
        for count, size in ((queries, depth), (keys, depth), (keys, width))
    )
    added = shape_of_bias(shape, bias)
    m = () if not added else (rng.standard_normal(added).astype("float32"),)
    return q, k, v, *m, expected(q, k, v, *m)


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, *bias: np.ndarray) -> np.ndarray:
    q, k, v = (array.astype("float64") for array in (q, k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5 + sum(bias)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhe->bihe", power / power.sum(-1, keepdims=True), v)


def by_keys(bias: np.ndarray, lanes: int) -> np.ndarray:
    """What `bias_by_keys` makes of it, in numpy."""
    after = padded_queries(bias.shape[2], lanes) - bias.shape[2] if bias.shape[2] > 1 else 0
    return np.pad(bias.swapaxes(2, 3), [(0, 0)] * 3 + [(0, after)], mode="edge")


def placeholders(given: Sequence[np.ndarray]) -> list[Any]:
    names = ("q", "k", "v", "m")
    return [te.placeholder(x.shape, "float32", n) for x, n in zip(given, names, strict=False)]


def some_plans(func: PrimFunc, hw: HardwareModel) -> list[TilePlan]:
    """The picker's first choice with and without copies, and the best of each number of queries in
    tasks, blocks and register tiles."""
    prepared = prepare(func)
    assert prepared is not None
    plans = [candidate.plan for candidate in pick(prepared.graph, hw, 1000)]
    sizes = {
        tuple(entry.tile.extents[COLUMN] for entry in plan.tiles): plan for plan in reversed(plans)
    }
    found = attention_stages(prepared.graph)
    assert found is not None
    copied = [replace(plans[0], staged=staged) for staged in found.copies]
    return list(dict.fromkeys([*copied, *sizes.values()]))


def error_of(func: PrimFunc, plan: TilePlan, target: Any, given: Any, wanted: np.ndarray) -> float:
    built = build(write(func, plan), Target(target))
    assert isinstance(built, Built), built
    out = tvm.runtime.tensor(np.full(wanted.shape, np.nan, np.float32))
    built.main(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in given), out)
    return float(np.abs(out.numpy() - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_heads_before_positions(shape: str) -> None:
    hw = resolve("cpu")
    func = heads_first(shape, hw.lanes(4))
    *given, wanted = (array.transpose(0, 2, 1, 3) for array in arrays(shape, "none"))
    for plan in some_plans(func, hw):
        assert plan.rule == "attention"
        assert error_of(func, plan, hw.target, given, wanted) < BOUND


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_its_definition(shape: str, bias: str) -> None:
    hw = resolve("cpu/host")
    *given, wanted = arrays(shape, bias)
    given[3:] = [by_keys(one, hw.lanes(4)) for one in given[3:]]
    func = program(shape, bias, hw.lanes(4))
    plans = some_plans(func, hw)
    for plan in plans if bias == "none" else plans[:1]:
        assert error_of(func, plan, hw.target, given, wanted) < BOUND, plan


@pytest.mark.parametrize("machine", ["cpu/x86-sse", "cpu/x86-avx2"])
def test_narrower_vectors(machine: str) -> None:
    hw = get(machine)
    *given, wanted = arrays("prime", "full")
    given[3] = by_keys(given[3], hw.lanes(4))
    func = program("prime", "full", hw.lanes(4))
    for plan in some_plans(func, hw):
        assert error_of(func, plan, hw.target, given, wanted) < BOUND, plan


def test_large_scores_neither_overflow_nor_vanish() -> None:
    hw = resolve("cpu/host")
    q, k, v, _ = arrays("cross", "none")
    func = program("cross", "none", hw.lanes(4))
    (plan, *_) = some_plans(func, hw)
    for factor in (1e-22, 1e3, 1e6):
        wanted = expected(q * np.float32(factor), k, v)
        assert error_of(func, plan, hw.target, (q * np.float32(factor), k, v), wanted) < 1e-4


def test_masked_keys_have_no_part_in_the_result() -> None:
    hw = resolve("cpu/host")
    q, k, v, m, _ = arrays("prime", "keys")
    masked = np.where(np.arange(m.shape[3]) % 3 == 0, np.float32("-inf"), np.float32(0))
    masked = np.broadcast_to(masked, m.shape)
    func = program("prime", "keys", hw.lanes(4))
    (plan, *_) = some_plans(func, hw)
    wanted = expected(q, k[:, m.shape[3] * [True]], v, masked)
    spoiled = v.copy()
    spoiled[:, ::3] *= 1e6
    given = (q, k, spoiled, by_keys(masked, hw.lanes(4)))
    assert error_of(func, plan, hw.target, given, wanted) < BOUND


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_that_share_keys(groups: int) -> None:
    """Of four heads as many have keys of their own; the others read theirs."""
    hw = resolve("cpu/host")
    batch, queries, keys, heads, depth = 2, 37, 41, 4, 20
    rng = np.random.default_rng(0)
    shapes = ((queries, heads), (keys, groups), (keys, groups))
    given = [rng.standard_normal((batch, *shape, depth)).astype("float32") for shape in shapes]
    operands = [
        te.placeholder(one.shape, "float32", n) for one, n in zip(given, "qkv", strict=True)
    ]
    made = attention(*operands, None, depth**-0.5, hw.lanes(4))
    func = te.create_prim_func([*operands, made])
    q, k, v = given
    wanted = expected(q, *(one.repeat(heads // groups, axis=2) for one in (k, v)))
    for plan in some_plans(func, hw):
        assert plan.rule == "attention"
        assert error_of(func, plan, hw.target, given, wanted) < BOUND, plan


@pytest.mark.parametrize("shape", ["whole", "windows", "wide heads"])
def test_slices_of_one_tensor(shape: str) -> None:
    """Queries, keys and values side by side, as one product writes them."""
    hw = resolve("cpu/host")
    batch, queries, _, heads, depth, _ = SHAPES[shape]
    shape_of_all = (batch, queries, 3 * heads, depth)
    x = te.placeholder(shape_of_all, "float32", "x")
    parts = [
        topi.strided_slice(x, [part * heads], [(part + 1) * heads], [1], [2]) for part in range(3)
    ]
    func = te.create_prim_func([x, attention(*parts, None, depth**-0.5, hw.lanes(4))])
    given = np.random.default_rng(0).standard_normal(shape_of_all).astype("float32")
    wanted = expected(*np.split(given, 3, axis=2))
    for plan in some_plans(func, hw):
        assert plan.rule == "attention"
        assert error_of(func, plan, hw.target, [given], wanted) < BOUND, plan


def test_a_query_without_keys_gives_zeros_if_guarded() -> None:
    """PyTorch's `where(isnan(p), 0, p)`: of a row whose keys are all masked, of one with NaN."""
    hw = resolve("cpu/host")
    q, k, v, m, _ = arrays("prime", "full")
    m = m.copy()
    m[0, :, 3] = -np.inf
    m[0, 1, 5, 7] = np.nan
    m[0, 1, 6, :9] = -np.inf
    given = (q, k, v, by_keys(m, hw.lanes(4)))
    operands = placeholders(given)
    made = attention(*operands, q.shape[-1] ** -0.5, hw.lanes(4), guarded=True)
    func = te.create_prim_func([*operands, made])
    with np.errstate(invalid="ignore"):
        wanted = np.nan_to_num(expected(q, k, v, m))
    assert not wanted[0, 3].any()
    assert not wanted[0, 5, 1].any()
    assert wanted[0, 6, 1].all()
    for plan in some_plans(func, hw):
        assert error_of(func, plan, hw.target, given, wanted) < BOUND, plan


@pytest.mark.parametrize("queries", [1, 16, 37])
def test_a_bias_is_turned_with_its_last_query_repeated(queries: int) -> None:
    columns = padded_queries(queries, 16)
    bias = np.random.default_rng(0).standard_normal((2, 3, queries, 11)).astype("float32")
    given = te.placeholder(bias.shape, "float32", "bias")
    func = te.create_prim_func([given, bias_by_keys(given, columns)])
    built = build(func, Target("llvm"))
    assert isinstance(built, Built)
    out = tvm.runtime.empty((2, 3, 11, columns if queries > 1 else 1), "float32")
    built.main(tvm.runtime.tensor(bias), out)
    assert np.array_equal(out.numpy(), by_keys(bias, 16))
