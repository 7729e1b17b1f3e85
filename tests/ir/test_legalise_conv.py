"""Which algorithm a convolution gets: the fastest by prediction, with no more predictions than
that takes."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.legalise_conv import DIRECT, choose_algorithm

GEOMETRY = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 64, 64)
SHAPE = (1, 56, 56, 64)


def tile_of(func: Any) -> int:
    """The Winograd output tile of a program, by the points of its packed weight."""
    points = int(func.params[1].shape[0])
    return points - 2 if len(func.params[1].shape) == 5 and points in (4, 6) else DIRECT


@pytest.mark.parametrize(
    ("times", "best", "asked"),
    [
        # the peak of 1 GFLOP/s allows direct convolution in 231 ms, F(2x2) in 109, F(4x4) in 66
        ({4: 68e3, 2: 110e3, DIRECT: 240e3}, 4, [4]),
        ({4: 111e3, 2: 110e3, DIRECT: 240e3}, 2, [4, 2]),
        ({4: 400e3, 2: 300e3, DIRECT: 240e3}, DIRECT, [4, 2, DIRECT]),
    ],
)
def test_what_cannot_win_at_the_machines_peak_is_not_predicted(
    times: dict[int, float], best: int, asked: list[int]
) -> None:
    seen: list[int] = []

    def predict_us(func: Any) -> float:
        seen.append(tile_of(func))
        return times[seen[-1]]

    assert choose_algorithm(GEOMETRY, SHAPE, 16, OUTPUT_TILES, predict_us, 1.0) == best
    assert seen == asked
    seen.clear()
    assert choose_algorithm(GEOMETRY, SHAPE, 16, OUTPUT_TILES, predict_us, inf) == best
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "lanes", "narrow"),
    [
        (32, 128, 128, 16, True),
        (32, 128, 128, 8, True),
        (32, 128, 128, 4, False),  # a vector holds one
        (32, 256, 256, 16, False),  # half a vector each
        (24, 24, 48, 16, True),
        (24, 24, 24, 16, False),  # depthwise
        (16, 128, 64, 16, True),
        (16, 256, 64, 16, False),  # inputs of four vectors
        (8, 24, 24, 8, False),  # threes
        (7, 28, 28, 16, False),  # vectors that end between groups
    ],
)
def test_which_groups_share_a_vector(
    groups: int, inputs: int, outputs: int, lanes: int, narrow: bool
) -> None:
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), groups, inputs, outputs)
    assert geometry.narrow(lanes) == narrow
    if narrow:
        assert not geometry.ragged(lanes)
        assert geometry.block(lanes) == lanes
