"""Windows over a tensor's axes, and what is made of the elements of each: a sum, the largest.

y[n, i, c] = over k of x[n, i * stride + k - before, c]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tvm_ext.tvm_api import te, topi

Tensor = Any


class Window(NamedTuple):
    """What is taken of one axis at a time, and how often."""

    size: int
    stride: int
    before: int
    outputs: int

    def beyond(self, extent: int) -> int:
        """Elements that windows read behind so many."""
        return max(0, (self.outputs - 1) * self.stride - self.before + self.size - extent)


def over_windows(
    x: Tensor,
    windows: Mapping[int, Window],
    combine: Callable[[Any, list[Any]], Any],
    name: str,
    around: Any = 0.0,
) -> Tensor:
    """x, windows by axis  →  `combine(element, reduce axes)` of each, `outputs` along each axis;
    `around` is what lies around x, zero by default."""
    extents = [int(extent) for extent in x.shape]
    axes = range(len(extents))
    whole = {axis: windows.get(axis, Window(1, 1, 0, extents[axis])) for axis in axes}
    before, after = [whole[a].before for a in axes], [whole[a].beyond(extents[a]) for a in axes]
    padded = topi.nn.pad(x, before, after, around, name="padded") if any((*before, *after)) else x
    steps = {axis: te.reduce_axis((0, one.size), name=f"k{axis}") for axis, one in windows.items()}

    def at_place(*at: Any) -> Any:
        source = [i * whole[a].stride + steps[a] if a in steps else i for a, i in enumerate(at)]
        return combine(padded(*source), list(steps.values()))

    return te.compute([whole[axis].outputs for axis in axes], at_place, name=name)
