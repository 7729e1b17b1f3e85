"""Normalisation over axes that lie outside the innermost ones, as kernels of their own.

Instance and group norm of channels-last data reduce over space and keep the channels, so vectors
run along the channels, and each reduction is a pass over the whole tensor:

    sum; group_mean                     →  mean[n, c] over space and the channels of c's group
    squares about it; group_mean; rsqrt →  factor[n, c]
    normalise                           →  (x - mean) * factor * gamma + beta

`axes` are the reduced ones; a column tensor has the others. Channels in groups of `size` are the
last axis, and what the channels of a group have in common is said for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext.compute import maths
from tvm_ext.compute.norm import at_row, reduce_axes
from tvm_ext.tvm_api import te, tirx

Tensor = Any


def column_sum(x: Tensor, axes: Sequence[int], lanes: int) -> Tensor:
    """Sum of x."""
    return reduce_axes(x, axes, "sum", lanes, "column_sum")


def column_square(x: Tensor, mean: Tensor | None, axes: Sequence[int], lanes: int) -> Tensor:
    """Sum of the squares of x - mean; of x without `mean`."""

    def square(element: Any, at: Sequence[Any]) -> Any:
        distance = element if mean is None else element - at_row(mean, at, axes)
        return distance * distance

    return reduce_axes(x, axes, "sum", lanes, "column_square", square)


def group_mean(total: Tensor, size: int, count: int) -> Tensor:
    """Sums over groups of `size` neighbours of the last axis, divided by `count`, for each."""
    inverse = tirx.const(1.0 / count, total.dtype)
    if size == 1:
        return te.compute(total.shape, lambda *at: total[at] * inverse, name="column_mean")
    k = te.reduce_axis((0, size), name="k")

    def body(*at: Any) -> Any:
        *rest, c = at
        return te.sum(total(*rest, c // size * size + k) * inverse, axis=k)

    return te.compute(total.shape, body, name="group_mean")


def column_rsqrt(variance: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(variance + epsilon)."""
    slack = tirx.const(epsilon, variance.dtype)
    return te.compute(
        variance.shape, lambda *at: maths.rsqrt(variance[at] + slack), name="column_rsqrt"
    )


def column_normalise(
    x: Tensor,
    mean: Tensor | None,
    factor: Tensor,
    axes: Sequence[int],
    scale: Callable[[Sequence[Any], Any], Any],
) -> Tensor:
    """`scale(index, (x - mean) * factor)`."""

    def body(*at: Any) -> Any:
        centred = x[at] if mean is None else x[at] - at_row(mean, at, axes)
        return scale(at, centred * at_row(factor, at, axes))

    return te.compute(x.shape, body, name="normalise")
