"""With how few of an extent that is not known a function still reads what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tvm_ext.tir.least import least
from tvm_ext.tvm_api import PrimFunc, te, tirx


def of_rows(*extents: Any, read: Callable[..., Any]) -> PrimFunc:
    """A function of `x`, n rows of six."""
    x = te.placeholder((extents[0], 6), "float32", "x")
    return te.create_prim_func([x, te.compute(extents[1:], lambda *at: read(x, *at))])


n = te.var("n", "int64")


@pytest.mark.parametrize(
    ("func", "fewest"),
    [
        (of_rows(n, n, 6, read=lambda x, i, j: x[i, j] * 2.0), 1),
        (of_rows(n, 100, 6, read=lambda x, i, j: x[i, j] * 2.0), 100),
        (of_rows(n, 3000, read=lambda x, i: x[i + 7, 2] * 2.0), 3007),
        (of_rows(2 * n, 25, 6, read=lambda x, i, j: x[i, j] * 2.0), 13),
        (of_rows(n, n, 6, read=lambda x, i, j: tirx.if_then_else(i > 2, x[i - 3, j], 0.0)), 1),
        # padding by steps of two: with odd numbers the last one reads behind the end, masked
        (
            of_rows(
                n,
                (n + 1) // 2,
                6,
                read=lambda x, i, j: tirx.if_then_else(2 * i + 1 < n, x[2 * i + 1, j], 0.0),
            ),
            1,
        ),
    ],
)
def test_as_many_as_are_read(func: PrimFunc, fewest: int) -> None:
    assert list(least(func).values()) == [fewest]


def test_each_of_several_has_its_own() -> None:
    m = te.var("m", "int64")
    x = te.placeholder((n, m, 6), "float32", "x")
    y = te.compute((4, m, 6), lambda i, j, k: x[i, j, k] + x[0, 9, 0])
    found = least(te.create_prim_func([x, y]))
    assert {str(symbol.name): number for symbol, number in found.items()} == {"n": 4, "m": 10}


def test_a_function_of_known_extents_asks_for_none() -> None:
    assert least(of_rows(8, 4, 6, read=lambda x, i, j: x[i, j] * 2.0)) == {}
