"""Arguments of a kernel and the data it is tried on, the same in every process that makes it."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Literal

import msgspec
import numpy as np

from tvm_ext.tvm_pairs import HALF

DRAWN = 262_147
"""Random floats of one array at most. A prime: no axis has it for a stride, so rows and columns
differ everywhere."""


class Argument(msgspec.Struct, frozen=True):
    """One tensor argument of a kernel: filled with data if it is read, given to the kernel blank
    if it is `output`."""

    shape: tuple[int, ...]
    dtype: str
    output: bool = False
    span: tuple[int, int] = (0, 8)
    """Integer inputs are drawn from [span[0], span[1]): narrow it for indices into a short axis,
    widen it (with negatives) for quantised values."""
    halves: bool = False
    """The bits of each integer are those of floats of 16 bits (`tvm_pairs`)."""


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy type called `name`; `bfloat16` and the 8-bit floats come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def make_inputs(arguments: tuple[Argument, ...], seed: int) -> list[np.ndarray]:
    """One array per argument that is not an output, in order.

    Floats are standard normal, integers uniform over `span`, booleans fair coins. Each array has
    a generator of its own, seeded by `seed` and its position, so every process that calls this
    with the same arguments holds the same data. Large arrays repeat their first `DRAWN` floats.
    """
    return [
        _draw(argument, seed, position)
        for position, argument in enumerate(arguments)
        if not argument.output
    ]


def _draw(argument: Argument, seed: int, position: int) -> np.ndarray:
    dtype = numpy_dtype(argument.dtype)
    if argument.halves:
        *outer, last = argument.shape
        each = dtype.itemsize // numpy_dtype(HALF).itemsize
        return _draw(Argument((*outer, each * last), HALF), seed, position).view(dtype)
    if dtype.kind in "biu":
        generator = np.random.default_rng((seed, position))
        span = (0, 2) if dtype == np.bool_ else argument.span
        return generator.integers(*span, argument.shape, dtype=np.int64).astype(dtype)
    drawn = _normals(seed, position, "float64" if dtype == np.float64 else "float32")
    return np.resize(drawn[: prod(argument.shape)], argument.shape).astype(dtype, copy=False)


@lru_cache(maxsize=16)
def _normals(seed: int, position: int, dtype: Literal["float32", "float64"]) -> np.ndarray:
    """Kept: drawing them takes longer than a small kernel's check."""
    return np.random.default_rng((seed, position)).standard_normal(DRAWN, dtype)
