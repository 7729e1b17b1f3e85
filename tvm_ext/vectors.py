"""What is loaded for a vector whose elements lie apart: the picker counts it, `tvm_strides` does
it."""

from __future__ import annotations

LEAST_PICKED = 4
"""Elements of a vector that is worth picking from others; shorter ones are put together as soon."""


def picks_elements(stride: int | None, lanes: int) -> bool:
    """Whether vectors of elements so far apart are loaded whole, as many as there are places from
    one to the next, and their elements picked: fewer loads than elements."""
    if stride is None or stride == 1 or lanes < LEAST_PICKED:
        return False
    return 0 < 2 * abs(stride) <= lanes
