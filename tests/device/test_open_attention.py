"""Attention of lengths that are not known until it runs equals its definition, at awkward ones."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from test_attention import BOUND, expected

from tvm_ext.compute.attention import attention
from tvm_ext.compute.open_attention import (
    OPEN,
    SPARE_ROWS,
    TYPICAL,
    OpenAttention,
    by_positions,
)
from tvm_ext.hardware import resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.planner import make_task
from tvm_ext.records import Database
from tvm_ext.symbolic import parts, plan
from tvm_ext.symbolic_attention import _for_any_lengths, _options, _Plan
from tvm_ext.tir.generalise import generalised
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, te, tirx, tvm
from tvm_ext.verify import check

HOST = resolve("cpu")
LENGTHS = (1, 2, 15, 16, 17, 47, 64, 65, 130)
HEADS, DEPTH, WIDTH = 3, 20, 12
BIASES = {"keys": (False, False), "keys of heads": (True, False), "both": (True, True)}
"""Whether each head has one of its own, and each query."""


def static(
    queries: int,
    keys: int,
    bias: str,
    groups: int,
    guarded: bool,
    heads_first: tuple[bool, ...],
    batch: int = 1,
) -> PrimFunc:
    """As a graph pass makes it, with numbers for the lengths."""
    operands = []
    for shape, first in zip(shapes(queries, keys, groups, batch), heads_first, strict=True):
        lies = (shape[0], shape[2], shape[1], shape[3]) if first else shape
        extents = tuple(tirx.const(e, "int64") for e in lies)
        operands.append(te.placeholder(extents, "float32", "qkv"[len(operands)]))
    q, k, v = by_positions(operands, heads_first)
    m = None
    if bias:
        shape = bias_shape(queries, keys, bias, batch)
        m = te.placeholder(tuple(tirx.const(e, "int64") for e in shape), "float32", "m")
    y = attention(q, k, v, m, DEPTH**-0.5, guarded, queries)
    tensors = [*operands, *([] if m is None else [m]), y]
    func = te.create_prim_func(tensors, index_dtype_override="int64")
    attribute = [tirx.FloatImm("float64", DEPTH**-0.5), guarded, *heads_first]
    return func.with_attr(OPEN, attribute)


def shapes(queries: int, keys: int, groups: int, batch: int = 1) -> tuple[tuple[int, ...], ...]:
    q, k, v = (queries, HEADS, DEPTH), (keys, groups, DEPTH), (keys, groups, WIDTH)
    return (batch, *q), (batch, *k), (batch, *v)


def bias_shape(queries: int, keys: int, bias: str, batch: int = 1) -> tuple[int, ...]:
    """Keys before queries; rows to spare where there is a column for each query."""
    heads, columns = BIASES[bias]
    spare = SPARE_ROWS if columns else 0
    return (batch, HEADS if heads else 1, keys + spare, queries if columns else 1)


def open_func(
    which: str,
    bias: str = "",
    groups: int = HEADS,
    guarded: bool = False,
    heads_first: tuple[bool, ...] = (False, False, False),
) -> PrimFunc:
    """`which` of the lengths is open: q, k, both, or one for both, or this and the batch."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    if which == "same":
        points, symbols = [(31,), (53,)], [n]
        lengths = [(31, 31), (53, 53)]
    elif which == "qk":
        points = lengths = [(31, 29), (53, 29), (31, 67)]
        symbols = [n, m]
    elif which == "batch":
        points = [(31, 2), (53, 2), (31, 3)]
        symbols, lengths = [n, m], [(31, 31), (53, 53), (31, 31)]
    else:
        points, symbols = [(31,), (53,)], [n]
        lengths = [(31, 17), (53, 17)] if which == "q" else [(5, 31), (5, 53)]
    batches = [point[1] if which == "batch" else 1 for point in points]
    made = [
        static(*each, bias, groups, guarded, heads_first, batch)
        for each, batch in zip(lengths, batches, strict=True)
    ]
    func = generalised(made, points, symbols)
    assert func is not None
    return func


def built(func: PrimFunc) -> Any:
    kernel = IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(kernel, Target(HOST.target), tir_pipeline="tvm_ext")


