"""Functions that differ by numbers only as one function of what these numbers come from.

    for i in range(998)    made for 499 rows
    for i in range(2012)   made for 1006          →   for i in range(2 * rows)

The least general generalisation of several terms (Plotkin, Machine Intelligence 5, 1970), where
numbers may differ by an affine function: `k` functions tell one of `k - 1` quantities, one more
whether it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.tvm_api import in_map_order, structural_map, tirx

Kinds = Sequence[tuple[Any, Any]]
"""What else a map does, by kinds of nodes."""


def numbers(function: Any) -> list[int]:
    """The numbers in a function, in the order in which a map comes to them."""
    return list(map(int, in_map_order(function, tirx.IntImm)))


def generalised(
    functions: Sequence[Any],
    points: Sequence[Sequence[int]],
    symbols: Sequence[Any],
    also: Kinds = (),
) -> Any | None:
    """The first function with `a * symbol + .. + c`, in whole numbers, where the numbers of all
    differ; None if they are no such functions of the points. What else differs is not looked at.

    points   for each function the values of the symbols with which it was made; more than symbols
             by one at least, and the more the surer
    symbols  variables, or what should be written for them
    also     what the map does beside, to nodes of other kinds
    """
    found = [numbers(function) for function in functions]
    if len(set(map(len, found))) > 1:
        return None
    table = np.array(found, np.int64)
    basis = np.array([[*point, 1] for point in points], np.int64)
    differing = np.flatnonzero((table != table[0]).any(0))
    solved = np.linalg.lstsq(basis.astype(float), table[:, differing].astype(float), rcond=None)
    steps = np.rint(solved[0]).astype(np.int64)
    if (basis @ steps != table[:, differing]).any():
        return None
    grown = {int(place): steps[:, at] for at, place in enumerate(differing)}
    place = iter(range(table.shape[1]))

    def written(number: Any) -> Any:
        own = grown.get(next(place))
        return number if own is None else _sum(own, symbols, str(number.ty.dtype))

    return structural_map(functions[0], [(tirx.IntImm, written), *also], order="post")


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
