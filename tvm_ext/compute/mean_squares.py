"""Means of squares over windows, as a normalisation over neighbouring channels takes them.

y[n, i, c] = sum over k of x[n, i * stride + k - before, c]² / size        zeros around x count
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from tvm_ext.tvm_api import te, tirx, topi

Tensor = Any


class Window(NamedTuple):
    """What a mean is taken of along one axis, and how many there are."""

    size: int
    stride: int
    before: int
    outputs: int

    def beyond(self, extent: int) -> int:
        """Zeros behind so many elements that windows read."""
        return max(0, (self.outputs - 1) * self.stride - self.before + self.size - extent)


def mean_squares(x: Tensor, windows: Mapping[int, Window]) -> Tensor:
    """x float32, windows by axis  →  float32, of `outputs` elements along each."""
    extents = [int(extent) for extent in x.shape]
    axes = range(len(extents))
    whole = {axis: windows.get(axis, Window(1, 1, 0, extents[axis])) for axis in axes}
    before, after = [whole[a].before for a in axes], [whole[a].beyond(extents[a]) for a in axes]
    padded = topi.nn.pad(x, before, after, name="padded") if any((*before, *after)) else x
    steps = {axis: te.reduce_axis((0, one.size), name=f"k{axis}") for axis, one in windows.items()}

    def add(*at: Any) -> Any:
        source = [i * whole[a].stride + steps[a] if a in steps else i for a, i in enumerate(at)]
        element = padded(*source)
        return te.sum(element * element, axis=list(steps.values()))

    out = [whole[axis].outputs for axis in axes]
    total = te.compute(out, add, name="total")
    share = tirx.const(1.0 / prod(one.size for one in windows.values()), "float32")
    return te.compute(out, lambda *at: total(*at) * share, name="mean")
