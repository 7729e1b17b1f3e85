"""Register tiles hand on what they computed: TVM bounds the copy by the tensor alone."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import packed_shape, winograd
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chain import IMAGE_FIRST
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tir import write
from tvm_ext.tir.requests import places
from tvm_ext.tir.tile_bounds import with_tile_bounds
from tvm_ext.tir.write import schedule
from tvm_ext.tvm_api import PrimFunc, te, tvm, variables

CHANNELS, LANES = 32, 16


def convolution(length: int) -> PrimFunc:
    """Three taps along a row, by Winograd: tiles of four."""
    geometry = ConvGeometry((3,), (1,), (1,), (1,), (1,), 1, CHANNELS, CHANNELS)
    x = te.placeholder((1, length, CHANNELS), "float32", "x")
    w = te.placeholder(packed_shape(geometry, LANES, 4), "float32", "w")
    return te.create_prim_func([x, w, winograd(x, w, geometry, 4)])


def plan(tiles: int, rows: int) -> TilePlan:
    """Tasks of so many tiles, so many to a register tile."""
    core = Tile((1, 6, 1, 1, tiles, CHANNELS, CHANNELS))
    register = Tile((1, 1, 1, 1, rows, CHANNELS, 4))
    return TilePlan(
        rule="chain",
        anchor=1,
        tiles=(LevelTile("core", core), LevelTile("register", register)),
        order=IMAGE_FIRST.order,
        parallel=IMAGE_FIRST.tasks,
        lanes=LANES,
        unroll=4,
        attach=(Attach(0, "core"), Attach(2, "core")),
    )


def copy_of_products(func: PrimFunc) -> Any:
    (found,) = (p for p in places(func.body) if p.realize.block.name_hint == "product_local")
    return found


@pytest.mark.parametrize("rows", [4, 7])
def test_the_task_bounds_no_copy(rows: int) -> None:
    """14 tiles by 4 leave a tail: .. where 4 * t + q < 14, whichever the task; by 7 they do not."""
    copy = copy_of_products(write(convolution(112), plan(14, rows)))
    bound = variables(copy.realize.predicate)
    assert len(bound) == (2 if 14 % rows else 0)
    assert not any(variable.same_as(copy.loops[0].loop_var) for variable in bound)


@pytest.mark.parametrize("rows", [4, 7])
def test_accumulators_are_a_register_tile(rows: int) -> None:
    """From a bound with the task in it TVM could not tell, and kept 29 rows, in memory."""
    func = write(convolution(112), plan(14, rows))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lowering = tvm.s_tir.transform
    for step in (
        lowering.PlanAndUpdateBufferAllocationLocation(),
        lowering.ConvertBlocksToOpaque(),
    ):
        mod = step(mod)
    compact = lowering.CompactBufferAllocation()(mod)["main"]
    assert f"product_local = T.sblock_alloc_buffer((1, 1, 1, 1, {rows}, 32)" in compact.script()


def test_what_is_cropped_keeps_its_own_bound() -> None:
    """Of 64 columns that are computed 60 are kept: a copy bounded as the product is would write
    behind the tensor's end (SwiftFormer crashed so)."""
    x, w = te.placeholder((49, 64), "float32", "x"), te.placeholder((64, 64), "float32", "w")
    k = te.reduce_axis((0, 64), "k")
    product = te.compute((49, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), "product")
    crop = te.compute((49, 60), lambda i, j: product[i, j], "crop")
    tile = TilePlan(
        rule="tile",
        anchor=0,
        tiles=(
            LevelTile("core", Tile((26, 64, 64))),
            LevelTile("register", Tile((13, 32, 4))),
        ),
        order=(0, 1, 2),
        parallel=1,
        lanes=LANES,
        unroll=4,
        attach=(Attach(1, "register"),),
    )
    func = schedule(te.create_prim_func([x, w, crop]), tile).schedule.mod["main"]
    (kept,) = (
        p for p in places(with_tile_bounds(func).body) if p.realize.block.name_hint == "crop"
    )
    assert "< 60" in str(kept.realize.predicate)
