"""Softmax and the normalisations, stage by stage, with the variance taken about the mean.

TVM's own layer norm computes E[x²] - E[x]² in one pass, which cancels in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext.compute import maths
from tvm_ext.tvm_api import te, tirx

Tensor = Any


def _reduce(
    x: Tensor,
    axes: Sequence[int],
    name: str,
    combine: Callable[..., Any],
    value: Callable[..., Any],
) -> Tensor:
    """Reduces `value(element, kept)` over `axes`; the result keeps the other axes."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    loops = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}

    def body(*at: Any) -> Any:
        index = dict(zip(kept, at, strict=True)) | loops
        place = tuple(index[axis] for axis in range(len(x.shape)))
        return combine(value(x[place], at), axis=list(loops.values()))

    return te.compute(
        tuple(x.shape[axis] for axis in kept) or (1,), body if kept else _single(body), name=name
    )


def _single(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _: body()


def _at(tensor: Tensor, index: Sequence[Any], axes: Sequence[int]) -> Any:
    """The element of a reduced tensor that belongs to a full index."""
    kept = tuple(i for axis, i in enumerate(index) if axis not in axes)
    return tensor[kept or (0,)]


def softmax(x: Tensor, axis: int, log: bool = False) -> Tensor:
    """Softmax (or its logarithm) along one axis, the row maximum taken out first."""
    top = _reduce(x, [axis], "row_max", te.max, lambda v, _: v)
    if log:
        total = _reduce(x, [axis], "row_sum", te.sum, lambda v, at: maths.exp(v - top[at]))
        return te.compute(
            x.shape,
            lambda *at: x[at] - _at(top, at, [axis]) - tirx.log(_at(total, at, [axis])),
            name="log_softmax",
        )
    power = te.compute(x.shape, lambda *at: maths.exp(x[at] - _at(top, at, [axis])), name="row_exp")
    total = _reduce(power, [axis], "row_sum", te.sum, lambda v, _: v)
    return te.compute(x.shape, lambda *at: power[at] / _at(total, at, [axis]), name="softmax")


def normalise(
    x: Tensor, axes: Sequence[int], epsilon: float, scale: Callable[..., Any], centre: bool = True
) -> Tensor:
    """`scale(index, (x - mean) / sqrt(variance + epsilon))` over `axes`; RMS without `centre`."""
    count = 1
    for axis in axes:
        count *= int(x.shape[axis])
    inverse = tirx.const(1.0 / count, x.dtype)
    total = _reduce(x, axes, "row_sum", te.sum, lambda v, _: v) if centre else None

    def centred(value: Any, at: Sequence[Any]) -> Any:
        return value - total[at or (0,)] * inverse if total is not None else value

    squares = _reduce(x, axes, "row_square", te.sum, lambda v, at: centred(v, at) * centred(v, at))

    def body(*at: Any) -> Any:
        kept = tuple(i for axis, i in enumerate(at) if axis not in axes)
        spread = _at(squares, at, axes) * inverse + tirx.const(epsilon, x.dtype)
        return scale(at, centred(x[at], kept) * tirx.rsqrt(spread))

    return te.compute(x.shape, body, name="normalise")
