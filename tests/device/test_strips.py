"""Kernels that compute products and norms strip by strip."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from chain_modules import Chain
from scheduled import HARDWARE, one_kernel, runner
from scipy import special

import tvm_ext
from tvm_ext import passes
from tvm_ext.compute.norm import softmax
from tvm_ext.hardware import get
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick_strips, predict
from tvm_ext.planner import make_task
from tvm_ext.tile import decode_plan, encode_plan
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc, Target, relax, structural_map, te, tirx, topi, tvm

BOUND = 1e-5
UNTOUCHED = np.float32(7e33)
CASES = {
    "block": (("norm", "dense 96 gelu", "dense 32", "skip"), (1, 64, 32)),
    "tails": (("norm", "dense 33 gelu", "dense 17"), (1, 62, 30)),
    "products": (("dense 48 gelu", "dense 48 gelu", "dense 5"), (70, 20)),
    "norm last": (("dense 40", "skip", "norm"), (2, 26, 40)),
    "images": (("norm", "dense 24", "norm"), (1, 12, 5, 16)),
    "batch": (("dense 31", "norm"), (6, 11, 29)),
    "tails in strips": (("dense 256 gelu", "dense 256", "skip"), (1, 32, 256)),
}


@pytest.mark.parametrize("name", CASES)
def test_strips_of_every_height(name: str) -> None:
    links, shape = CASES[name]
    chain = Chain.drawn(links, shape)
    mod = one_kernel(chain.module())
    (task,) = passes.tasks_of(mod).values()
    assert task.graph is not None
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    expected = chain.expected(x)
    candidates = pick_strips(task.graph, HARDWARE)
    assert candidates
    for candidate in candidates:
        plan = decode_plan(encode_plan(candidate.plan))
        assert plan == candidate.plan
        guess = predict(task.graph, plan, HARDWARE)
        assert guess.latency_us == pytest.approx(candidate.estimate.latency_us)
        scheduled = mod.clone()
        scheduled.update_func(scheduled.get_global_var(task.name), write(task.func, plan))
        error = np.abs(runner(scheduled)(x) - expected).max() / np.abs(expected).max()
        assert error < BOUND, plan


@pytest.mark.parametrize("name", CASES)
def test_a_strip_writes_its_own_rows_alone(name: str) -> None:
    """What two strips write, one of them wrong, is right if the right one happens to be last."""
    links, shape = CASES[name]
    mod = one_kernel(Chain.drawn(links, shape).module())
    (task,) = passes.tasks_of(mod).values()
    assert task.graph is not None
    for candidate in pick_strips(task.graph, HARDWARE):
        func = write(task.func, candidate.plan)
        kinds = [(tirx.For, first_of_parallel)]
        first = func.with_body(structural_map(func.body, kinds, order="post"))
        built = build(first, Target(HARDWARE.target))
        assert isinstance(built, Built), built
        *inputs, output = [[int(extent) for extent in param.shape] for param in func.params]
        result = tvm.runtime.tensor(np.full(output, UNTOUCHED, "float32"))
        given = [tvm.runtime.tensor(np.ones(extents, "float32")) for extents in inputs]
        built.main(*given, result)
        written = int((result.numpy() != UNTOUCHED).sum())
        assert written == candidate.plan.at("core").points, candidate.plan


def product(left: Any, right: Any) -> Any:
    """The last two axes of both multiplied."""
    *batch, rows, steps = left.shape
    k = te.reduce_axis((0, steps), "k")

    def body(*at: Any) -> Any:
        *outer, i, j = at
        return te.sum(left(*outer, i, k) * right(*outer, k, j), axis=k)

    return te.compute((*batch, rows, right.shape[-1]), body)


def unit(x: Any) -> Any:
    """Rows divided by their lengths."""
    return topi.divide(x, topi.sqrt(topi.sum(topi.multiply(x, x), -1, True)))


def cosine_attention(shape: tuple[int, ...], both: bool) -> PrimFunc:
    """Of keys, perhaps queries too, that are divided by their length, two masks added: rows of
    norms before a product, and those of a softmax behind it."""
    q, k, v = (te.placeholder(shape, "float32", name) for name in "qkv")
    mask = te.placeholder((shape[0], 1, shape[2], shape[2]), "float32", "mask")
    length = te.placeholder((*shape[:-1], 1), "float32", "length")
    queries = topi.divide(unit(q) if both else q, length)
    scores = product(queries, topi.transpose(unit(k), (0, 1, 3, 2)))
    scores = topi.add(topi.add(scores, mask), mask)
    mixed = product(softmax(scores, 3, HARDWARE.lanes(4)), v)
    return te.create_prim_func([q, k, v, mask, length, mixed])


@pytest.mark.parametrize("shape", [(4, 3, 64, 10), (6, 2, 49, 32), (2, 1, 16, 16)], ids=str)
@pytest.mark.parametrize("both", [False, True])
def test_rows_before_a_product_are_computed_before_it(shape: tuple[int, ...], both: bool) -> None:
    """One piece had been made of the norm's rows and the softmax's, and the norm came last; of two
    norms the length of the first was taken after it was divided by."""
    func = cosine_attention(shape, both)
    graph = make_task(func, "cosine").graph
    assert graph is not None
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) for _ in "qkv")
    mask = rng.standard_normal((shape[0], 1, shape[2], shape[2]))
    length = 1 + rng.random((*shape[:-1], 1))
    keys, queries = (x / np.sqrt((x * x).sum(-1, keepdims=True)) for x in (k, q))
    scores = (queries if both else q) / length @ keys.swapaxes(-1, -2)
    expected = special.softmax(scores + 2 * mask, -1) @ v
    candidates = pick_strips(graph, HARDWARE)
    assert candidates
    for candidate in candidates:
        built = build(write(func, candidate.plan), Target(HARDWARE.target))
        assert isinstance(built, Built), built
        result = tvm.runtime.empty(shape, "float32")
        given = (tvm.runtime.tensor(x.astype("float32")) for x in (q, k, v, mask, length))
        built.main(*given, result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_rows_that_end_with_a_sum_are_counted_by_its_results() -> None:
    """A norm's two sums are a piece, for what is added up over its rows is another: partial sums
    come first among the loops of a stage that has been moved, and were taken for its rows."""
    shape = (2, 36, 32)
    x, w = (te.placeholder(s, "float32", n) for s, n in ((shape, "x"), ((1, 2, 32, 32), "w")))
    k, a, b, c = (te.reduce_axis((0, n), v) for n, v in zip((32, 32, 32, 36), "kabc", strict=True))
    h = te.compute(shape, lambda s, i, j: te.sum(x[s, i, k] * w[0, s, k, j], axis=k), "product")
    rows = shape[:2]
    total = te.compute(rows, lambda s, i: te.sum(h[s, i, a], axis=a), "total")

    def off(s: Any, i: Any, j: Any) -> Any:
        return h[s, i, j] - total[s, i] * (1 / 32)

    square = te.compute(rows, lambda s, i: te.sum(off(s, i, b) * off(s, i, b), axis=b), "square")
    mean = te.compute(
        (2, 32),
        lambda s, j: te.sum(off(s, c, j) / te.sqrt(square[s, c] + 1.0), axis=c),
        "mean",
    )
    func = te.create_prim_func([x, w, mean])
    graph = make_task(func, "norm").graph
    assert graph is not None
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype("float32") for s in (shape, (1, 2, 32, 32))]
    product = given[0] @ given[1][0]
    centred = product - product.mean(-1, keepdims=True)
    expected = (centred / np.sqrt((centred**2).sum(-1, keepdims=True) + 1)).sum(1)
    candidates = pick_strips(graph, HARDWARE)
    assert candidates
    for candidate in candidates:
        built = build(write(func, candidate.plan), Target(HARDWARE.target))
        assert isinstance(built, Built), built
        result = tvm.runtime.empty((2, 32), "float32")
        built.main(*map(tvm.runtime.tensor, given), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)


def first_of_parallel(loop: Any) -> Any:
    """A parallel loop's first iteration."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    return tirx.For(loop.loop_var, loop.min, 1, loop.kind, loop.body)


