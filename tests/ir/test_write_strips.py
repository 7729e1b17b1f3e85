"""Strips of products with views between: written, or refused in TVM's words, never an error."""

from __future__ import annotations

import pytest

from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.picker import pick_strips
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import PrimFunc, is_scheduled, te, topi

HARDWARE = get("cpu/x86-avx512")
ROWS = 1024


def two_products(columns: int, *views: tuple[int, ...]) -> PrimFunc:
    """x @ w, seen as several shapes one after another, @ v."""
    x = te.placeholder((ROWS, 16), name="x")
    w, v = (te.placeholder(shape, name="w") for shape in ((16, columns), (columns, 16)))
    between = topi.matmul(x, w)
    for view in (*views, (ROWS, columns)):
        between = topi.reshape(between, view)
    func = te.create_prim_func([x, w, v, topi.matmul(between, v)])
    return func.with_attr("global_symbol", "main")


def written(func: PrimFunc) -> PrimFunc:
    prepared = prepare(func)
    assert prepared is not None
    return write(func, pick_strips(prepared.graph, HARDWARE)[0].plan)


def test_a_view_of_the_same_rows() -> None:
    assert is_scheduled(written(two_products(16, (32, 32, 16), (1, 32, 32, 16))))


@pytest.mark.parametrize(
    ("columns", "views", "reason"),
    [
        (16, ((32, 32, 16), (16, 32, 32), (32, 32, 16)), "schedule"),
        (24, ((8, 3072),), "extent"),
    ],
)
def test_what_tvm_cannot_bound_is_refused(
    columns: int, views: tuple[tuple[int, ...], ...], reason: str
) -> None:
    with pytest.raises(PlanError) as refusal:
        written(two_products(columns, *views))
    assert refusal.value.reason == reason


def test_a_strip_computes_what_it_takes_and_no_more() -> None:
    """A sum behind a view, written beside its image: TVM sees no bound, and 16 strips would compute
    all of it each (ZoeDepth's head: 142 ms in place of 37)."""
    x, w = te.placeholder((64, 64, 32), name="x"), te.placeholder((32,), name="w")
    v, u = te.placeholder((33, 80), name="v"), te.placeholder((80, 4), name="u")
    k, c, d = (te.reduce_axis((0, extent)) for extent in (32, 33, 80))
    dots = te.compute((64, 64, 1), lambda i, j, _: te.sum(x[i, j, k] * w[k], k), name="dots")
    seen = topi.reshape(topi.reshape(topi.nn.relu(dots), (64 * 64,)), (64, 64, 1))
    both = topi.concatenate([x, seen], axis=-1)
    wide = te.compute((64, 64, 80), lambda i, j, n: te.sum(both[i, j, c] * v[c, n], c))
    bent = topi.tanh(wide)
    last = te.compute((64, 64, 4), lambda i, j, n: te.sum(bent[i, j, d] * u[d, n], d))
    with pytest.raises(PlanError, match=r"a strip computes .* of dots") as refusal:
        written(te.create_prim_func([x, w, v, u, last]))
    assert refusal.value.reason == "recompute"
