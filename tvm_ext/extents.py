"""Extents written as texts: a name for what is left open, or a sum with it, `n`, `n+1`, `2*n-3`, or
of several, as exporters write them: `past_sequence_length + sequence_length`, `batch * heads`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod
from operator import index
from typing import Any

from tvm_ext.errors import ShapeError

Shapes = Mapping[str, int | str | Sequence[int | str]]
"""By the name of an input, or of a symbolic dimension, which may have its one extent alone; a text
is the name of an open extent, or a sum with it."""
EXAMPLE = "(1, 3, 224, 224)"
_FACTOR = r"(?:\d+|[^\W\d]\w*)"
_TERM = re.compile(rf"\s*([+-]?)\s*({_FACTOR}(?:\s*\*\s*{_FACTOR})*)\s*")


@cache
def terms(text: str) -> Mapping[tuple[str, ...], int] | None:
    """By the names that are multiplied, none for a number that is added, how often they are taken;
    None of a text that is no such sum, or has no name in it."""
    found: Counter[tuple[str, ...]] = Counter()
    place = 0
    while place < len(text):
        match = _TERM.match(text, place)
        if match is None or (found and not match[1]):
            return None
        factors = [factor.strip() for factor in match[2].split("*")]
        numbers = [int(factor) for factor in factors if factor.isdecimal()]
        named = tuple(sorted(factor for factor in factors if not factor.isdecimal()))
        found[named] += prod(numbers) * (-1 if match[1] == "-" else 1)
        place = match.end()
    return found if any(found) else None


def names(text: str) -> set[str]:
    """The names in an extent; none of a text that is no extent."""
    return {name for named in terms(text) or () for name in named}


def evaluated(text: str, values: Mapping[str, int]) -> int | None:
    """An extent with numbers for its names; None if one has none."""
    found = terms(text)
    if found is None or any(name not in values for named in found for name in named):
        return None
    return sum(count * prod(values[name] for name in named) for named, count in found.items())


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


def as_shapes(given: Any) -> dict[str, tuple[int | str, ...]]:
    """Shapes as users give them, `Shapes` or nothing, each as a tuple.

    Raises ShapeError: no mapping by names, or an extent that is neither a number from 1 up nor a
    sum with names that only add to it.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ShapeError(
            f"shapes: a {type(given).__name__} is no mapping; give shapes by name, such as "
            f'{{"x": {EXAMPLE}}}'
        )
    return {_name(name): _as_shape(name, shape) for name, shape in given.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ShapeError(f"shapes: {name!r} is no name; give that of an input or a dimension")
    return name


def _as_shape(name: str, shape: Any) -> tuple[int | str, ...]:
    try:
        if isinstance(shape, str):
            extents: Sequence[Any] = (shape,) if names(shape) else (None,)
        else:
            extents = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        whole = [one if isinstance(one, str) else index(one) for one in extents]
    except TypeError:
        raise ShapeError(
            f"shape of {name!r} is {shape!r}; give a tuple of integers such as {EXAMPLE}, with "
            "names for what is left open"
        ) from None
    for one in whole:
        _check_extent(name, one, whole)
    return tuple(whole)


def _check_extent(name: str, extent: int | str, shape: Sequence[int | str]) -> None:
    if not isinstance(extent, str):
        if extent < 1:
            raise ShapeError(
                f"shape of {name!r} is {tuple(shape)}: {extent} is not positive; give 1 or more"
            )
        return
    found = terms(extent)
    if found is None:
        raise ShapeError(
            f"shape of {name!r}: {extent!r} is no extent; give a number, a name such as n, or a "
            "sum with one"
        )
    less = next((named for named, count in found.items() if named and count < 0), None)
    if less is not None:
        raise ShapeError(
            f"shape of {name!r}: {extent!r} takes {'*'.join(less)} away; give what is left a name "
            "of its own, and write what is longer as a sum with it"
        )
