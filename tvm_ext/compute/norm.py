"""Reductions, softmax and the normalisations, stage by stage.

The variance is taken about the mean; TVM's own layer norm computes E[x²] - E[x]² in one pass, which
cancels in float32. A row whose length is not a multiple of the vector is reduced in two parts, so
that the long one runs in whole vectors:

    s = sum over k < 197 of x[k]   →   m = sum over k < 192; t = sum over 192 <= k < 197; s = m + t
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm_ext.compute import maths
from tvm_ext.tvm_api import te, tirx

Tensor = Any
Value = Callable[[Any, tuple[Any, ...]], Any]
"""From an element and its index in the tensor to what is reduced."""

COMBINE: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "sum": (te.sum, lambda a, b: a + b),
    "max": (te.max, tirx.max),
    "min": (te.min, tirx.min),
}


def reduce_axes(
    x: Tensor,
    axes: Sequence[int],
    how: str,
    lanes: int,
    name: str,
    value: Value = lambda element, _: element,
) -> Tensor:
    """Reduces `value(element, index)` over `axes`; the result has the other axes, or [1]."""
    run = trailing(axes, len(x.shape))
    extent = prod(int(x.shape[axis]) for axis in run)
    tail = extent % lanes
    if not run or not tail or extent < 2 * lanes:
        return _part(x, axes, how, name, value, 0, extent)
    main = _part(x, axes, how, name, value, 0, extent - tail)
    rest = _part(x, axes, how, f"{name}_tail", value, extent - tail, tail)
    join = COMBINE[how][1]
    return te.compute(main.shape, lambda *at: join(main[at], rest[at]), name=f"{name}_all")


def trailing(axes: Sequence[int], rank: int) -> list[int]:
    """Those of the axes that are the last of a tensor: along them its elements lie in a row."""
    first = rank
    while first - 1 in axes:
        first -= 1
    return list(range(first, rank))


def _part(
    x: Tensor, axes: Sequence[int], how: str, name: str, value: Value, start: int, count: int
) -> Tensor:
    """The reduction with the last axes, if they are reduced, as one that is limited to
    [start, start + count)."""
    rank = len(x.shape)
    kept = [axis for axis in range(rank) if axis not in axes]
    run = trailing(axes, rank)
    outer = [axis for axis in axes if axis not in run]
    loops = {axis: te.reduce_axis((0, int(x.shape[axis])), name=f"k{axis}") for axis in outer}
    row = [te.reduce_axis((0, count), name=f"k{rank - 1}")] if run else []

    def body(*at: Any) -> Any:
        own = dict(zip(kept, at if kept else (), strict=True)) | loops
        left: Any = row[0] + start if start else row[0] if row else 0
        for axis in reversed(run):
            size = int(x.shape[axis])
            first = axis == run[0]
            own[axis] = left if first else left % size
            left = left if first else left // size
        index = tuple(own[axis] for axis in range(rank))
        return COMBINE[how][0](value(x[index], index), axis=[*loops.values(), *row])

    return te.compute(tuple(x.shape[axis] for axis in kept) or (1,), body, name=name)


def kept_index(index: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """The index of a reduced tensor's element that belongs to a full index."""
    return tuple(i for axis, i in enumerate(index) if axis not in axes)


def at_row(tensor: Tensor, index: Sequence[Any], axes: Sequence[int]) -> Any:
    """A reduced tensor's element that belongs to a full index."""
    return tensor[kept_index(index, axes) or (0,)]


def softmax(x: Tensor, axis: int, lanes: int, log: bool = False) -> Tensor:
    """Softmax (or its logarithm) along one axis, the row maximum taken out first."""
    axes = [axis]
    top = reduce_axes(x, axes, "max", lanes, "row_max")

    def power_of(value: Any, at: Sequence[Any]) -> Any:
        return maths.exp_down(value - at_row(top, at, axes))

    if log:
        total = reduce_axes(x, axes, "sum", lanes, "row_sum", power_of)

        def log_body(*at: Any) -> Any:
            return x[at] - at_row(top, at, axes) - tirx.log(at_row(total, at, axes))

        return te.compute(x.shape, log_body, name="log_softmax")
    power = te.compute(x.shape, lambda *at: power_of(x[at], at), name="row_exp")
    total = reduce_axes(power, axes, "sum", lanes, "row_sum")
    return te.compute(
        x.shape,
        lambda *at: power[at] * (tirx.const(1.0, x.dtype) / at_row(total, at, axes)),
        name="softmax",
    )


def normalise(
    x: Tensor,
    axes: Sequence[int],
    epsilon: float,
    scale: Callable[[Sequence[Any], Any], Any],
    lanes: int,
    centre: bool = True,
) -> Tensor:
    """`scale(index, (x - mean) / sqrt(variance + epsilon))` over `axes`; RMS without `centre`."""
    count = 1
    for axis in axes:
        count *= int(x.shape[axis])
    inverse = tirx.const(1.0 / count, x.dtype)
    total = reduce_axes(x, axes, "sum", lanes, "row_sum") if centre else None

    def centred(element: Any, at: Sequence[Any]) -> Any:
        return element if total is None else element - at_row(total, at, axes) * inverse

    squares = reduce_axes(
        x, axes, "sum", lanes, "row_square", lambda v, at: centred(v, at) * centred(v, at)
    )

    def body(*at: Any) -> Any:
        spread = at_row(squares, at, axes) * inverse + tirx.const(epsilon, x.dtype)
        return scale(at, centred(x[at], at) * maths.rsqrt(spread))

    return te.compute(x.shape, body, name="normalise")


def reduction(x: Tensor, axes: Sequence[int], how: str, keepdims: bool, lanes: int) -> Tensor:
    """`sum`, `mean`, `max` or `min` over `axes`."""
    base = reduce_axes(x, axes, "sum" if how == "mean" else how, lanes, "reduced")
    count = 1
    for axis in axes:
        count *= int(x.shape[axis])
    factor = tirx.const(1.0 / count, x.dtype) if how == "mean" else None
    shape = [
        1 if axis in axes else extent
        for axis, extent in enumerate(x.shape)
        if keepdims or axis not in axes
    ]

    def body(*at: Any) -> Any:
        element = at_row(base, at, axes) if keepdims else base[at or (0,)]
        return element if factor is None else element * factor

    if how != "mean" and not keepdims and shape:
        return base
    return te.compute(shape, body, name=how)
