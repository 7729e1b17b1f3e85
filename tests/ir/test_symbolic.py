"""Functions with extents that are not known: what they can be cut along, and the tiles they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fused_modules import HARDWARE
from hypothesis import given
from hypothesis import strategies as some

from tvm_ext.compute import maths
from tvm_ext.compute.trigonometry import cos, sin
from tvm_ext.errors import PlanError
from tvm_ext.passes import graph_passes
from tvm_ext.planner import make_task
from tvm_ext.symbolic import _least, parts, plan
from tvm_ext.tile.plan import LevelTile, Tile, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tir.symbolic import TYPICAL, cuts, instance, symbols, tells
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    Target,
    constant,
    is_scheduled,
    mark_written,
    relax,
    structural_equal,
    te,
    tirx,
    topi,
)

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def placeholder(name: str, *shape: Any) -> Any:
    return te.placeholder(shape, "float32", name)


def dense(*rows: Any) -> PrimFunc:
    """Rows times a matrix, with what is added to them."""
    x, w = placeholder("x", *rows, 12), placeholder("w", 12, 20)
    k = te.reduce_axis((0, 12), "k")
    y = te.compute((*rows, 20), lambda *at: te.sum(x(*at[:-1], k) * w[k, at[-1]], axis=k), name="y")
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def of_rows(value: Callable[[Any, Any, Any], Any], *extra: Any) -> PrimFunc:
    """y[i, j] = value(x, i, j), with n rows of 8."""
    x = placeholder("x", N, 8)
    y = te.compute((N, 8), lambda i, j: value(x, i, j), name="y")
    return te.create_prim_func([x, *extra, y])


def test_symbols_are_found_and_filled_in() -> None:
    func = dense(N, M)
    assert symbols(func) == (N, M)
    made = instance(func, {N: 2, M: 3})
    assert made is not None
    assert symbols(made) == ()
    assert [tuple(map(int, param.shape)) for param in made.params] == [
        (2, 3, 12),
        (12, 20),
        (2, 3, 20),
    ]


def test_rows_are_cut_and_the_matrix_is_not() -> None:
    (cut,) = cuts(dense(N)) or ()
    assert cut.symbols == (N,)
    assert cut.dims == ((0, 1), None, (0, 1))


@pytest.mark.parametrize("function", [sin, cos, maths.exp, maths.tanh])
def test_functions_of_rows_are_cut(function: Callable[[Any], Any]) -> None:
    """A sine has a constant that is no number, which does not equal itself."""
    assert cuts(of_rows(lambda x, i, j: function(x[i, j])))


def test_sentences_and_their_words_are_counted_as_one() -> None:
    (cut,) = cuts(dense(N, M)) or ()
    assert cut.symbols == (N, M)
    assert cut.sizes(5) == {N: 1, M: 5}


def test_rows_that_are_no_outermost_axis() -> None:
    (cut,) = cuts(dense(4, N)) or ()
    assert cut.dims == ((1, 1), None, (1, 1))


def test_what_one_tensor_lacks_is_a_cut_of_its_own() -> None:
    x, p = placeholder("x", N, M, 8), placeholder("p", M, 8)
    y = te.compute((N, M, 8), lambda b, i, j: x[b, i, j] + p[i, j], name="y")
    outer, inner = cuts(te.create_prim_func([x, p, y])) or ()
    assert (outer.symbols, outer.dims) == ((N,), ((0, 1), None, (0, 1)))
    assert (inner.symbols, inner.dims) == ((M,), ((1, 1), (0, 1), (1, 1)))


def test_axes_that_grow_by_several_elements() -> None:
    """Rows flattened: a slice is six of them."""
    x = placeholder("x", N * 6, 8)
    y = te.compute((N, 6, 8), lambda b, i, j: x[b * 6 + i, j], name="y")
    (cut,) = cuts(te.create_prim_func([x, y])) or ()
    assert cut.dims == ((0, 6), (0, 1))


ROW_SUM = te.reduce_axis((0, 8), "k")
REFUSED = {
    "a neighbour": of_rows(lambda x, i, j: x[tirx.max(i - 1, 0), j] + x[i, j]),
    "the place": of_rows(lambda x, i, j: x[i, j] + i.astype("float32")),
    "the extent": of_rows(lambda x, i, j: x[i, j] / N.astype("float32")),
    "the first row": of_rows(lambda x, i, j: x[i, j] + x[0, j]),
    "rows in reverse": of_rows(lambda x, i, j: x[N - 1 - i, j]),
    "a condition": of_rows(lambda x, i, j: tirx.if_then_else(i < 3, x[i, j], x[i, j] * 2)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_slices_that_are_not_alike(kind: str) -> None:
    assert cuts(REFUSED[kind]) is None


def test_what_is_written_loop_by_loop_is_not_cut() -> None:
    func = mark_written(dense(N), 100)
    planned = plan(make_task(func, "dense"), HARDWARE)
    assert planned.option.source == "written"
    assert structural_equal(planned.func, func)
    assert len(parts(planned.task, HARDWARE)) == 1


def test_a_table_is_not_read_by_place() -> None:
    """Every row would read what the first one does."""
    x, p = placeholder("x", N, 8), placeholder("p", 512, 8)
    y = te.compute((N, 8), lambda i, j: x[i, j] + p[i, j], name="y")
    assert cuts(te.create_prim_func([x, p, y])) is None


def test_what_repeats_within_a_slice_is_read_by_place() -> None:
    x, p = placeholder("x", N * 6, 8), placeholder("p", 4, 8)
    b = placeholder("b", N, 8)

    def by_place(i: Any, j: Any, every: int) -> Any:
        return x[i, j] + p[i % every, j] + b[i // 6, j]

    y = te.compute((N * 6, 8), lambda i, j: by_place(i, j, 3), name="y")
    assert cuts(te.create_prim_func([x, p, b, y])) is not None
    z = te.compute((N * 6, 8), lambda i, j: by_place(i, j, 4), name="z")
    assert cuts(te.create_prim_func([x, p, b, z])) is None


def test_an_extent_that_no_tensor_tells() -> None:
    x = placeholder("x", N * 6, 8)
    y = te.compute((N * 6, 8), lambda i, j: x[i, j] + 1, name="y")
    func = te.create_prim_func([x, y])
    assert not tells(func, N)
    assert cuts(func) is None
    (cut,) = cuts(PrimFunc([*func.params, N], func.body, attrs=func.attrs)) or ()
    assert cut.dims == ((0, 6), (0, 6))


def test_a_sum_over_what_is_not_known() -> None:
    x = placeholder("x", N, 8)
    k = te.reduce_axis((0, N), "k")
    column = te.compute((8,), lambda j: te.sum(x[k, j], axis=k), name="column")
    assert cuts(te.create_prim_func([x, column])) is None
    y = te.compute((N, 8), lambda i, j: x[i, j] - column[j], name="y")
    assert cuts(te.create_prim_func([x, y])) is None


def test_two_axes_of_one_extent() -> None:
    x = placeholder("x", N, 8)
    k = te.reduce_axis((0, 8), "k")
    y = te.compute((N, N), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k), name="y")
    assert cuts(te.create_prim_func([x, y])) is None


def test_prepared_at_typical_extents() -> None:
    prepared = prepare(dense(N, M))
    assert prepared is not None
    assert prepared.graph.nodes[0].extents == (1, TYPICAL, 20, 12)


def test_no_plan_is_written_as_if_typical_extents_were_all() -> None:
    plan = TilePlan("loose", 0, (LevelTile("core", Tile(())),), (), parallel=1, lanes=8)
    with pytest.raises(PlanError, match="extents that are not known"):
        write(dense(N), plan)


@given(some.lists(some.floats(0.5, 2.0), min_size=1, max_size=4), some.integers(1, 200))
def test_what_is_left_takes_the_least_time(rates: list[float], slices: int) -> None:
    """Tiles from the largest down do every slice, and none costs more than single slices do."""
    sizes = [4**place for place in reversed(range(len(rates)))]
    each_us = [size * rate for size, rate in zip(sizes, sorted(rates), strict=True)]
    least = _least(sizes, each_us)
    left, total_us = slices, 0.0
    for size, us, fewest in zip(sizes, each_us, least, strict=True):
        count = left // size + (left % size >= fewest)
        left, total_us = max(0, left - count * size), total_us + count * us
    assert left == 0
    assert total_us <= slices * each_us[-1] * (1 + 1e-9)


def layer_norm_in_primitives(*shape: Any) -> IRModule:
    op, builder = relax.op, relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    scale = constant(np.ones(96, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            centred = builder.emit(op.subtract(x, op.mean(x, [-1], keepdims=True)))
            spread = op.mean(op.multiply(centred, centred), [-1], keepdims=True)
            inverse = op.rsqrt(op.add(spread, relax.const(1e-5, "float32")))
            made = op.multiply(op.multiply(centred, inverse), scale)
            result = builder.emit_output(builder.normalize(made))
        builder.emit_func_output(result)
    return builder.finalize()


@pytest.mark.parametrize("shape", [(N, 96), (N, M, 96), (4, N, 96)])
def test_rows_are_stitched_however_many(shape: tuple[Any, ...]) -> None:
    mod = layer_norm_in_primitives(*shape)
    with Target(HARDWARE.target):
        for step in graph_passes(HARDWARE):
            mod = step(mod)
    funcs = [func for func in mod.functions.values() if isinstance(func, PrimFunc)]
    assert len(funcs) == 1
    assert not is_scheduled(funcs[0])
    assert symbols(funcs[0])
