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
SAMPLE = 64
"""Elements of each row that are looked at to tell its step."""
ROUNDED = 8.0
"""Roundings of an integer times its step, and of what a row was scaled by later."""


class Stepped(NamedTuple):
    """Weights [O, ..] = (integers + middles) * steps."""

    integers: np.ndarray
    """int8 [O, ..]."""
    steps: np.ndarray
    """float64 [O]."""
    middles: np.ndarray
    """float64 [O], integers; 0 of rows that eight bits hold with their sign."""


def steps_of(weight: np.ndarray) -> Stepped | None:
    """Floats [O, ..] as integers; None where they are none, but for rounding.

    What is integers already has steps of 1. Else a row's largest element is some integer times its
    step: the largest step that makes integers of a few others is tried on all.
    """
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    largest = np.abs(rows).max(axis=1)
    if not np.isfinite(largest).all():
        return None
    known = largest.max() <= RANGE and np.array_equal(rows, np.rint(rows))
    steps = np.where((largest == 0) | known, 1.0, 0.0)
    some = rows[:, :: max(1, rows.shape[1] // SAMPLE)]
    for most in range(1, RANGE + 1):
        left = steps == 0
        if not left.any():
            break
        step = largest[left] / most
        fits = _whole(some[left] / step[:, np.newaxis]).all(axis=1)
        steps[left] = np.where(fits, step, 0.0)
    if not steps.all():
        return None
    multiples = rows / steps[:, np.newaxis]
    integers = np.rint(multiples)
    least, most_of_row = integers.min(axis=1), integers.max(axis=1)
    if not _whole(multiples).all() or (most_of_row - least).max() > RANGE:
        return None
    signed = (least >= LEAST) & (most_of_row <= MOST)
    middles = np.where(signed, 0.0, np.floor((least + most_of_row + 1) / 2))
    moved = (integers - middles[:, np.newaxis]).astype(np.int8)
    return Stepped(moved.reshape(weight.shape), steps, middles)


def _whole(multiples: np.ndarray) -> np.ndarray:
    """Whether they are integers, but for what was rounded when they were multiplied."""
    most = ROUNDED * np.finfo(np.float32).eps / 2 * np.abs(multiples)
    return np.abs(multiples - np.rint(multiples)) <= most
