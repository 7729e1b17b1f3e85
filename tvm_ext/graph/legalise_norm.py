"""The normalisations lowered to `compute.norm`: layer, RMS, instance and group.

layer_norm(x, gamma, beta)  →  call_tir(row_sum; row_square; normalise)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext.compute.norm import normalise
from tvm_ext.tvm_api import tirx, topi

FUSES_PROLOGUE = {"op_pattern": 3}
Place = Callable[[Sequence[Any]], Any]
"""From the index of an element to that of its scale and shift."""


def static_shape(expr: Any) -> tuple[int, ...] | None:
    """The static shape of a float32 expression; None if it has none."""
    ty = expr.ty
    if str(ty.dtype) != "float32" or ty.shape is None:
        return None
    extents = list(ty.shape)
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def ints(values: Any) -> tuple[int, ...]:
    """The values as Python integers."""
    return tuple(int(value) for value in values)


def _emit(
    builder: Any,
    name: str,
    x: Any,
    parameters: Sequence[Any],
    axes: list[int],
    place: Place,
    epsilon: float,
    lanes: int,
) -> Any:
    """The call of one normalisation; without a shift (RMS) the mean is not taken out."""

    def body(x: Any, gamma: Any, *beta: Any) -> Any:
        def scale(at: Sequence[Any], value: Any) -> Any:
            scaled = value * gamma[place(at)]
            return scaled + beta[0][place(at)] if beta else scaled

        return normalise(x, axes, epsilon, scale, lanes, centre=bool(beta))

    return builder.call_te(
        body, x, *parameters, primfunc_name_hint=name, primfunc_attrs=FUSES_PROLOGUE
    )


def legalise_norm(builder: Any, call: Any, options: Any) -> Any:
    """Layer and RMS normalisation (scale per element of the axes) and instance normalisation
    (scale per channel)."""
    shape = static_shape(call.args[0])
    if shape is None:
        return None
    attrs, name = call.attrs, str(call.op.name).rsplit(".", 1)[-1]
    axes = sorted(axis % len(shape) for axis in ints(attrs.axes))
    channel = int(attrs.channel_axis) % len(shape) if name == "instance_norm" else None

    def place(at: Sequence[Any]) -> Any:
        return tuple(at[axis] for axis in axes) if channel is None else at[channel]

    x, *parameters = call.args
    epsilon = float(attrs.epsilon)
    return _emit(builder, name, x, parameters, axes, place, epsilon, options.lanes)


def legalise_group_norm(builder: Any, call: Any, options: Any) -> Any:
    """Group normalisation: the channel axis taken apart into groups, normalised, put together."""
    shape = static_shape(call.args[0])
    if shape is None:
        return None
    attrs = call.attrs
    channel = int(attrs.channel_axis) % len(shape)
    groups = int(attrs.num_groups)
    size = shape[channel] // groups
    split = (*shape[:channel], groups, size, *shape[channel + 1 :])
    axes = [axis % len(shape) for axis in ints(attrs.axes)]
    inner = sorted([channel + 1, *(axis + (axis > channel) for axis in axes)])
    x, *parameters = call.args
    normal = _emit(
        builder,
        "group_norm",
        builder.emit_te(topi.reshape, x, split),
        parameters,
        inner,
        lambda at: at[channel] * size + at[channel + 1],
        float(attrs.epsilon),
        options.lanes,
    )
    return builder.call_te(topi.reshape, builder.emit(normal), shape)


NORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relax.nn.layer_norm": legalise_norm,
    "relax.nn.rms_norm": legalise_norm,
    "relax.nn.instance_norm": legalise_norm,
    "relax.nn.group_norm": legalise_group_norm,
}
