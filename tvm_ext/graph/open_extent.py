"""What may follow an extent that is not known, told from the number that stands for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from tvm_ext.compute.open_attention import SPARE_ROWS

MORE = 8
"""What a length may have beyond such an extent: a new word, a class."""


def of_slice(length: int, extents: Iterable[int]) -> int:
    """What a length is for 1 in place of the extents that it is some of."""
    for extent in extents:
        length = length // extent if length % extent == 0 else length
    return length


def of_about_slice(length: int, extents: Sequence[int]) -> int:
    """Likewise, where a few more or less than an extent count for nothing, nor do the spare rows of
    a bias: what is decided by it is so whatever the numbers."""
    for extent in extents:
        if follows(length, extent):
            length = max(1, length // extent)
    sums = (extent + other for extent, other in combinations((*extents, SPARE_ROWS), 2))
    if length in sums:  # words kept and new ones
        return 1
    return length


def are_apart(lengths: Iterable[int], points: Sequence[Sequence[int]]) -> bool:
    """Whether none of the lengths that a model has anyway would be taken for what follows numbers
    that stand for extents."""
    return all(
        of_slice(length, point) == of_about_slice(length, point) == length
        for length in lengths
        for point in points
    )


def follows(length: int, extent: int) -> bool:
    """Whether a length may be some of an extent, or a few more; none is of an extent of 0."""
    return bool(extent) and (length % extent == 0 or abs(length - extent) <= MORE)
