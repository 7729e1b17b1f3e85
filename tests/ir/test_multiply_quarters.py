"""Which products are computed by quarters, and how their stages are read."""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.compute.strassen import pack_quarters, packed_shape, strassen
from tvm_ext.graph.multiply_quarters import MultiplyQuarters, pays
from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile.cut import cut
from tvm_ext.tile.held import Held, held
from tvm_ext.tile.strassen import Strassen, products_of_quarters, strassen_stages
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import IRModule, PrimFunc, constant, relax, te, tirx

HARDWARE = get("cpu/x86-avx512")


def product(rows: tuple[int, ...], inner: int, columns: int) -> IRModule:
    """x times a constant matrix, or by a convolution of 1 x 1 taps where x is an image."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((*rows, inner), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            if len(rows) == 3:
                weight = constant(np.ones((columns, 1, 1, inner), "float32"))
                layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
                y = relax.op.nn.conv2d(x, weight, **layouts)
            else:
                y = relax.op.matmul(x, constant(np.ones((inner, columns), "float32")))
            result = builder.emit_output(builder.emit(y))
        builder.emit_func_output(result)
    return builder.finalize()


def by_quarters(module: IRModule, **options: Any) -> bool:
    """Whether a product is, where that is predicted to take nine tenths of the time."""

    def predict_us(func: PrimFunc) -> float:
        graph = prepare(func).graph
        return 0.9 if strassen_stages(graph) else 1.0

    rewrite = MultiplyQuarters(**({"hardware": HARDWARE, "predict_us": predict_us} | options))
    names = [str(name.name_hint) for name in rewrite(module).functions]
    return any(name.startswith("strassen") for name in names)


@pytest.mark.parametrize("rows", [(128,), (3, 67), (1, 14, 14), (2, 7, 7)])
def test_products_and_points_are(rows: tuple[int, ...]) -> None:
    assert by_quarters(product(rows, 768, 1024))


def test_it_is_left_out_where_it_should_be() -> None:
    pays.cache_clear()
    assert not by_quarters(product((16,), 768, 1024))  # few rows
    assert not by_quarters(product((4096,), 32, 65536))  # few steps
    assert not by_quarters(product((128,), 769, 1024))  # no halves
    assert not by_quarters(product((128,), 768, 1040))  # halves of no whole vectors
    assert not by_quarters(product((128,), 128, 192))  # so narrow that strips hold it
    assert by_quarters(product((1, 16, 16), 128, 192))  # but not between convolutions
    assert not by_quarters(product((128,), 768, 1024), hardware=get("cuda/sm_90"))
    assert not by_quarters(product((307, 64), 768, 1024), extents=(307,))
    assert not by_quarters(product((1, 307, 64), 768, 1024), extents=(307,))
    hardly = lambda func: 0.98 if strassen_stages(prepare(func).graph) else 1.0  # noqa: E731
    assert not by_quarters(product((128,), 768, 1024), predict_us=hardly)


def test_sums_of_quarters_make_the_product() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 8)), rng.standard_normal((8, 64)).astype("float32")
    sums = pack_quarters(w, 16)
    assert sums.shape == packed_shape(8, 64, 16) == (7, 1, 4, 32)
    a = {(r, side): x[r::2, 4 * side : 4 * side + 4] for r in range(2) for side in range(2)}
    left = (
        a[0, 0] + a[1, 1],
        a[1, 0] + a[1, 1],
        a[0, 0],
        a[1, 1],
        a[0, 0] + a[0, 1],
        a[1, 0] - a[0, 0],
        a[0, 1] - a[1, 1],
    )
    m = [factor @ other[0] for factor, other in zip(left, sums, strict=True)]
    even = np.hstack([m[0] + m[3] - m[4] + m[6], m[2] + m[4]])
    odd = np.hstack([m[1] + m[3], m[0] - m[1] + m[2] + m[5]])
    np.testing.assert_allclose(even, (x @ w)[0::2], atol=1e-5)
    np.testing.assert_allclose(odd, (x @ w)[1::2], atol=1e-5)


def image_with_norm() -> PrimFunc:
    """Products of an image's points, and the sum of each row of results behind them."""
    x, w = te.placeholder((2 * 7 * 7, 64), name="x"), te.placeholder((7, 3, 32, 32), name="w")
    y = strassen(x, w, (2, 7, 7, 192))
    z = te.compute(y.shape, lambda *at: te.max(y[at], tirx.const(0.0)), name="relu")
    k = te.reduce_axis((0, 192), name="k")
    total = te.compute((2, 7, 7), lambda *at: te.sum(z[(*at, k)], axis=k), name="total")
    return te.create_prim_func([x, w, z, total])


