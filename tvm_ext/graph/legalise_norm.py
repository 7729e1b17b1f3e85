"""The normalisations lowered to `compute.norm`: layer, RMS, instance and group.

layer_norm(x, gamma, beta)  →  call_tir(row_sum; row_square; normalise)

Where the reduced axes are not the innermost ones, each stage is a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from tvm_ext.compute.norm import normalise
from tvm_ext.compute.norm_columns import (
    column_normalise,
    column_rsqrt,
    column_square,
    column_sum,
    group_mean,
)
from tvm_ext.tvm_api import tirx, topi

FUSES_PROLOGUE = {"op_pattern": 3}
STANDS_ALONE = {"op_pattern": 8}
"""For what has a value per column: computed once, not again for each element that uses it."""
Place = Callable[[Sequence[Any]], Any]
"""From the index of an element to that of its scale and shift."""


def static_shape(expr: Any) -> tuple[int, ...] | None:
    """The static shape of a float32 expression; None if it has none."""
    extents = known_extents(expr)
    known = tuple(extent for extent in extents or () if extent is not None)
    return known if extents is not None and len(known) == len(extents) else None


def known_extents(expr: Any) -> tuple[int | None, ...] | None:
    """The shape of a float32 expression, None for what is not known of it."""
    ty = expr.ty
    if str(ty.dtype) != "float32" or ty.shape is None:
        return None
    return tuple(int(e) if isinstance(e, tirx.IntImm) else None for e in ty.shape)


def ints(values: Any) -> tuple[int, ...]:
    """The values as Python integers."""
    return tuple(int(value) for value in values)


class _Norm(NamedTuple):
    """A normalisation of `x` over `axes`; without a shift (RMS) the mean is not taken out."""

    name: str
    x: Any
    parameters: Sequence[Any]
    axes: list[int]
    place: Place
    epsilon: float
    lanes: int

    def scale(self, parameters: Sequence[Any]) -> Callable[[Sequence[Any], Any], Any]:
        """`value * gamma + beta` at an index, for gamma and beta as tensors."""
        gamma, *beta = parameters

        def scaled(at: Sequence[Any], value: Any) -> Any:
            product = value * gamma[self.place(at)]
            return product + beta[0][self.place(at)] if beta else product

        return scaled


def _emit(builder: Any, norm: _Norm) -> Any:
    """The call of a normalisation: one kernel for rows, several for columns."""
    extents = known_extents(norm.x) or ()
    kept = [i for i, extent in enumerate(extents) if i not in norm.axes and extent != 1]
    if kept and max(kept) > min(norm.axes):
        return _emit_columns(builder, norm, 1)

    def body(x: Any, *parameters: Any) -> Any:
        centre = len(parameters) > 1
        scale = norm.scale(parameters)
        return normalise(x, norm.axes, norm.epsilon, scale, norm.lanes, centre=centre)

    return builder.call_te(
        body,
        norm.x,
        *norm.parameters,
        primfunc_name_hint=norm.name,
        primfunc_attrs=FUSES_PROLOGUE,
    )


def _emit_columns(builder: Any, norm: _Norm, size: int) -> Any:
    """Sums, squares and the result as kernels; channels in groups of `size` are the last axis."""
    x, axes = norm.x, norm.axes
    count = size * prod(int(x.ty.shape[axis]) for axis in axes)
    mean: tuple[Any, ...] = ()
    if len(norm.parameters) > 1:
        total = builder.emit_te(column_sum, x, axes, norm.lanes)
        mean = (builder.emit_te(group_mean, total, size, count, primfunc_attrs=STANDS_ALONE),)

    def squares(x: Any, *mean: Any) -> Any:
        return column_square(x, mean[0] if mean else None, axes, norm.lanes)

    def body(x: Any, factor: Any, *others: Any) -> Any:
        scale = norm.scale(others[len(mean) :])
        return column_normalise(x, others[0] if mean else None, factor, axes, scale)

    def inverse(total: Any) -> Any:
        return column_rsqrt(group_mean(total, size, count), norm.epsilon)

    total = builder.emit_te(squares, x, *mean, primfunc_name_hint="column_square")
    factor = builder.emit_te(
        inverse, total, primfunc_name_hint="column_rsqrt", primfunc_attrs=STANDS_ALONE
    )
    return builder.call_te(body, x, factor, *mean, *norm.parameters, primfunc_name_hint=norm.name)


def legalise_norm(builder: Any, call: Any, options: Any) -> Any:
    """Layer and RMS normalisation: scale per element of the axes."""
    shape = known_extents(call.args[0])
    if shape is None:
        return None
    attrs, name = call.attrs, str(call.op.name).rsplit(".", 1)[-1]
    axes = sorted(axis % len(shape) for axis in ints(attrs.axes))
    if any(shape[axis] is None for axis in axes):
        return None

    def place(at: Sequence[Any]) -> Any:
        return tuple(at[axis] for axis in axes)

    x, *parameters = call.args
    epsilon = float(attrs.epsilon)
    return _emit(builder, _Norm(name, x, parameters, axes, place, epsilon, options.lanes))


def legalise_group_norm(builder: Any, call: Any, options: Any) -> Any:
    """Group normalisation, and instance normalisation, whose groups have one channel.

    The channel axis is taken apart into groups and the axes after it are put together: long rows
    run in whole vectors. The data stays as it lies. Channels-last data is reduced by columns.
    """
    shape = static_shape(call.args[0])
    if shape is None:
        return None
    attrs, name = call.attrs, str(call.op.name).rsplit(".", 1)[-1]
    channel = int(attrs.channel_axis) % len(shape)
    groups = shape[channel] if name == "instance_norm" else int(attrs.num_groups)
    size = shape[channel] // groups
    axes = sorted(axis % len(shape) for axis in ints(attrs.axes))
    x, *parameters = call.args
    epsilon = float(attrs.epsilon)
    if channel == len(shape) - 1 and channel not in axes:

        def own(at: Sequence[Any]) -> Any:
            return at[channel]

        norm = _Norm(name, x, parameters, axes, own, epsilon, options.lanes)
        return _emit_columns(builder, norm, size)
    after = list(range(channel + 1, len(shape)))
    tail = shape[channel + 1 :]
    if axes[-len(after) :] == after:
        tail = (prod(tail),)
        axes = [*axes[: -len(after)], channel + 1]

    def place(at: Sequence[Any]) -> Any:
        return at[channel] * size + at[channel + 1]

    view = builder.emit_te(topi.reshape, x, (*shape[:channel], groups, size, *tail))
    inner = sorted([channel + 1, *(axis + (axis > channel) for axis in axes)])
    norm = _Norm(name, view, parameters, inner, place, epsilon, options.lanes)
    return builder.call_te(topi.reshape, builder.emit(_emit(builder, norm)), shape)


NORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relax.nn.layer_norm": legalise_norm,
    "relax.nn.rms_norm": legalise_norm,
    "relax.nn.instance_norm": legalise_group_norm,
    "relax.nn.group_norm": legalise_group_norm,
}
