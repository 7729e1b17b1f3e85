"""The nearest of the elements between which a place lies, in integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def _round(at: np.ndarray) -> np.ndarray:
    """To the nearest, halves away from zero."""
    return np.trunc(at + np.copysign(np.float32(0.5), at))


def _round_prefer_floor(at: np.ndarray) -> np.ndarray:
    return np.where(at == np.trunc(at) + np.float32(0.5), np.floor(at), _round(at))


ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": _round_prefer_floor,
    "round_prefer_ceil": _round,
    "floor": np.floor,
    "ceil": np.ceil,
}


def nearest(at: np.ndarray, extent: int, rounding: str) -> np.ndarray:
    """The elements at places of an axis, int64 [size]."""
    return np.clip(ROUNDINGS[rounding](at), 0, extent - 1).astype(np.int64)


def repeats(index: np.ndarray, extent: int) -> bool:
    """Whether every element is taken equally often, one after another."""
    times, rest = divmod(index.size, extent)
    return not rest and np.array_equal(index, np.arange(index.size) // times)
