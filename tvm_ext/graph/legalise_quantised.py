"""Quantising and dequantising, with scales and zero points as operands.

quantize(x, scale, point)    →  call_tir(quantize, x, 1 / scale, point)      a known scale
dequantize(x, scale, point)  →  call_tir(dequantize, x, scale, point)

TVM writes known scales into the program: equal layers would each have a kernel of their own. And it
divides by them, which takes as long as a short product of bytes that comes before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.graph.legalise_norm import known_extents
from tvm_ext.tvm_api import constant, constant_array, te, tirx, topi

BYTES = ("int8", "uint8")


def legalise_quantise(builder: Any, call: Any, options: Any) -> Any:
    """round(x / scale) + point, within the bytes that there are."""
    x, scale, point = call.args
    dtype, known = str(call.ty.dtype.dtype), constant_array(scale)
    if known_extents(x) is None or dtype not in BYTES:
        return None
    least, most = (tirx.const(v, "float32") for v in _limits(dtype))
    inverse = (
        None if known is None else constant((1.0 / known.astype(np.float64)).astype("float32"))
    )

    def body(x: te.Tensor, scale: te.Tensor, point: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            factor = _along(scale, at, axis)
            scaled = x(*at) / factor if inverse is None else x(*at) * factor
            steps = te.round(scaled) + _along(point, at, axis).astype("float32")
            return te.max(te.min(steps, most), least).astype(dtype)

        return te.compute(x.shape, element, name="quantized")

    axis = int(call.attrs.axis)
    return builder.call_te(
        body,
        x,
        scale if inverse is None else inverse,
        _as_float(point),
        key=(axis, dtype, inverse is None),
        primfunc_name_hint="quantize",
    )


def legalise_dequantise(builder: Any, call: Any, options: Any) -> Any:
    """(x - point) * scale"""
    x, scale, point = call.args
    if str(x.ty.dtype.dtype) not in BYTES or known_extents(call) is None:
        return None

    def body(x: te.Tensor, scale: te.Tensor, point: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            own = _along(point, at, axis).astype("float32")
            return (x(*at).astype("float32") - own) * _along(scale, at, axis)

        return te.compute(x.shape, element, name="dequantized")

    axis = int(call.attrs.axis)
    return builder.call_te(
        body, x, scale, _as_float(point), key=axis, primfunc_name_hint="dequantize"
    )


def legalise_scales(builder: Any, call: Any, options: Any) -> Any:
    """A known number times one that a run works out, as the scales of a product's two sides are."""
    known = [constant_array(one) is not None for one in call.args]
    if known_extents(call) != () or sum(known) != 1:
        return None
    return builder.call_te(topi.multiply, *call.args, key="scales", primfunc_name_hint="multiply")


QUANTISED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relax.quantize": legalise_quantise,
    "relax.dequantize": legalise_dequantise,
    "relax.multiply": legalise_scales,
}


def _along(parameter: Any, at: tuple[Any, ...], axis: int) -> Any:
    """A scale or zero point of an element: one for all, or one for each place along an axis."""
    if all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in parameter.shape):
        return parameter(*(0 for _ in parameter.shape))
    return parameter(at[axis])


def _as_float(point: Any) -> Any:
    """A known zero point in the type it is used in: signed or not, layers are alike."""
    array = constant_array(point)
    return point if array is None else constant(array.astype(np.float32))


def _limits(dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
