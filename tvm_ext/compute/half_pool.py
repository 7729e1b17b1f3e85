"""The largest of each window of bfloat16, which is that of the numbers they were rounded from,
rounded.

y[n, i, c] = max over k of x[n, i * stride + k - before, c]        x, y: bits in a uint16
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_ext.compute.mean_squares import Window
from tvm_ext.tvm_api import te, tirx, topi
from tvm_ext.tvm_pairs import HALF_BITS, upper, widened

Tensor = Any

LOWEST = 0xFF80
"""Minus infinity."""


def largest_half(x: Tensor, windows: Mapping[int, Window]) -> Tensor:
    """x uint16, windows by axis  →  uint16, of `outputs` elements along each."""
    extents = [int(extent) for extent in x.shape]
    axes = range(len(extents))
    whole = {axis: windows.get(axis, Window(1, 1, 0, extents[axis])) for axis in axes}
    before, after = [whole[a].before for a in axes], [whole[a].beyond(extents[a]) for a in axes]
    around = tirx.const(LOWEST, HALF_BITS)
    padded = topi.nn.pad(x, before, after, around, name="padded") if any((*before, *after)) else x
    steps = {axis: te.reduce_axis((0, one.size), name=f"k{axis}") for axis, one in windows.items()}

    def choose(*at: Any) -> Any:
        source = [i * whole[a].stride + steps[a] if a in steps else i for a, i in enumerate(at)]
        return te.max(widened(padded(*source)), axis=list(steps.values()))

    out = [whole[axis].outputs for axis in axes]
    largest = te.compute(out, choose, name="largest")
    return te.compute(out, lambda *at: upper(largest(*at)), name="halves")
