"""Extents written as texts: a name for what is left open, or a sum with it, `n`, `n+1`, `2*n-3`, or
of several, as exporters write them: `past_sequence_length + sequence_length`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+)\s*\*\s*)?(?:(\d+)|([^\W\d]\w*))\s*")


def terms(text: str) -> list[tuple[int, str]] | None:
    """Factors, each with its name, or an empty one for a number that is added; None of a text that
    is no such sum, or has no name in it."""
    found: list[tuple[int, str]] = []
    place = 0
    while place < len(text):
        match = _TERM.match(text, place)
        if match is None or (found and not match[1]):
            return None
        sign, factor, number, name = match.groups()
        count = int(factor or 1) * int(number or 1)
        found.append((-count if sign == "-" else count, name or ""))
        place = match.end()
    return found if any(name for _, name in found) else None


def names(text: str) -> set[str]:
    """The names in an extent; none of a text that is no extent."""
    return {name for _, name in terms(text) or () if name}


def evaluated(text: str, values: Mapping[str, int]) -> int | None:
    """An extent with numbers for its names; None if one has none."""
    found = terms(text)
    if found is None or any(name and name not in values for _, name in found):
        return None
    return sum(factor * values.get(name, 1) for factor, name in found)


def at_extent(own: int | str, extent: int) -> int:
    """A number as it is, a text with the extent for every name in it."""
    if not isinstance(own, str):
        return own
    value = evaluated(own, dict.fromkeys(names(own), extent))
    return extent if value is None else value


def solved(text: str, extent: int) -> int | None:
    """What the only name in a text must be for it to be an extent; None if nothing makes it so."""
    (name,) = names(text)
    none, one = (evaluated(text, {name: value}) or 0 for value in (0, 1))
    value, left = divmod(extent - none, one - none) if one != none else (0, 1)
    return None if left or value < 1 else value
