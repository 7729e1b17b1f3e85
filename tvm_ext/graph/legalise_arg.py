"""argmax and argmin lowered to `compute.arg`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm_ext.compute.arg import LARGEST, arg_extreme
from tvm_ext.graph.legalise_norm import FUSES_PROLOGUE, ints, static_shape
from tvm_ext.tvm_api import topi


def legalise_arg(builder: Any, call: Any, options: Any) -> Any:
    """Index of the extreme along one axis, or in the flattened tensor."""
    shape = static_shape(call.args[0])
    if not shape:
        return None
    attrs, name = call.attrs, str(call.op.name).rsplit(".", 1)[-1]
    x, keepdims = call.args[0], bool(attrs.keepdims)
    axis = len(shape) - 1 if attrs.axis is None else int(attrs.axis) % len(shape)
    if attrs.axis is None and len(shape) > 1:
        x = builder.emit_te(topi.reshape, x, (1,) * (len(shape) - 1) + (prod(shape),))
    if int(x.ty.shape[axis]) > LARGEST:
        return None
    place = builder.emit_te(
        lambda x: arg_extreme(x, axis, name.removeprefix("arg"), keepdims, options.lanes),
        x,
        primfunc_name_hint=name,
        primfunc_attrs=FUSES_PROLOGUE,
    )
    # a kernel of its own: one with 64-bit data keeps 64-bit indices, which cost vectors
    wide = builder.call_te(topi.cast, place, "int64")
    shape = ints(call.ty.shape)
    if shape == ints(place.ty.shape):
        return wide
    return builder.call_te(topi.reshape, builder.emit(wide), shape)


ARGS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relax.argmax": legalise_arg,
    "relax.argmin": legalise_arg,
}
