"""Means of squares over windows, as a normalisation over neighbouring channels takes them.

y[n, i, c] = sum over k of x[n, i * stride + k - before, c]² / size        zeros around x count
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tvm_ext.compute.windows import Window, over_windows
from tvm_ext.tvm_api import te, tirx

Tensor = Any


def mean_squares(x: Tensor, windows: Mapping[int, Window]) -> Tensor:
    """x float32, windows by axis  →  float32, of `outputs` elements along each."""
    total = over_windows(
        x, windows, lambda element, steps: te.sum(element * element, axis=steps), "total"
    )
    share = tirx.const(1.0 / prod(one.size for one in windows.values()), "float32")
    return te.compute(total.shape, lambda *at: total(*at) * share, name="mean")
