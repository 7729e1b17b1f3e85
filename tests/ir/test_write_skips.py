"""Taps in padding are left out: a branch around a tap's work, tile by tile."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from funcs import conv_func, placeholder, prepared_graph

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile import Tile
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.skip import skipped
from tvm_ext.tir import write
from tvm_ext.tir.skip import with_skips
from tvm_ext.tvm_api import PrimFunc, te, topi

BRANCH = re.compile(r"if (.*):")
TAP = re.compile(r"\bk[01]_")


def branches(dilation: int, pad: int, size: int = 33) -> list[str]:
    """The conditions on taps in a written convolution."""
    func = conv_func(size, 64, 64, dilation=dilation, pad=pad)
    plans = pick(prepared_graph(func), get("cpu/x86-avx512"), 8)
    plan = next(one.plan for one in plans if one.plan.rule == "tile")
    return [found for found in BRANCH.findall(write(func, plan).script()) if TAP.search(found)]


def holds(condition: str, **loops: int) -> bool:
    """A condition where loops whose names begin so are at a place, all others at their first."""
    place = {
        name: next((at for begin, at in loops.items() if name.startswith(begin)), 0)
        for name in re.findall(r"[a-z]\w*", condition)
        if name not in ("and", "min", "max")
    }
    return bool(eval(condition, {**place, "T": SimpleNamespace(min=min, max=max)}))


def test_taps_far_apart_are_asked_for_by_rows_and_columns() -> None:
    rows, columns = branches(12, 12)
    assert [holds(rows, k0_=tap) for tap in range(3)] == [False, True, True]
    assert [holds(columns, k1_=tap) for tap in range(3)] == [False, True, True]


@pytest.mark.parametrize(("dilation", "pad", "size"), [(1, 1, 33), (1, 0, 33), (2, 0, 33)])
def test_others_are_not(dilation: int, pad: int, size: int) -> None:
    assert branches(dilation, pad, size) == []


def in_place(func: PrimFunc, register: Tile) -> TilePlan:
    """A plan for a window over 32 channels that reads its padding in place, in one core tile."""
    node = prepared_graph(func).nodes[1]
    tiles = (LevelTile("core", Tile(node.extents)), LevelTile("register", register))
    order = tuple(range(len(node.axes)))
    return TilePlan("tile", 1, tiles, order, 0, 16, attach=(Attach(0, "register"),))


def written(size: int, columns: int, taps: int = 5) -> str:
    """A depthwise window of 5 x 5 over 32 channels, so many columns and taps at a time."""
    func = conv_func(size, 32, 32, 5, pad=2, groups=32, epilogue=False)
    return str(write(func, in_place(func, Tile((1, 1, columns, 16, 1, taps)))).script())


def test_a_row_of_taps_outside_the_image_is_left_out() -> None:
    (rows,) = BRANCH.findall(written(14, 7))
    assert [holds(rows, k0_=tap) for tap in range(5)] == [False, False, True, True, True]


def test_what_is_known_of_a_whole_row_is_a_branch_around_a_sum_and_no_mask() -> None:
    whole, part = written(7, 7), written(14, 7)
    assert len(BRANCH.findall(whole)) == 2
    assert "Select" not in whole
    assert "Select" in part
    assert "likely" not in whole + part


def test_a_maximum_takes_zeros_from_outside() -> None:
    x = placeholder("x", 1, 8, 8, 32)
    padded = topi.nn.pad(x, [0, 3, 3, 0], [0, 3, 3, 0], name="pad")
    i, j = (te.reduce_axis((0, 7), name=f"k{axis}") for axis in range(2))
    y = te.compute(
        (1, 8, 8, 32), lambda n, p, q, c: te.max(padded[n, p + i, q + j, c], axis=[i, j]), name="y"
    )
    func, tile = te.create_prim_func([x, y]), Tile((1, 1, 8, 16, 1, 7))
    graph = prepared_graph(func)
    assert skipped(graph, graph.nodes[1], tile) == ()
    assert not BRANCH.findall(with_skips(write(func, in_place(func, tile))).script())
