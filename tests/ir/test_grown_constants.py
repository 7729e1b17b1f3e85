"""Constants that count the elements of an extent that is not known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tvm_ext.graph.grown_constants import Count, count_of

EXTENTS = (499, 1006)


def counted(make: Callable[[int], np.ndarray]) -> Count | None:
    return count_of([make(extent) for extent in EXTENTS], EXTENTS)


def made(count: Count, extent: int) -> np.ndarray:
    """As its kernel does."""
    if count.axis is None:
        return count.start + count.step * extent
    sizes = [-1 if place == count.axis else 1 for place in range(count.start.ndim)]
    places = np.arange(extent).reshape(sizes).astype(count.start.dtype)
    return count.start + count.step * places


COUNTING: dict[str, Callable[[int], np.ndarray]] = {
    "places": lambda n: np.arange(n),
    "places and others": lambda n: np.stack(
        np.broadcast_arrays(np.arange(n)[:, None], np.arange(5)), -1
    ),
    "the inner axis": lambda n: np.arange(3)[:, None] * 7 - 2 * np.arange(n),
    "a shape": lambda n: np.array([n, 128, 12 * n]),
    "a number": lambda n: np.array(n - 1),
    "repeated": lambda n: np.repeat(np.float32([[0.5, -1.5]]), n, 0),
    "floats": lambda n: np.arange(n, dtype=np.float32),
}


@pytest.mark.parametrize("kind", COUNTING)
def test_what_counts(kind: str) -> None:
    make = COUNTING[kind]
    count = counted(make)
    assert count is not None
    for extent in (1, 2, 7, 2000):
        np.testing.assert_array_equal(made(count, extent), make(extent))
        assert made(count, extent).dtype == make(extent).dtype


OTHERS: dict[str, Callable[[int], np.ndarray]] = {
    "squares": lambda n: np.arange(n) ** 2,
    "a fraction": lambda n: np.float32([1 / n]),
    "rounded up": lambda n: np.array([-(-n // 16) * 16]),
    "halves": lambda n: np.arange(n, dtype=np.float32) / 2,
    "both axes": lambda n: np.zeros((n, n), np.float32),
    "twice as many": lambda n: np.arange(2 * n),
    "random": lambda n: np.random.default_rng(n).standard_normal(8),
    "decided": lambda n: np.arange(n) % 2 == 0,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_does_not(kind: str) -> None:
    assert counted(OTHERS[kind]) is None