def arrays(queries: int, keys: int, bias: str, groups: int, batch: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(queries * 1000 + keys)
    q, k, v = (
        rng.standard_normal(shape).astype("float32")
        for shape in shapes(queries, keys, groups, batch)
    )
    if not bias:
        return [q, k, v]
    m = rng.standard_normal(bias_shape(queries, keys, bias, batch)).astype("float32")
    return [q, k, v, m]


def wanted(given: list[np.ndarray], keys: int, groups: int) -> np.ndarray:
    q, k, v, *m = given
    k, v = (np.repeat(one, HEADS // groups, 2) for one in (k, v))
    turned = [one.swapaxes(2, 3)[..., :keys] for one in m]
    return expected(q, k, v, *turned)


def run(
    kernel: Any, given: list[np.ndarray], heads_first: tuple[bool, ...] = (False, False, False)
) -> np.ndarray:
    out = tvm.runtime.tensor(np.full((*given[0].shape[:2], HEADS, WIDTH), np.nan, "float32"))
    lie = [
        np.ascontiguousarray(one.swapaxes(1, 2)) if first else one
        for one, first in zip(given, (*heads_first, False), strict=False)
    ]
    kernel["main"](*map(tvm.runtime.tensor, lie), out)
    return out.numpy()


def check_lengths(kernel: Any, which: str, bias: str = "", groups: int = HEADS) -> None:
    few = LENGTHS[1::3]
    pairs = {
        "same": [(n, n) for n in LENGTHS],
        "qk": list(product(few, few)),
        "q": [(n, 17) for n in LENGTHS],
        "k": [(5, n) for n in LENGTHS],
    }
    for queries, keys in pairs[which]:
        given = arrays(queries, keys, bias, groups)
        y = wanted(given, keys, groups)
        error = np.abs(run(kernel, given) - y).max() / np.abs(y).max()
        assert error < BOUND, (queries, keys, error)


@pytest.mark.parametrize("which", ["same", "qk", "q", "k"])
def test_any_lengths(which: str) -> None:
    planned = plan(make_task(open_func(which), "attention"), HOST)
    assert planned.option.source == "picker", planned.reasons
    check_lengths(built(planned.func), which)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("which", ["same", "qk"])
def test_biases(which: str, bias: str) -> None:
    planned = plan(make_task(open_func(which, bias), "attention"), HOST)
    assert planned.option.source == "picker", planned.reasons
    check_lengths(built(planned.func), which, bias)


@pytest.mark.parametrize("bias", ["", *BIASES])
def test_any_number_of_texts_of_any_length(bias: str) -> None:
    task = make_task(open_func("batch", bias), "attention")
    planned = plan(task, HOST)
    assert planned.option.source == "picker", planned.reasons
    kernel = built(planned.func)
    assert not check(planned, kernel["main"])
    for batch, length in product((1, 2, 5), LENGTHS[1::2]):
        given = arrays(length, length, bias, HEADS, batch)
        y = wanted(given, length, HEADS)
        error = np.abs(run(kernel, given) - y).max() / np.abs(y).max()
        assert error < BOUND, (batch, length, error)


def test_heads_that_share_keys() -> None:
    planned = plan(make_task(open_func("same", "both", groups=1), "attention"), HOST)
    assert planned.option.source == "picker", planned.reasons
    check_lengths(built(planned.func), "same", "both", groups=1)


@pytest.mark.parametrize("heads_first", [(False, True, True), (True, False, True)])
def test_heads_before_positions(heads_first: tuple[bool, ...]) -> None:
    """Keys and values that were kept of words before."""
    func = open_func("k", "keys", heads_first=heads_first)
    planned = plan(make_task(func, "attention"), HOST)
    assert planned.option.source == "picker", planned.reasons
    kernel = built(planned.func)
    for keys in LENGTHS:
        given = arrays(5, keys, "keys", HEADS)
        y = wanted(given, keys, HEADS)
        error = np.abs(run(kernel, given, heads_first) - y).max() / np.abs(y).max()
        assert error < BOUND, (keys, error)


@cache
def some_plans() -> list[Any]:
    """One of each width of blocks, with and without copies, of a head in a task or of several."""
    task = make_task(open_func("same", "both"), "attention")
    found = OpenAttention.of(task.original)
    assert found is not None
    (one,) = parts(task, HOST)
    chosen = {}
    for cores in (1, 2, 4):
        hardware: HardwareModel = replace(HOST, cores=cores)
        for option, tiles in _options(one, hardware, None, []):
            key = tiles.queries, tiles.whole, option.plan.staged if option.plan else ()
            chosen.setdefault(key, tiles)
    return [(task, found, tiles) for tiles in chosen.values()]


@pytest.mark.parametrize("place", range(4))
def test_forms_of_plans(place: int) -> None:
    plans = some_plans()
    assert len(plans) > 3
    for task, found, tiles in plans[place::4]:
        check_lengths(built(_for_any_lengths(task, found, tiles)), "same", "both")


def test_queries_whose_keys_are_all_masked() -> None:
    planned = plan(make_task(open_func("same", "both", guarded=True), "attention"), HOST)
    kernel = built(planned.func)
    for n in LENGTHS:
        given = arrays(n, n, "both", HEADS)
        given[3][..., n // 2] = -np.inf  # all keys of a query
        y = run(kernel, given)
        assert (y[:, n // 2] == 0).all()
        assert np.isfinite(y).all()


def test_it_is_verified_and_a_wrong_one_is_seen() -> None:
    task = make_task(open_func("same"), "attention")
    planned = plan(task, HOST)
    kernel = built(planned.func)
    assert not check(planned, kernel["main"])

    def short(q: Any, k: Any, v: Any, y: Any) -> None:
        kernel["main"](q, k, v, y)
        y.copyfrom(y.numpy() * np.float32(1.01))

    assert "slices" in check(planned, short)


def test_what_is_tuned_is_of_a_typical_length(tmp_path: Any) -> None:
    """A record of it is the plan for all lengths."""
    task = make_task(open_func("same"), "attention")
    (one,) = parts(task, HOST)
    assert one.graph is not None
    assert {TYPICAL} < {extent for node in one.graph.nodes for extent in node.extents}
    from tvm_ext.tuner import tune_tir

    found = tune_tir(one.original, trials=4, log=tmp_path / "log.jsonl")
    assert found.plan is not None
    database = Database.open(tmp_path / "log.jsonl")
    tried = database.typical(one.signature, HOST.fingerprint())
    fits = [each for each in tried if _Plan.of(each, TYPICAL) is not None]
    planned = plan(task, HOST, database)
    assert planned.option.source == ("log" if fits else "picker")
    check_lengths(built(planned.func), "same")
