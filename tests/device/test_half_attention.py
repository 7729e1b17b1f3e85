"""Attention in bfloat16 on this machine, beside numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.compute.attention import padded_queries
from tvm_ext.compute.half_attention import attention_pairs
from tvm_ext.graph.multiply_halves import multiplies_halves
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.measure.inputs import make_inputs
from tvm_ext.picker import pick
from tvm_ext.tile.attention import attention_stages
from tvm_ext.tir import Reference, prepare, write
from tvm_ext.tvm_api import PrimFunc, Target, te, tvm
from tvm_ext.verify import arguments_of

HOST = resolve("cpu")
HALF = np.dtype(ml_dtypes.bfloat16)
SCALE = 0.3
SHAPES = {
    # batch, queries, keys, heads, heads of keys, depth, width
    "whole": (1, 32, 32, 2, 2, 16, 16),
    "prime": (2, 37, 53, 3, 3, 6, 7),
    "one key": (1, 17, 1, 2, 2, 2, 3),
    "one query": (1, 1, 9, 2, 1, 4, 5),
    "shared keys": (1, 40, 61, 4, 2, 24, 40),
    "wide": (1, 64, 33, 1, 1, 128, 128),
}


def drawn(name: str) -> list[np.ndarray]:
    """Queries, keys and values of a shape, in bfloat16."""
    batch, queries, keys, heads, groups, depth, width = SHAPES[name]
    shapes = ((queries, heads, depth), (keys, groups, depth), (keys, groups, width))
    rng = np.random.default_rng(3)
    return [rng.standard_normal((batch, *shape)).astype(HALF) for shape in shapes]


def wanted(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    """With scaled queries and weights rounded as kernels do, but for their own exponential."""
    shared = q.shape[2] // k.shape[2]
    k, v = (one.astype(np.float64).repeat(shared, axis=2) for one in (k, v))
    scaled = (q.astype(np.float32) * np.float32(SCALE)).astype(HALF).astype(np.float64)
    scores = np.einsum("bihd,bjhd->bhij", scaled, k) + bias
    power = np.exp(scores - scores.max(-1, keepdims=True))
    power = power.astype(np.float32).astype(HALF).astype(np.float64)
    return np.einsum("bhij,bjhe->bihe", power / power.sum(-1, keepdims=True), v)


def program(
    given: list[np.ndarray], bias: np.ndarray | None = None, guarded: bool = False
) -> PrimFunc:
    """The function of arrays as `as_words` gives them, and of a bias with keys first."""
    operands = [
        te.placeholder(one.shape, str(one.dtype), n) for one, n in zip(given, "qkv", strict=True)
    ]
    added = [] if bias is None else [te.placeholder(bias.shape, "float32", "bias")]
    columns = padded_queries(given[0].shape[1], HOST.lanes(4))
    made = attention_pairs(*operands, added[0] if added else None, SCALE, guarded, columns)
    return te.create_prim_func([*operands, *added, made])


def as_words(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    return [q.view(np.uint32), k.view(np.uint32), v.view(np.uint16)]


def result(func: PrimFunc, plan: Any, given: list[np.ndarray], shape: tuple[int, ...]) -> Any:
    built = build(write(func, plan), Target(HOST.target))
    assert isinstance(built, Built), built
    out = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
    built.main(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in given), out)
    return out.numpy()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_equals_its_definition(name: str, biased: bool) -> None:
    q, k, v = drawn(name)
    rng = np.random.default_rng(4)
    columns = padded_queries(q.shape[1], HOST.lanes(4))
    bias = rng.standard_normal((1, 1, k.shape[1], columns)).astype(np.float32) if biased else None
    given = as_words(q, k, v)
    func = program(given, bias)
    prepared = prepare(func)
    assert prepared is not None
    plans = [one.plan for one in pick(prepared.graph, HOST, 3)]
    assert {plan.rule for plan in plans} == {"attention"}
    added = 0.0 if bias is None else bias[..., : q.shape[1]].swapaxes(2, 3)
    y = wanted(q, k, v, added)
    reference = Reference.of(func)
    assert reference is not None
    arguments = [*given, *([] if bias is None else [bias])]
    points = reference.points(arguments, 0, np.arange(y.size))
    for plan in plans:
        found = result(func, plan, arguments, y.shape)
        # a weight may be the neighbour of that of an exact exponential, 2^-8 away
        np.testing.assert_allclose(found, y, rtol=0, atol=2**-8 * np.abs(y).max())
        assert np.median(np.abs(found - y)) < 2**-10 * np.abs(y).max()
        assert (np.abs(found.reshape(-1) - points.values) <= points.bounds).all()
    assert np.median(points.bounds) < 1e-4 * np.abs(y).max()


def test_a_query_without_keys_gives_zeros_if_guarded() -> None:
    q, k, v = drawn("prime")
    columns = padded_queries(q.shape[1], HOST.lanes(4))
    bias = np.zeros((1, 1, k.shape[1], columns), np.float32)
    bias[..., 3] = -np.inf
    bias[:, :, 7, 5] = np.nan
    bias[:, :, ::2, 6] = -np.inf
    arguments = [*as_words(q, k, v), bias]
    with np.errstate(invalid="ignore"):
        y = wanted(q, k, v, bias[..., : q.shape[1]].swapaxes(2, 3))
    assert np.isnan(y[:, [3, 5]]).all()
    for guarded in (False, True):
        func = program(arguments[:3], bias, guarded)
        prepared = prepare(func)
        assert prepared is not None
        plan = pick(prepared.graph, HOST, 1)[0].plan
        found = result(func, plan, arguments, y.shape)
        kept = np.nan_to_num(y) if guarded else y
        np.testing.assert_allclose(found, kept, rtol=0, atol=2**-8 * np.nanmax(np.abs(y)))


def test_copies_of_keys_alone_are_a_choice() -> None:
    """Values are put together by a stage of their own."""
    prepared = prepare(program(as_words(*drawn("prime"))))
    assert prepared is not None
    found = attention_stages(prepared.graph)
    assert found is not None
    assert found.values is not None
    assert found.copies == ((), (0,))


def test_data_of_trials_are_halves() -> None:
    """Small integers would be denormals, which count as zeros: nothing would be tried."""
    arguments = arguments_of(program(as_words(*drawn("prime"))), 1)
    assert [argument.halves for argument in arguments] == [True, True, True, False]
    q, k, v = make_inputs(arguments, 0)
    for bits in (q, k, v):
        assert 0.9 < np.std(bits.view(HALF).astype(np.float32)) < 1.1
    assert (q.dtype, v.dtype) == (np.uint32, np.uint16)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("words", [32, 33])
def test_a_layer_attends_in_halves(words: int, added: bool, guarded: bool) -> None:
    """Projections of one tensor, attention, and a product of what comes of it, or a sum."""
    heads, width = 4, 64
    rng = np.random.default_rng(5)
    weights = {
        name: (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        for name in ("wq", "wk", "wv", "wo")
    }
    shape = np.array([1, words, heads, width // heads])
    nodes = []
    for one, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{one}"], [one]),
            helper.make_node("Reshape", [one, "heads"], [f"{one}h"]),
            helper.make_node("Transpose", [f"{one}h"], [f"{one}t"], perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["qt", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["ss"]),
        helper.make_node("Softmax", ["ss"], ["p"], axis=-1),
        helper.make_node("IsNaN", ["p"], ["none"]),
        helper.make_node("Where", ["none", "zero", "p"], ["pg"]),
        helper.make_node("MatMul", ["pg" if guarded else "p", "vt"], ["o"]),
        helper.make_node("Transpose", ["o"], ["ot"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["ot", "flat"], ["of"]),
        helper.make_node(*(["Add", ["of", "x"]] if added else ["MatMul", ["of", "wo"]]), ["y"]),
    ]
    constants = weights | {
        "heads": shape,
        "flat": np.array([1, words, width]),
        "zero": np.zeros((), np.float32),
        "scale": np.array((width // heads) ** -0.5, np.float32),
    }
    model = make_model(nodes, [value("x", 1, words, width)], ["y"], constants)
    asked = tvm_ext.compile(model, precision="bfloat16")
    names = [group.name for group in asked.manifest.groups]
    attends = [name for name in names if "attention" in name]
    assert len(attends) == 1
    in_halves = multiplies_halves(HOST) and HOST.peak_gflops.get("bfloat16", 0.0) > 0
    assert ("attention_pairs" in attends[0]) == in_halves
    assert not in_halves or len(names) == 4, "rounding, projections, attention, product"
    assert {group.source for group in asked.manifest.groups} == {"picker"}
    x = rng.standard_normal((1, words, width)).astype(np.float32)
    (y,), (floats,) = asked(x), tvm_ext.compile(model)(x)
    np.testing.assert_allclose(y, floats, rtol=0, atol=3e-2 * np.abs(floats).max())
