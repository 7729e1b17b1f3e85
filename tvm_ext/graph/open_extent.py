"""What may follow an extent that is not known, told from the number that stands for it."""

from __future__ import annotations

from collections.abc import Iterable

MORE = 8
"""What a length may have beyond such an extent: a new word, a class."""


def of_slice(length: int, extents: Iterable[int]) -> int:
    """What a length is for 1 in place of the extents that it is some of."""
    for extent in extents:
        length = length // extent if length % extent == 0 else length
    return length


def follows(length: int, extent: int) -> bool:
    """Whether a length may be some of an extent, or a few more; none is of an extent of 0."""
    return bool(extent) and (length % extent == 0 or abs(length - extent) <= MORE)
