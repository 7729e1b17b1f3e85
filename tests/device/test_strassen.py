"""Products by seven products of quarters equal direct ones, in every form of plan, on awkward
shapes, within the bounds that `compute.strassen` states."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from guard_pages import between_pages
from this_host import skip_unless_it_runs

import tvm_ext
from tvm_ext.compute.strassen import pack_quarters, packed_shape, strassen
from tvm_ext.errors import PlanError
from tvm_ext.graph import multiply_quarters
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick, predict
from tvm_ext.search.annotate import Annotator
from tvm_ext.search.neighbours import neighbours
from tvm_ext.search.sketch import sketches
from tvm_ext.tile.legal import check_plan
from tvm_ext.tile.plan import TilePlan, with_extent
from tvm_ext.tile.strassen import COLUMNS, QUARTER, ROWS, STEPS
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import PrimFunc, Target, constant, relax, te, tirx, tvm

BOUND = 2e-6
"""max|error| / max|y| against float64."""
SHAPES = {
    # name: (rows, steps, columns)
    "even": ((64,), 96, 192),
    "odd": ((99,), 96, 160),
    "one row": ((1,), 32, 64),
    "two rows": ((2,), 2, 32),
    "prime": ((103,), 62, 96),
    "image": ((1, 14, 14), 128, 64),
    "odd image": ((1, 7, 7), 64, 192),
    "images of odd rows": ((3, 5, 7), 34, 32),
    "tails": ((2, 41), 100, 224),
    "many steps": ((24,), 4096, 64),
}


def program(name: str, machine: str = "cpu/host") -> PrimFunc:
    """The product with a bias and a ReLU behind it."""
    rows, inner, columns = SHAPES[name]
    lanes = resolve(machine).lanes(4)
    x = te.placeholder((prod(rows), inner), "float32", "x")
    w = te.placeholder(packed_shape(inner, columns, lanes), "float32", "w")
    b = te.placeholder((columns,), "float32", "b")
    y = strassen(x, w, (*rows, columns))
    zero = tirx.const(0.0, "float32")
    z = te.compute(y.shape, lambda *at: te.max(y[at] + b[at[-1]], zero), name="bias_relu")
    return te.create_prim_func([x, w, b, z])


def arrays(name: str) -> tuple[np.ndarray, ...]:
    """Input, weight, bias, and the product in float64."""
    rows, inner, columns = SHAPES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((prod(rows), inner)).astype("float32")
    w = (rng.standard_normal((inner, columns)) / inner**0.5).astype("float32")
    b = rng.standard_normal(columns).astype("float32")
    expected = np.maximum(x.astype("float64") @ w + b, 0)
    return x, w, b, expected.reshape(*rows, columns)


def run(func: PrimFunc, plan: TilePlan, name: str, x: np.ndarray, machine: str) -> np.ndarray:
    _, w, b, expected = arrays(name)
    built = build(write(func, plan), Target(resolve(machine).target))
    assert isinstance(built, Built), built
    out = tvm.runtime.tensor(np.full(expected.shape, np.nan, "float32"))
    packed = pack_quarters(w, resolve(machine).lanes(4))
    built.main(tvm_ffi.from_dlpack(x), *map(tvm.runtime.tensor, (packed, b)), out)
    return out.numpy()


def some_plans(func: PrimFunc, machine: str) -> list[TilePlan]:
    """The first choice, and the best of each form, whole or in parts, with tails of register tiles
    or without."""
    prepared = prepare(func)
    assert prepared is not None
    plans = [one.plan for one in pick(prepared.graph, resolve(machine), 1000)]
    forms = {}
    for plan in reversed(plans):
        core, register = plan.at("core").extents, plan.at("register").extents
        whole = prepared.graph.nodes[plan.anchor].extents
        blocks = core[COLUMNS] > plan.at("l2").extents[COLUMNS]
        cut = core[ROWS] < whole[ROWS], core[COLUMNS] < whole[COLUMNS], blocks
        forms[(plan.attach[0].level, *cut, core[ROWS] % register[ROWS] > 0)] = plan
    return list(dict.fromkeys((plans[0], *forms.values())))


@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_direct_product(name: str) -> None:
    x, *_, expected = arrays(name)
    func = program(name)
    for plan in some_plans(func, "cpu/host"):
        assert plan.rule == "strassen"
        error = np.abs(run(func, plan, name, x, "cpu/host") - expected).max()
        assert error < BOUND * np.abs(expected).max(), plan


@pytest.mark.parametrize("machine", ["cpu/x86-sse", "cpu/x86-avx2", "cpu/x86-avx512"])
def test_narrower_vectors(machine: str) -> None:
    skip_unless_it_runs(machine)
    x, *_, expected = arrays("odd image")
    func = program("odd image", machine)
    for plan in some_plans(func, machine):
        error = np.abs(run(func, plan, "odd image", x, machine) - expected).max()
        assert error < BOUND * np.abs(expected).max(), plan


def test_the_last_of_an_odd_number_of_rows_reads_nothing_behind_it() -> None:
    x, *_, expected = arrays("odd")
    func = program("odd")
    for plan in some_plans(func, "cpu/host"):
        out = run(func, plan, "odd", between_pages(x, at_end=True), "cpu/host")
        assert np.abs(out - expected).max() < BOUND * np.abs(expected).max()


def test_plans_of_the_search_equal_it_too() -> None:
    x, *_, expected = arrays("tails")
    func = program("tails")
    prepared, source = prepare(func), random.Random(0)
    assert prepared is not None
    graph, hardware = prepared.graph, resolve("cpu/host")
    found = sketches(graph, 2)
    assert [one.derivation[0] for one in found] == ["strassen at root", "strassen at core"]
    for sketch in found:
        drawn = list(Annotator(graph, hardware.lanes(4), source).plans(sketch, 4))
        assert len(drawn) == 4
        for plan in drawn:
            assert predict(graph, plan, hardware).latency_us > 0
            assert {other.attach for other in neighbours(graph, plan)} > {plan.attach}
            error = np.abs(run(func, plan, "tails", x, "cpu/host") - expected).max()
            assert error < BOUND * np.abs(expected).max(), plan


def test_illegal_plans_are_refused() -> None:
    prepared = prepare(program("even"))
    assert prepared is not None
    graph = prepared.graph
    plan = pick(graph, resolve("cpu/host"))[0].plan
    check_plan(graph, plan)
    for level, axis, size, reason in (
        ("core", ROWS, 7, "divide"),
        ("core", COLUMNS, 80, "divide"),
        ("core", QUARTER, 6, "order"),
        ("core", STEPS, 24, "order"),
        ("register", STEPS, 5, "divide"),
        ("register", QUARTER, 7, "unroll"),
        ("l2", COLUMNS, 80, "divide"),
        ("l2", ROWS, 3, "divide"),
    ):
        with pytest.raises(PlanError) as raised:
            check_plan(graph, with_extent(plan, level, axis, size))
        assert raised.value.reason == reason, (level, axis)


def test_large_small_and_missing_numbers_stay_with_their_pair() -> None:
    func, (x, *_, expected) = program("even"), arrays("even")
    plan = some_plans(func, "cpu/host")[0]
    huge = np.float32(1e37)
    for scale in (huge, np.float32(1e-37)):
        _, w, b, _ = arrays("even")
        exact = np.maximum((x * scale).astype("float64") @ w + b, 0)
        out = run(func, plan, "even", x * scale, "cpu/host")
        assert np.isfinite(out).all()
        assert np.abs(out - exact).max() < BOUND * max(np.abs(exact).max(), 1)
    x[6, 3] = np.nan
    out = run(func, plan, "even", x, "cpu/host")
    others = [row for row in range(len(x)) if row not in (6, 7)]
    assert np.isfinite(out[others]).all()
    assert np.abs(out[others] - expected[others]).max() < BOUND * np.abs(expected).max()


def layer(rows: tuple[int, ...], inner: int, columns: int, *, norm: bool) -> Any:
    """A product with a bias and a residual, or with a layer norm behind them as well."""
    rng = np.random.default_rng(1)
    weight = (rng.standard_normal((inner, columns)) / inner**0.5).astype("float32")
    bias = rng.standard_normal(columns).astype("float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((*rows, inner), "float32"))
    r = relax.Var("r", relax.TensorType((*rows, columns), "float32"))
    with builder.function("main", [x, r]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, constant(weight)))
            y = builder.emit(relax.op.add(relax.op.add(y, constant(bias)), r))
            if norm:
                one, zero = (constant(np.full(columns, v, "float32")) for v in (1.0, 0.0))
                y = builder.emit(relax.op.nn.layer_norm(y, one, zero, axes=[-1]))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.finalize(), weight, bias


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rows", [(1, 197), (2, 16, 16)])
def test_a_model_takes_it_with_what_comes_behind(
    rows: tuple[int, ...], norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiply_quarters, "WORTH", 100.0)  # on any machine
    multiply_quarters.pays.cache_clear()
    module, weight, bias = layer(rows, 768, 512, norm=norm)
    compiled = tvm_ext.compile(module, "cpu")
    plans = [group.plan for group in compiled.manifest.groups if group.plan is not None]
    assert any(part.rule == "strassen" for plan in plans for part in plan.parts())
    rng = np.random.default_rng(2)
    x = rng.standard_normal((*rows, 768)).astype("float32")
    r = rng.standard_normal((*rows, 512)).astype("float32")
    expected = x.astype("float64") @ weight + bias + r
    if norm:
        centred = expected - expected.mean(-1, keepdims=True)
        expected = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5)
    multiply_quarters.pays.cache_clear()
    error = np.abs(compiled({"x": x, "r": r})[0] - expected).max()
    assert error < 2 * BOUND * np.abs(expected).max()
