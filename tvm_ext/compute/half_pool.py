"""The largest of each window of bfloat16, which is that of the numbers they were rounded from,
rounded.

y[n, i, c] = max over k of x[n, i * stride + k - before, c]        x, y: bits in a uint16
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_ext.compute.windows import Window, over_windows
from tvm_ext.tvm_api import te, tirx
from tvm_ext.tvm_pairs import HALF_BITS, upper, widened

Tensor = Any

LOWEST = 0xFF80
"""Minus infinity."""


def largest_half(x: Tensor, windows: Mapping[int, Window]) -> Tensor:
    """x uint16, windows by axis  →  uint16, of `outputs` elements along each."""
    largest = over_windows(
        x,
        windows,
        lambda half, steps: te.max(widened(half), axis=steps),
        "largest",
        around=tirx.const(LOWEST, HALF_BITS),
    )
    return te.compute(largest.shape, lambda *at: upper(largest(*at)), name="halves")
