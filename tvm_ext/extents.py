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


def at_extents(own: int | str, extents: int | Mapping[str, int]) -> int:
    """A number as it is, a text with a number for all the names in it, or with those of each, 1 for
    what has none."""
    if not isinstance(own, str):
        return own
    same, known = (extents, {}) if isinstance(extents, int) else (1, dict(extents))
    value = evaluated(own, dict.fromkeys(names(own), same) | known)
    return same if value is None else value


def assigned(values: Mapping[str, int]) -> str:
    """Numbers for names, as messages say them."""
    return " and ".join(f"{value} for {name}" for name, value in values.items())


def solved(
    text: str, extent: int, known: Mapping[str, int] | None = None
) -> tuple[str, int | None]:
    """A name in a text, and what it must be for the text to be an extent; None if nothing makes it
    so.

    known  values of names; of those in the text of all, or of all but the one
    """
    others = dict(known or {})
    name = max(names(text), key=lambda name: (name not in others, name))
    none, one = (evaluated(text, others | {name: value}) for value in (0, 1))
    if none is None or one is None or one == none:
        return name, None
    value, left = divmod(extent - none, one - none)
    return name, None if left or value < 1 else value
