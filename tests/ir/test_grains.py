"""Which loops are taken into the loop over tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_ext.tile import LevelTile, Tile, TilePlan
from tvm_ext.tir import write
from tvm_ext.tir.grains import GRAINS
from tvm_ext.tvm_api import PrimFunc, structural_walk, te, tirx
from tvm_ext.tvm_steal import STEAL


def product(size: int) -> PrimFunc:
    a, b = (te.placeholder((size, size), name=name) for name in "ab")
    r = te.reduce_axis((0, size), name="r")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    return te.create_prim_func([a, b, c])


def plan(core: int, columns: int, size: int, staged: tuple[int, ...] = ()) -> TilePlan:
    """`core` rows a task, register tiles of 4 rows by so many columns."""
    core_tile, register = Tile((core, size, size)), Tile((4, columns, 4))
    levels = (LevelTile("core", core_tile), LevelTile("register", register))
    return TilePlan("tile", 0, levels, (1, 0, 2), 2, 16, 4, staged=staged)


def tasks(func: PrimFunc) -> int:
    found: list[Any] = []
    structural_walk(func.body, (tirx.For, found.append))
    (loop,) = (one for one in found if one.kind == tirx.ForKind.PARALLEL)
    return int(loop.extent)


@pytest.mark.parametrize(
    ("size", "chosen", "count"),
    [
        (512, plan(256, 64, 512), 2 * 8),  # the loop over columns as well
        (512, plan(256, 64, 512, staged=(1,)), 2),  # what a task copies is copied once
        (512, plan(32, 64, 512), GRAINS),  # there are enough
        (500, plan(252, 48, 500), 2 * 11),  # tails that are moved back
        (208, plan(104, 48, 208), 2),  # too little work
        (240, plan(120, 4, 240), 2),  # 60 columns of tiles: too little work for each
    ],
)
def test_tasks_of_a_product(size: int, chosen: TilePlan, count: int) -> None:
    assert tasks(write(product(size), chosen)) == count


def test_small_functions_are_not_worth_it() -> None:
    marked = [
        STEAL in write(product(size), plan(size // 2, 16, size)).attrs for size in (32, 160, 512)
    ]
    assert marked == [False, False, True]
