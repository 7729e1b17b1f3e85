"""Predicates of vector loops: where they say that an axis ends, no loop is left that holds one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_ext.tir.cut_vectors import with_cut_vectors
from tvm_ext.tvm_api import PrimFunc, Schedule, s_tir, structural_walk, te, tirx, tvm

LANES = 16


def doubled(rows: int, columns: int) -> PrimFunc:
    """y = 2 x in register tiles of 4 rows by two vectors, as large as it takes to hold all of x."""
    x = te.placeholder((rows, columns), name="x")
    func = te.create_prim_func([x, te.compute((rows, columns), lambda i, j: 2 * x[i, j], name="y")])
    schedule = Schedule(func)
    row, column = schedule.get_loops(schedule.get_sblock("y"))
    row, inner = schedule.split(row, [None, 4])
    column, vector, lane = schedule.split(column, [None, 2, LANES])
    schedule.reorder(row, column, inner, vector, lane)
    schedule.unroll(inner)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    return schedule.mod["main"]


def vectors(func: PrimFunc) -> list[tuple[int, bool]]:
    """Lanes of each vector loop, and whether its block has a predicate."""
    found: list[tuple[int, bool]] = []

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            block = loop.body
            assert isinstance(block, s_tir.SBlockRealize)
            found.append((int(loop.extent), not isinstance(block.predicate, tirx.IntImm)))

    structural_walk(func.body, (tirx.For, visit))
    return found


def ran(func: PrimFunc, x: np.ndarray) -> np.ndarray:
    kernel = tvm.compile(func.with_attr("global_symbol", "main"), target="llvm")["main"]
    y = tvm.runtime.empty(x.shape)
    y.copyfrom(np.full_like(x, np.nan))
    kernel(tvm.runtime.tensor(x), y)
    return y.numpy()


@pytest.mark.parametrize(
    ("columns", "parts"), [(32, ()), (49, ()), (52, (4,)), (45, (8, 4)), (15, (8, 4, 2)), (80, ())]
)
@pytest.mark.parametrize("rows", [8, 7])
def test_whole_vectors_and_powers_of_two(rows: int, columns: int, parts: tuple[int, ...]) -> None:
    func = doubled(rows, columns)
    cut = with_cut_vectors(func)
    whole = [(LANES, rows % 4 > 0)] if columns % 32 == 0 else [(LANES, False)]
    assert vectors(cut) == [*whole, *((width, False) for width in parts)]
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype="float32")
    np.testing.assert_array_equal(ran(cut, x), 2 * x)


def test_other_predicates_stay() -> None:
    """A vector that is not aligned with the axis it runs along."""
    x = te.placeholder((6, 7), name="x")
    func = te.create_prim_func([x, te.compute((6, 7), lambda i, j: 2 * x[i, j], name="y")])
    schedule = Schedule(func)
    fused = schedule.fuse(*schedule.get_loops(schedule.get_sblock("y")))
    _, lane = schedule.split(fused, [None, 4])
    schedule.vectorize(lane)
    func = schedule.mod["main"]
    data = np.random.default_rng(0).standard_normal((6, 7), dtype="float32")
    np.testing.assert_array_equal(ran(with_cut_vectors(func), data), 2 * data)
