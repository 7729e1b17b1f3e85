"""Blocks of an output axis: how many channels lie side by side in a packed weight."""

from __future__ import annotations

from tvm_ext.hardware.model import HardwareModel

_BLOCK_VECTORS = (2, 3, 4, 1)
"""Vectors in a block, best first: two leave room for the tallest register tile (14 x 32)."""
_NEGLIGIBLE = 0.01
"""Part of an axis that may be padding for a better block: where no register tile divides an axis,
tails are moved to places only known as the kernel runs (64 x 768 by 12568 in blocks of 8: 8.3 ms,
by 12552 in blocks of 24: 7.3)."""
_WORTH = 0.94
"""Half vectors take twice as many instructions: they have to leave out so much of the columns."""


def lanes_along(columns: int, hardware: HardwareModel) -> int:
    """Float32 elements of the vectors of a product of so many columns by a constant: of half
    vectors where they are as fast, and fewer columns are padding (on Zen 4, whose units are half as
    wide as its vectors, 144 to 24 channels of 56 x 56: 252 → 192 us)."""
    lanes = hardware.lanes(4)
    half = lanes // 2
    if hardware.fmas_per_cycle(half) == hardware.fmas_per_cycle(lanes):
        return lanes
    whole, halves = (padded(columns, choose_block(columns, each)) for each in (lanes, half))
    return half if halves <= _WORTH * whole else lanes


def choose_block(extent: int, lanes: int) -> int:
    """Block size that pads `extent` the least, or hardly more; ties go to the best register
    tile."""
    sizes = [vectors * lanes for vectors in _BLOCK_VECTORS]
    narrow = lanes // 2
    while narrow >= 4 and narrow >= extent:
        sizes.append(narrow)
        narrow //= 2
    most = min(padded(extent, size) for size in sizes) + _NEGLIGIBLE * extent
    return next(size for size in sizes if padded(extent, size) <= most)


def choose_group_block(extent: int, lanes: int) -> int:
    """Block of whole vectors for a group's channels, which are some: no padding inside."""
    sizes = [vectors * lanes for vectors in _BLOCK_VECTORS]
    return next(size for size in sizes if extent % size == 0)


def padded(extent: int, block: int) -> int:
    """`extent` rounded up to whole blocks."""
    return -(-extent // block) * block
