"""Depthwise windows that leave out what lies in padding: the same values as of a padded copy."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from test_guard import values

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.tile import Tile
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.skip import needed_share
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import PrimFunc, te

CASES = {
    "whole rows": ((7, 7), 5, 1, 1, 2, (1, 7), 1),
    "half rows": ((14, 14), 5, 1, 1, 2, (1, 7), 1),
    "pairs of rows": ((14, 14), 5, 1, 1, 2, (2, 7), 1),
    "tiles moved back": ((13, 11), 5, 1, 1, 2, (1, 4), 1),
    "rows moved back": ((13, 11), 5, 1, 1, 2, (2, 11), 1),
    "as many taps as points": ((7, 7), 7, 1, 1, 3, (1, 7), 1),
    "more taps than points": ((5, 3), 9, 1, 1, 4, (1, 3), 1),
    "padding beyond the window": ((4, 6), 3, 1, 1, 5, (1, 14), 1),
    "steps of two": ((14, 14), 5, 2, 1, 2, (1, 7), 1),
    "holes": ((9, 9), 3, 1, 4, 4, (1, 9), 1),
    "steps and holes": ((11, 13), 3, 2, 3, 3, (1, 7), 1),
    "all taps of a row": ((9, 7), 3, 1, 1, 1, (1, 7), 3),
    "a row": ((1, 9), 5, 1, 1, 2, (1, 9), 1),
    "two columns": ((9, 2), 5, 1, 1, 2, (1, 2), 1),
}


def window(
    sizes: tuple[int, int], kernel: int, stride: int, dilation: int, pad: int, channels: int
) -> PrimFunc:
    """A padded depthwise convolution of x [1, *sizes, channels]."""
    both = (pad, pad)
    geometry = ConvGeometry(
        (kernel,) * 2, (stride,) * 2, both, both, (dilation,) * 2, channels, channels, channels
    )
    x = te.placeholder((1, *sizes, channels), "float32", "x")
    w = te.placeholder((kernel, kernel, channels), "float32", "w")
    return te.create_prim_func([x, w, conv(x, w, geometry, 16)])


@pytest.mark.parametrize("case", CASES)
def test_the_values_are_those_of_a_padded_copy(case: str) -> None:
    sizes, kernel, stride, dilation, pad, (rows, columns), together = CASES[case]
    func = window(sizes, kernel, stride, dilation, pad, 32)
    prepared = prepare(func)
    assert prepared is not None
    anchor = next(i for i, node in enumerate(prepared.graph.nodes) if node.kind == "reduce")
    node = prepared.graph.nodes[anchor]
    register = Tile((1, rows, columns, 16, together, kernel))
    tiles = (LevelTile("core", Tile(node.extents)), LevelTile("register", register))
    order = tuple(range(len(node.axes)))
    plan = TilePlan("tile", anchor, tiles, order, 0, 16, attach=(Attach(0, "register"),))
    assert needed_share(prepared.graph, node, register) < 1
    expected = values(func, replace(plan, attach=()))
    np.testing.assert_allclose(values(func, plan), expected, rtol=1e-5, atol=1e-6)
