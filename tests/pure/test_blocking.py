"""Blocks of a packed axis: little padding, and whole register tiles."""

from __future__ import annotations

import pytest

from tvm_ext.compute.blocking import choose_block, padded


@pytest.mark.parametrize(
    ("extent", "lanes", "block"),
    [
        (64, 8, 16),
        (24, 8, 24),  # as much padding as in blocks of 8, which are worse
        (40, 8, 8),  # in blocks of 16 a fifth would be padding
        (504, 8, 24),
        (136, 8, 8),
        (1000, 8, 16),  # 8 more for whole register tiles
        (50257, 8, 16),
        (1000, 16, 48),
        (3, 8, 4),
    ],
)
def test_an_axis_is_padded_little(extent: int, lanes: int, block: int) -> None:
    """1000 and 50257 in blocks of 8 would leave tails that are moved as the kernel runs."""
    assert choose_block(extent, lanes) == block
    least = min(padded(extent, size) for size in (lanes, 2 * lanes, 3 * lanes, 4 * lanes, block))
    assert padded(extent, block) <= 1.01 * least
