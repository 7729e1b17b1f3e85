"""Tiles moved back, and tiles left out: plain products of awkward shapes."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.tile import LevelTile, Tile, TilePlan
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc, Target, te, tvm

Sizes = tuple[int, int, int]


def product(m: int, n: int, k: int) -> PrimFunc:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    return te.create_prim_func([a, b, c])


def plan(core: Sizes, register: Sizes, parallel: int = 2, staged: tuple[int, ...] = ()) -> TilePlan:
    levels = (LevelTile("core", Tile(core)), LevelTile("register", Tile(register)))
    return TilePlan("tile", 0, levels, (1, 0, 2), parallel, 8, register[2], staged=staged)


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ((31, 67, 13), plan((31, 67, 13), (5, 16, 1), 0)),  # both axes, one task
        ((31, 67, 13), plan((10, 32, 13), (5, 16, 1))),  # register tiles outside on both axes
        ((31, 67, 13), plan((10, 48, 13), (5, 16, 1), staged=(1,))),  # with a copy that ends early
        ((31, 67, 13), plan((4, 32, 13), (1, 16, 1))),
        ((13, 80, 8), plan((13, 32, 8), (7, 16, 4), 1)),  # a loop for the rows' tail as well
        ((13, 72, 8), plan((13, 72, 8), (7, 24, 4), 0)),  # that loop alone
        ((7, 17, 3), plan((7, 17, 3), (7, 16, 1), 0)),  # a tile and one column
        ((1, 1000, 24), plan((1, 512, 24), (1, 64, 4))),
        ((64, 33, 16), plan((48, 33, 16), (4, 8, 4), 2)),  # tasks of unequal length
    ],
)
def test_products_of_awkward_shapes(sizes: Sizes, chosen: TilePlan) -> None:
    func = product(*sizes)
    text = write(func, chosen).script()
    assert "T.min(" in text or "pragma_loop_partition_hint" in text
    built = build(write(func, chosen), Target(resolve("cpu").target))
    assert isinstance(built, Built), built
    m, n, k = sizes
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype("float32") for shape in ((m, k), (k, n)))
    c = tvm.runtime.tensor(np.full((m, n), np.nan, "float32"))
    built.main(tvm.runtime.tensor(a), tvm.runtime.tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4, atol=1e-4)
