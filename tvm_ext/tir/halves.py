"""The operations of `tvm_pairs` in numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tvm_ext.tvm_pairs import HALF_BITS, WORD

Array = Any  # numpy array or scalar of any dtype


def halves_of(words: Array) -> Array:
    """The two bfloat16 of each word, on an axis of their own, as float64."""
    octets = np.ascontiguousarray(words).astype(WORD)[..., np.newaxis]
    return octets.view(ml_dtypes.bfloat16).astype(np.float64)


def dot_pairs(a: Array, b: Array) -> Array:
    """Of two bfloat16 in each word."""
    return (halves_of(a) * halves_of(b)).sum(axis=-1)


def to_half(a: Array) -> Array:
    """The nearest bfloat16 of each number, as a float32 is rounded."""
    return np.asarray(a).astype(np.float32).astype(ml_dtypes.bfloat16)


def rounded_bits(a: Array) -> Array:
    """The bits of it."""
    return to_half(a).view(HALF_BITS)


def paired(low: Array, high: Array) -> Array:
    """Those of two in a word."""
    halves = np.stack(np.broadcast_arrays(to_half(low), to_half(high)), axis=-1)
    return halves.view(WORD)[..., 0]