def test_what_is_merged_has_a_plan_by_strips() -> None:
    """The nearest of 512 codes for each of 1024 vectors: a product and the least of its rows.
    Planned for a machine of the catalogue: on some hosts two kernels are faster."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((512, 64), dtype="float32")
    x = rng.standard_normal((1024, 64), dtype="float32")
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(x.shape, "float32"))
    lengths = relax.const((codes**2).sum(axis=1))
    with builder.function("main", [given]):
        with builder.dataflow():
            products = builder.emit(relax.op.matmul(given, relax.const(codes.T.copy())))
            twice = builder.emit(relax.op.multiply(products, relax.const(np.float32(2))))
            nearest = builder.emit_output(
                relax.op.argmin(builder.emit(relax.op.subtract(lengths, twice)), axis=-1)
            )
        builder.emit_func_output(nearest)
    compiled = tvm_ext.compile(builder.finalize(), target="cpu/x86-avx2", num_threads=2)
    (found,) = compiled(x)
    distances = ((x[:, None].astype("float64") - codes[None]) ** 2).sum(-1)
    assert (found.reshape(-1) == distances.argmin(1)).all()
    (group,) = compiled.manifest.groups
    assert (group.source, group.fallback) == ("picker", ())
    assert group.plan is not None
    assert group.plan.rule == "strips"


def test_planes_are_turned_by_squares_in_strips() -> None:
    """Vectors put together from 16 planes took longer than the products that read them."""
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal((48, 64, 1, 1)) / 8, rng.standard_normal((64, 48, 1, 1)) / 7]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 64, 24, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for weight in weights:
                given = relax.const(weight.astype("float32"))
                y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(y, given))))
            y = builder.emit_output(relax.op.mean(y, [2, 3]))
        builder.emit_func_output(y)
    mod = builder.finalize()
    hardware = msgspec.structs.replace(get("cpu/x86-avx512"), cores=2)  # where strips hold them
    for one in passes.graph_passes(hardware):
        mod = one(mod)
    tasks = [task for task in passes.tasks_of(mod).values() if "transpose" in task.name]
    found = [
        (task.func, candidate.plan)
        for task in tasks
        if task.graph is not None
        for candidate in pick_strips(task.graph, hardware)
        if candidate.plan.at("core").extents[2] % hardware.lanes(4) == 0
    ]
    assert found
    assert all("square" in write(func, plan).script() for func, plan in found)
