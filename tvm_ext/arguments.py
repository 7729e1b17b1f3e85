"""Arguments of functions, checked before any work."""

from __future__ import annotations

import os
from math import isfinite
from numbers import Real
from operator import index
from typing import Any

from tvm_ext.errors import ArgumentError, TargetError, TvmExtError

MOST_THREADS = 1024


def whole_number(
    what: str,
    value: Any,
    least: int,
    most: int | None = None,
    error: type[TvmExtError] = ArgumentError,
) -> int:
    """The value as a whole number from `least` to `most`. Raises `error` for anything else, True
    and 2.0 included."""
    limit = f"from {least} to {most}" if most is not None else f"from {least} up"
    try:
        number = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        raise error(f"{what}={value!r}: is no whole number {limit}; give one")
    return number


def thread_count(value: Any) -> int | None:
    """Threads to run on; None for all physical cores. Raises TargetError."""
    if value is None:
        return None
    return whole_number("num_threads", value, 1, MOST_THREADS, TargetError)


def above_zero(what: str, value: Any) -> float | None:
    """A number above 0, or None. Raises ArgumentError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ArgumentError(f"{what}={value!r}: is no number above 0; give one, or leave it out")
    return float(value) if isfinite(float(value)) else None


def is_path(value: Any) -> bool:
    """Whether it may name a file: neither bytes nor the empty text do."""
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value))
