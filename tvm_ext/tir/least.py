"""The least numbers for extents that are not known with which a function reads what there is.

A model that cuts an axis to its first 100 rows is compiled for 100 or more: then its kernel says
nothing of there being fewer, and with fewer reads behind the end of its input.

    y[i] = x[i] for i < 100, x of n rows   →   {n: 100}
    y[i] = x[i - 1] if i > 0 else 0        →   {n: 1}, padding is out of reach of any n
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from tvm_ext.tile.graph import TileGraph
from tvm_ext.tir.read import read
from tvm_ext.tir.symbolic import instance, ones, symbols
from tvm_ext.tvm_api import PrimFunc

MANY = range(1 << 20, (1 << 20) + 8)
"""As many leave room for all that any may read; several, for what goes by steps over padding ends
elsewhere with each."""


def least(func: PrimFunc) -> dict[Any, int]:
    """For each of a function's `symbols` the least number with which no access goes further beyond
    its tensor than with `MANY`, the others being many."""
    found = symbols(func)
    many = ones(func) | dict.fromkeys(found, MANY[0])

    @cache
    def with_many(number: int) -> list[int]:
        return _beyond(func, ones(func) | dict.fromkeys(found, number))

    def fits(symbol: Any, number: int) -> bool:
        here = _beyond(func, many | {symbol: number})
        return any(
            len(here) != len(with_many(number))
            or all(a <= b for a, b in zip(here, with_many(number), strict=True))
            for number in MANY
        )

    return {symbol: _first(partial(fits, symbol)) for symbol in found}


def _first(fits: Callable[[int], bool]) -> int:
    """The least number that fits, if `MANY` do, and with each all larger ones."""
    low, high = 0, 1
    while high < MANY[0] and not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _beyond(func: PrimFunc, sizes: dict[Any, int]) -> list[int]:
    """How many places before and behind each axis of a tensor the accesses to it reach."""
    graph = read(instance(func, sizes))
    return _places(graph) if graph is not None else []


def _places(graph: TileGraph) -> list[int]:
    found = []
    for node in graph.nodes:
        for access in node.reads:
            for dim, extent in zip(access.dims, graph.tensors[access.tensor].shape, strict=True):
                if dim is None or dim.mod:
                    found.append(0)
                    continue
                first, last = dim.ends(node.extents)
                found.append(max(0, -first) + max(0, last - extent + 1))
    return found
