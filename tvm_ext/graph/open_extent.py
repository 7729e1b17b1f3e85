"""What may follow an extent that is not known, told from the number that stands for it."""

from __future__ import annotations

MORE = 8
"""What a length may have beyond such an extent: a new word, a class."""


def follows(length: int, extent: int) -> bool:
    """Whether a length may be some of an extent, or a few more; none is of an extent of 0."""
    return bool(extent) and (length % extent == 0 or abs(length - extent) <= MORE)
