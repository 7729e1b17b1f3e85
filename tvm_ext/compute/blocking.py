"""Blocks of an output axis: how many channels lie side by side in a packed weight."""

from __future__ import annotations

_BLOCK_VECTORS = (2, 3, 4, 1)
"""Vectors in a block, best first: two leave room for the tallest register tile (14 x 32)."""


def choose_block(extent: int, lanes: int) -> int:
    """Block size that pads `extent` the least; ties go to the best register tile."""
    sizes = [vectors * lanes for vectors in _BLOCK_VECTORS]
    narrow = lanes // 2
    while narrow >= 4 and narrow >= extent:
        sizes.append(narrow)
        narrow //= 2
    return min(sizes, key=lambda size: (padded(extent, size), sizes.index(size)))


def choose_group_block(extent: int, lanes: int) -> int:
    """Block of whole vectors for a group's channels, which are some: no padding inside."""
    sizes = [vectors * lanes for vectors in _BLOCK_VECTORS]
    return next(size for size in sizes if extent % size == 0)


def padded(extent: int, block: int) -> int:
    """`extent` rounded up to whole blocks."""
    return -(-extent // block) * block
