"""Quantising and dequantising, with scales and zero points as operands.

quantize(x, scale, point)    →  call_tir(quantize, x, 1 / scale, point)      a known scale
dequantize(x, scale, point)  →  call_tir(dequantize, x, scale, point)

TVM writes known scales into the program: equal layers would each have a kernel of their own. And it
divides by them, which takes as long as a short product of bytes that comes before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tvm_ext.graph.legalise_norm import known_extents
from tvm_ext.tvm_api import constant, constant_array, te, tirx, topi
from tvm_ext.tvm_rounding import LIMITS

BYTES = ("uint8", "int8")


def legalise_quantise(builder: Any, call: Any, options: Any) -> Any:
    """round(x / scale) + point, within the numbers that there are: bounds are whole numbers, so it
    is cut to them before it is rounded, and the point is added to an integer (`tvm_rounding`)."""
    x, scale, point = call.args
    dtype, known = str(call.ty.dtype.dtype), constant_array(scale)
    if known_extents(x) is None or dtype not in LIMITS:
        return None
    bounds = [tirx.const(v, "float32") for v in LIMITS[dtype]]
    inverse = (
        None if known is None else constant((1.0 / known.astype(np.float64)).astype("float32"))
    )

    def body(x: te.Tensor, scale: te.Tensor, point: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            factor = _along(scale, at, axis)
            scaled = x(*at) / factor if inverse is None else x(*at) * factor
            own = _along(point, at, axis)
            least, most = (bound - own.astype("float32") for bound in bounds)
            steps = te.round(te.max(te.min(scaled, most), least)).astype("int32")
            return (steps + own.astype("int32")).astype(dtype)

        return te.compute(x.shape, element, name="quantized")

    axis = int(call.attrs.axis)
    return builder.call_te(
        body,
        x,
        scale if inverse is None else inverse,
        as_integer(point),
        key=(axis, dtype, inverse is None),
        primfunc_name_hint="quantize",
    )


def legalise_dequantise(builder: Any, call: Any, options: Any) -> Any:
    """(x - point) * scale"""
    x, scale, point = call.args
    if str(x.ty.dtype.dtype) not in LIMITS or known_extents(call) is None:
        return None

    axis = int(call.attrs.axis)
    return builder.call_te(
        partial(dequantised, axis=axis),
        x,
        scale,
        as_integer(point),
        key=axis,
        primfunc_name_hint="dequantize",
    )


def dequantised(x: te.Tensor, scale: te.Tensor, point: te.Tensor, axis: int) -> te.Tensor:
    """Steps as the floats that they stand for, scales and zero points along an axis, if several."""

    def element(*at: Any) -> Any:
        own = _along(point, at, axis).astype("float32")
        return (x(*at).astype("float32") - own) * _along(scale, at, axis)

    return te.compute(x.shape, element, name="dequantized")


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


def is_one_number(parameter: Any) -> bool:
    """Whether a tensor is known to have one element."""
    return all(
        isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in parameter.ty.shape
    )


def _along(parameter: Any, at: tuple[Any, ...], axis: int) -> Any:
    """A scale or zero point of an element: one for all, or one for each place along an axis."""
    if all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in parameter.shape):
        return parameter(*(0 for _ in parameter.shape))
    return parameter(at[axis])


@lru_cache(maxsize=256)
def as_integer(point: Any) -> Any:
    """A known zero point as an int32: signed or not, layers are alike. One constant has one result:
    a kernel that quantises and takes back has one operand for both."""
    array = constant_array(point)
    return point if array is None else constant(array.astype(np.int32))
