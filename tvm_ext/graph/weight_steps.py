"""Quantised weights that have become floats, told as such: integers of eight bits times a step.

A quantiser's step is known where its weights are constants of eight bits, but folding makes floats
of them, and a batch norm behind them scales each channel. The integers are there all the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEAST, MOST = -128, 127
"""Of the integers."""
RANGE = MOST - LEAST
"""Between a row's least and largest."""
SAMPLES = (4, 64)
"""Elements of each row that are looked at to tell its step, few of them first."""
ROUNDED = 8.0
"""Roundings of an integer times its step, and of what a row was scaled by later."""
CHUNK = 1 << 16
"""Elements that are looked at at a time, all of whose forms a core's cache holds."""


class Stepped(NamedTuple):
    """Weights [O, ..] = (integers + middles) * steps."""

    integers: np.ndarray
    """int8 [O, ..]."""
    steps: np.ndarray
    """float64 [O]."""
    middles: np.ndarray
    """float64 [O], integers; 0 of rows that eight bits hold with their sign."""


def steps_of(weight: np.ndarray) -> Stepped | None:
    """Floats [O, ..] as integers, of any strides; None where they are none, but for rounding.

    What is integers already has steps of 1. Else a row's largest element is some integer times its
    step: the largest step that makes integers of a few others is tried on all.
    """
    rows = weight.reshape(len(weight), -1)
    if not _is_stepped(rows[0]):
        return None
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1)).astype(np.float64)
    if not np.isfinite(largest).all():
        return None
    ones = np.ones(len(rows))
    found = _integers(rows, ones) if largest.max() <= RANGE else None
    steps = _guessed(rows, largest) if found is None else ones
    if steps is None:
        return None
    integers = _integers(rows, steps) if found is None else found
    if integers is None:
        return None
    least, most = integers.min(axis=1), integers.max(axis=1)
    if int((most - least).max()) > RANGE:
        return None
    signed = (least >= LEAST) & (most <= MOST)
    middles = np.where(signed, 0, (least + most + 1) // 2)
    if middles.any():
        integers = integers - middles[:, np.newaxis].astype(np.int16)
    return Stepped(integers.astype(np.int8).reshape(weight.shape), steps, middles.astype(float))


def _is_stepped(row: np.ndarray) -> bool:
    """Whether some elements of a row are integers times a step: of floats the first one is none."""
    largest = float(np.abs(row).max())
    if not 0 < largest < np.inf:
        return True
    some = row[:: max(1, len(row) // SAMPLES[-1])].astype(np.float64)
    steps = largest / np.arange(1, RANGE + 1)[:, np.newaxis]
    return bool(_whole(some / steps).all(axis=1).any())


def _guessed(rows: np.ndarray, largest: np.ndarray) -> np.ndarray | None:
    """The steps of rows by some of their elements; None where a row has none."""
    few, more = (rows[:, :: max(1, rows.shape[1] // n)].astype(np.float64) for n in SAMPLES)
    steps = np.where(largest == 0, 1.0, 0.0)
    for most in range(1, RANGE + 1):
        left = np.flatnonzero(steps == 0)
        for some in (few, more):
            step = largest[left] / most
            left = left[_whole(some[left] / step[:, np.newaxis]).all(axis=1)]
        steps[left] = largest[left] / most
    return steps if steps.all() else None


def _integers(rows: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Rows over their steps, int16, in the order that they lie in; None if one is no integer."""
    integers = np.empty_like(rows, np.int16)
    inverse = (1.0 / steps).astype(np.float32)[:, np.newaxis]
    by_rows = rows.flags.c_contiguous
    length = max(1, CHUNK // rows.shape[1 if by_rows else 0])
    for begin in range(0, rows.shape[0 if by_rows else 1], length):
        part = slice(begin, begin + length)
        place = (part, slice(None)) if by_rows else (slice(None), part)
        multiples = rows[place] * (inverse[part] if by_rows else inverse)
        if not _whole(multiples).all():
            return None
        integers[place] = np.rint(multiples)
    return integers


def _whole(multiples: np.ndarray) -> np.ndarray:
    """Whether they are integers, but for what was rounded when they were multiplied."""
    most = np.float32(ROUNDED * np.finfo(np.float32).eps / 2) * np.abs(multiples)
    return np.abs(multiples - np.rint(multiples)) <= most