def test_rows_of_an_image_are_counted_by_one_axis_and_its_stages_are_one_piece() -> None:
    graph = prepare(image_with_norm()).graph
    (found,) = products_of_quarters(graph)
    assert found == Strassen(0, 1, 2)
    assert strassen_stages(graph) is None  # a sum as well
    assert graph.nodes[found.product].extents == (7, 49, 96, 32)
    assert graph.nodes[found.last].extents == (98, 2, 96)
    assert [piece.stages for piece in cut(graph)] == [(0, 1, 2), (3,)]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(1, 23), min_size=1, max_size=3),
    steps=st.integers(1, 60),
    vectors=st.integers(1, 13),
    machine=st.sampled_from(["cpu/x86-avx512", "cpu/x86-avx2", "arm/neoverse-n1"]),
)
def test_plans_for_any_shape_can_be_written(
    rows: list[int], steps: int, vectors: int, machine: str
) -> None:
    hardware = get(machine)
    lanes, inner, columns = hardware.lanes(4), 2 * steps, 2 * hardware.lanes(4) * vectors
    x = te.placeholder((prod(rows), inner), name="x")
    w = te.placeholder(packed_shape(inner, columns, lanes), name="w")
    r = te.placeholder((*rows, columns), name="r")
    y = strassen(x, w, (*rows, columns))
    z = te.compute(y.shape, lambda *at: te.max(y[at] + r[at], tirx.const(0.0)), name="residual")
    func = te.create_prim_func([x, w, r, z])
    found = pick(prepare(func).graph, hardware, 3)
    assert found
    for candidate in found:
        assert candidate.plan.rule == "strassen"
        write(func, candidate.plan)


@pytest.mark.parametrize("machine", ["cpu/x86-avx512", "cpu/x86-avx2", "arm/neoverse-n1"])
@pytest.mark.parametrize("shape", [(128, 768, 3072), (49, 512, 2048), (3136, 64, 256)])
def test_plans_not_looked_at_closer_would_not_have_been_chosen(
    machine: str, shape: tuple[int, int, int]
) -> None:
    hardware, (rows, inner, columns) = get(machine), shape
    x = te.placeholder((rows, inner), name="x")
    w = te.placeholder(packed_shape(inner, columns, hardware.lanes(4)), name="w")
    func = te.create_prim_func([x, w, strassen(x, w, (rows, columns))])
    graph = prepare(func).graph
    for alone in (True, False):
        every = pick(graph, hardware, 10_000, alone=alone)
        assert len(every) > 30
        assert pick(graph, hardware, 3, alone=alone) == every[:3]


def test_a_cache_that_keeps_nothing_at_once_is_gone_over_by_all_rows_together() -> None:
    """128 x 3072 by 768, two cores of a Xeon: in two parts of the rows 2330 us, at once 1590."""
    known = {"l2": (2 << 20, 190.0), "l3": (480 << 20, 30.0), "dram": (32 << 30, 17.0)}
    levels = tuple(
        msgspec.structs.replace(level, size_bytes=size, gbps=gbps, total_gbps=2 * gbps)
        for level in HARDWARE.levels
        for size, gbps in [known.get(level.name, (level.size_bytes, level.gbps))]
    )
    peak = {"float32": 248.0}
    mesh = msgspec.structs.replace(
        HARDWARE, cores=2, peak_gflops=peak, levels=levels, shared_cache_cycles=123
    )
    x = te.placeholder((128, 3072), name="x")
    w = te.placeholder(packed_shape(3072, 768, 16), name="w")
    graph = prepare(te.create_prim_func([x, w, strassen(x, w, (128, 768))])).graph
    for machine, rows in ((mesh, [64, 32]), (mesh.running(0), [32, 64])):
        found = dict.fromkeys(
            one.plan.at("core").extents[1] for one in pick(graph, machine, 10_000, alone=True)
        )
        assert [one for one in found if one in rows] == rows


def test_a_block_of_products_is_held_and_the_sums_of_a_task() -> None:
    x, w = te.placeholder((128, 96), name="x"), te.placeholder((7, 4, 48, 32), name="w")
    func = te.create_prim_func([x, w, strassen(x, w, (128, 256))])
    graph = prepare(func).graph
    plan = next(
        one.plan
        for one in pick(graph, HARDWARE, 1000)
        if one.plan.attach[0].level == "core" and one.plan.at("l2") != one.plan.at("core")
    )
    sums, products, results = held(graph, plan)
    _, rows, columns, steps = plan.at("l2").extents
    assert sums == Held(7 * rows * steps * 4)
    assert products == Held(7 * rows * columns * 4)
    assert results is None
