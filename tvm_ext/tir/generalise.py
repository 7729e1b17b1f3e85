"""Functions that differ by numbers only as one function of what these numbers come from.

    for i in range(922)    made for 461 rows
    for i in range(1964)   made for 982           →   for i in range(2 * rows)

The least general generalisation of several terms (Plotkin, Machine Intelligence 5, 1970), where
numbers may differ by an affine function: `k` functions tell one of `k - 1` quantities, one more
whether it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf, isfinite, isnan
from typing import Any

import numpy as np

from tvm_ext.tvm_api import in_map_order, structural_equal, structural_map, tirx

ROUNDED = 1e-6
"""How far a number of single precision may be from one by a whole one."""
Kinds = Sequence[tuple[Any, Any]]
"""What else a map does, by kinds of nodes."""


def numbers(function: Any) -> list[int]:
    """The numbers in a function, in the order in which a map comes to them."""
    return list(map(int, in_map_order(function, tirx.IntImm)))


def fractions(function: Any) -> list[int | float]:
    """The numbers with fractions likewise: those that are whole as integers, those that are one by
    a whole one as that, negative."""
    found: list[int | float] = []
    for number in in_map_order(function, tirx.FloatImm):
        value = float(number.value)
        whole = -1 / value if 0 < value < 1 else value if value >= 1 else inf
        near = round(whole) if isfinite(whole) else 0
        is_whole = near and abs(whole - near) <= ROUNDED * abs(near)
        found.append(near if is_whole else inf if isnan(value) else value)
    return found


def generalised(
    functions: Sequence[Any],
    points: Sequence[Sequence[int]],
    symbols: Sequence[Any],
    also: Kinds = (),
) -> Any | None:
    """The first function with `a * symbol + .. + c`, in whole numbers, where the numbers of all
    differ, or one by that, as an average has it; None if they are no such functions of the points.
    What else differs is not looked at.

    points   for each function the values of the symbols with which it was made; more than symbols
             by one at least, and the more the surer
    symbols  variables, or what should be written for them
    also     what the map does beside, to nodes of other kinds
    """
    whole = _steps([numbers(function) for function in functions], points)
    shares = _steps([fractions(function) for function in functions], points)
    if whole is None or shares is None:
        return None
    place, float_place = count(), count()

    def written(number: Any) -> Any:
        own = whole.get(next(place))
        return number if own is None else _sum(own, symbols, str(number.ty.dtype))

    def share(number: Any) -> Any:
        own = shares.get(next(float_place))
        if own is None:
            return number
        dtype = str(number.ty.dtype)
        total = _sum(own, symbols, "int64").astype(dtype)
        return total if number.value >= 1 else tirx.const(-1, dtype) / total

    kinds = [(tirx.IntImm, written), (tirx.FloatImm, share), *also]
    return structural_map(functions[0], kinds, order="post")


def are_alike(one: Any, other: Any) -> bool:
    """Whether two functions differ by numbers only."""
    kinds = [
        (kind, lambda number: tirx.const(0, str(number.ty.dtype)))
        for kind in (tirx.IntImm, tirx.FloatImm)
    ]
    plain = [structural_map(function, kinds, order="post") for function in (one, other)]
    return bool(structural_equal(*plain))


def _steps(
    found: Sequence[Sequence[int | float]], points: Sequence[Sequence[int]]
) -> dict[int, np.ndarray] | None:
    """By the places of the numbers that differ between functions what they are of the points; None
    if some are no affine functions of these in whole numbers."""
    if len(set(map(len, found))) > 1:
        return None
    columns = list(zip(*found, strict=True))
    differing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    if any(isinstance(value, float) for place in differing for value in columns[place]):
        return None
    table = np.array([columns[place] for place in differing], np.int64).T
    if not differing:
        return {}
    basis = np.array([[*point, 1] for point in points], np.int64)
    solved = np.linalg.lstsq(basis.astype(float), table.astype(float), rcond=None)
    steps = np.rint(solved[0]).astype(np.int64)
    if (basis @ steps != table).any():
        return None
    return {place: steps[:, at] for at, place in enumerate(differing)}


def _sum(steps: np.ndarray, symbols: Sequence[Any], dtype: str) -> Any:
    """steps[0] * symbols[0] + .. + steps[-1]."""
    *factors, offset = map(int, steps)
    total: Any = None
    for factor, symbol in zip(factors, symbols, strict=True):
        if factor:
            own = symbol if dtype == str(symbol.ty.dtype) else symbol.astype(dtype)
            term = own if factor == 1 else own * tirx.const(factor, dtype)
            total = term if total is None else total + term
    return total + tirx.const(offset, dtype) if offset else total
