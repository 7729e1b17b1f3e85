"""Kernels for any number of slices: which plans can be such, and what their numbers depend on."""

from __future__ import annotations

import pytest
from fused_modules import HARDWARE
from msgspec.structs import replace

from tvm_ext.elastic import _graph, _Grown, _growth, elastic
from tvm_ext.planner import make_task
from tvm_ext.symbolic import NARROW, WIDE, _kernels, _tiles
from tvm_ext.tile.classify import STEAL_FLOPS, is_shared_out
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import check_plan
from tvm_ext.tile.plan import LevelTile, Tile, TilePlan
from tvm_ext.tir.symbolic import Sized, Varying, cuts
from tvm_ext.tvm_api import PrimFunc, te, tirx, topi

N = tirx.Var("n", "int64")
TYPICAL = 40


def dense(unit: int = 1) -> PrimFunc:
    """n * unit rows of 96 times a matrix."""
    x = te.placeholder((N * unit if unit > 1 else N, 96), "float32", "x")
    w = te.placeholder((96, 160), "float32", "w")
    k = te.reduce_axis((0, 96), "k")
    y = te.compute((x.shape[0], 160), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    func = te.create_prim_func([x, w, topi.nn.relu(y)])
    return func if unit == 1 else PrimFunc([*func.params, N], func.body, attrs=func.attrs)


def norm() -> PrimFunc:
    x = te.placeholder((N, 96), "float32", "x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def tile(core: int, register: int) -> TilePlan:
    return TilePlan(
        rule="tile",
        anchor=0,
        tiles=(
            LevelTile("core", Tile((core, 160, 96))),
            LevelTile("register", Tile((register, 32, 4))),
        ),
        order=(0, 1, 2),
        parallel=1,
        lanes=16,
    )


def typical_graphs(func: PrimFunc) -> tuple[TileGraph, TileGraph]:
    """Those for so many slices and one more."""
    one, more = (_graph(func, cuts(func) or (), slices) for slices in (TYPICAL, TYPICAL + 1))
    assert one is not None
    assert more is not None
    return one, more


@pytest.mark.parametrize(
    ("core", "register", "tiles"),
    [(TYPICAL, 6, (6,)), (12, 6, (12, 6)), (TYPICAL, TYPICAL, (TYPICAL,)), (TYPICAL, 1, ())],
)
def test_tiles_of_some_slices_stay(core: int, register: int, tiles: tuple[int, ...]) -> None:
    """A tile of all grows, but for one that is unrolled."""
    func = dense()
    found = cuts(func) or ()
    graphs = typical_graphs(func)
    grown = _Grown.of(tile(core, register), _growth(*graphs), TYPICAL, 1)
    assert grown is not None
    assert grown.tiles == tiles
    assert grown.slices == max(tiles, default=1)
    more = _graph(func, found, 100)
    assert more is not None
    plan = grown.at(100)
    check_plan(more, plan)
    assert plan.at("core").extents[0] == (100 if core == TYPICAL else core)
    assert plan.at("register").extents[0] == register


def test_points_leave_tails_and_differ() -> None:
    graphs = typical_graphs(dense())
    grown = _Grown.of(tile(12, 6), _growth(*graphs), TYPICAL, 1)
    assert grown is not None
    points = grown.points()
    assert len(points) == 5, "slices, two counts of tiles, a constant, and one to see"
    assert all(slices % 6 for slices in points)
    two = replace(tile(TYPICAL, 2))
    other = _Grown.of(two, _growth(*graphs), TYPICAL, 1)
    assert other is not None
    assert other.points() == [], "odd numbers do not tell slices from pairs of them"


def test_points_are_such_that_cores_help_each_other_at_all() -> None:
    """Loops are others where they do, and no function of the slices for both."""
    func = dense()
    found = cuts(func) or ()
    graphs = typical_graphs(func)
    grown = _Grown.of(tile(TYPICAL, 6), _growth(*graphs), TYPICAL, 651)
    assert grown is not None
    assert min(grown.points()) >= 651
    grown = _Grown.of(tile(TYPICAL, 6), _growth(*graphs), TYPICAL, 10**7)
    assert grown is not None
    assert max(grown.points()) < 10**7
    least = -(-STEAL_FLOPS * TYPICAL // graphs[0].flops)
    made = [_graph(func, found, slices) for slices in (int(least), int(least) - 1)]
    assert [graph is not None and is_shared_out(graph) for graph in made] == [True, False]


def test_rows_of_a_product_have_others_beside_a_large_tile() -> None:
    func = dense()
    planned = _tiles(func, HARDWARE)
    large, wide, narrow, *few = _kernels(func, planned, HARDWARE, None, [])
    assert isinstance(large, Sized)
    assert large.size == max(planned)
    assert isinstance(wide, Varying)
    assert isinstance(narrow, Varying)
    assert wide.beside is narrow
    assert WIDE[0] <= wide.least <= WIDE[1]
    assert NARROW[0] <= narrow.least <= NARROW[1]
    assert [one.size for one in few] == list(range(narrow.least - 1, 0, -1))


@pytest.mark.parametrize("func", [dense(), norm()])
def test_there_is_one_for_any_number(func: PrimFunc) -> None:
    made = elastic(func, cuts(func) or (), TYPICAL, (1, 8), HARDWARE)
    assert made is not None
    assert made.least <= 8
    assert made.slice_us > 0


def test_another_cut_is_a_loop_around_it() -> None:
    """A product of rows that lie apart: sentences of both any number and any length."""
    batch = tirx.Var("b", "int64")
    x = te.placeholder((batch, 3, N, 96), "float32", "x")
    w = te.placeholder((96, 160), "float32", "w")
    k = te.reduce_axis((0, 96), "k")
    y = te.compute(
        (batch, 3, N, 160), lambda b, h, i, j: te.sum(x[b, h, i, k] * w[k, j], axis=k), name="y"
    )
    func = te.create_prim_func([x, w, y])
    found = cuts(func) or ()
    assert len(found) == 2
    assert elastic(func, found, TYPICAL, (1, 8), HARDWARE) is not None


def test_images_are_tiles_of_a_few() -> None:
    """What takes longer for one slice than a launch does is not read again for others."""
    x = te.placeholder((N, 56, 56, 64), "float32", "x")
    w = te.placeholder((3, 3, 64, 64), "float32", "w")
    y = topi.nn.conv2d_nhwc(x, w, 1, 1, 1)
    task = make_task(te.create_prim_func([x, w, y]), "conv")
    kernels = _kernels(task.original, _tiles(task.original, HARDWARE), HARDWARE, None, [])
    assert all(isinstance(kernel, Sized) for kernel in kernels)
