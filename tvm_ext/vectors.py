"""What is loaded for a vector whose elements lie apart: the picker counts it, `tvm_strides` does
it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

LEAST_PICKED = 4
"""Elements of a vector that is worth picking from others; shorter ones are put together as soon."""


class WholeLoads(NamedTuple):
    """Vectors of so many elements, and where they begin."""

    width: int
    begins: tuple[int, ...]


def whole_loads(places: Sequence[int], beside: Sequence[int] = ()) -> WholeLoads | None:
    """The vectors from which those elements are picked, none of them reaching beyond the first and
    the last, nor those that are loaded `beside` them; None where elements lie side by side or are
    one, or too far apart for fewer loads than half of them."""
    lanes = len(places)
    if lanes < LEAST_PICKED or min(places) == max(places):
        return None
    if list(places) == list(range(places[0], places[0] + lanes)):
        return None
    first = min(*places, *beside)
    span = max(*places, *beside) - first + 1
    width = min(lanes, 1 << (span.bit_length() - 1))
    count = -(-span // width)
    if 2 * count > lanes:
        return None
    return WholeLoads(width, tuple(first + min(n * width, span - width) for n in range(count)))


@cache
def picks_elements(stride: int | None, lanes: int) -> bool:
    """Whether vectors of elements so far apart are loaded whole, and their elements picked."""
    return stride is not None and bool(whole_loads([stride * lane for lane in range(lanes)]))
