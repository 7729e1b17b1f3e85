"""Products and convolutions of bytes by constants, four of them at a time (`tvm_dots`).

y[.., j] = sum over k of (x[.., k] - point) * w[k, j]              x: uint8, w: int8
         = sum over q of dot(x4[.., q], w4[q, j]) - point * sum over k of w[k, j]

with x4 and w4 four elements in an int32: `dense` and `conv` of these, with `dot` in place of the
product. Around an image lies `point`, as around one of floats zeros do. All of it is done in
integers, and is exact but for the result, a float32.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import numpy as np

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose
from tvm_ext.compute.dense import dense
from tvm_ext.tvm_api import te, tirx
from tvm_ext.tvm_dots import BYTES, dot

Tensor = Any
_EACH_BYTE = 0x01010101


def in_fours(weight: np.ndarray) -> np.ndarray:
    """int8 [.., K]  →  int32 [.., K/4], K padded by zeros to a multiple of four."""
    missing = -weight.shape[-1] % BYTES
    if missing:
        weight = np.pad(weight, ((0, 0),) * (weight.ndim - 1) + ((0, missing),))
    return np.ascontiguousarray(weight).view(np.int32)


def planes_in_fours(x: Tensor) -> Tensor:
    """uint8 [n, C, spatial..]  →  int32 [n, spatial.., 1], at most four planes side by side."""
    images, planes, *spatial = x.shape

    def body(n: Any, *at: Any) -> Any:
        *place, _ = at
        octets = (x(n, c, *place).astype("int32") << 8 * c for c in range(int(planes)))
        return reduce(operator.or_, octets)

    return te.compute((images, *spatial, 1), body, name="fours")


def dense_bytes(x: Tensor, weight: Tensor, sums: Tensor, point: Tensor | None = None) -> Tensor:
    """x int32 [.., K/4] times the matrix packed by `dense.pack_matrix`, float32 [.., N].

    sums   those of the matrix's columns, times the point if it is known, int32 [N]
    point  what is taken from each of x's bytes if it is not, one number of any type
    """
    return _shifted(dense(x, weight, int(sums.shape[0]), product=dot), sums, point)


def conv_bytes(
    x: Tensor,
    weight: Tensor,
    sums: Tensor,
    point: Tensor | int,
    geometry: ConvGeometry,
    lanes: int,
) -> Tensor:
    """The convolution of x int32 [n, spatial.., C/4] by the weight packed by `conv.pack_weight`,
    float32 [n, out.., O]. In `geometry` four input channels are one; for `sums` and `point` see
    `dense_bytes`."""
    known = isinstance(point, int)
    number = tirx.const(point, "int32") if known else _number(point)
    total = conv(x, weight, geometry, lanes, product=dot, outside=number * _EACH_BYTE)
    return _shifted(total, sums, None if known else point)


def conv_transpose_bytes(
    x: Tensor, weight: Tensor, sums: Tensor, point: Tensor | int, geometry: TransposedGeometry
) -> Tensor:
    """The transposed convolution of x int32 [n, spatial.., C/4] by the weight packed by
    `conv_transpose.pack_transposed`, float32 [n, out.., O]. In `geometry` four input channels are
    one; `sums` are those of each phase, int32 [phase.., O], and times the point if it is known."""
    known = isinstance(point, int)
    number = tirx.const(point, "int32") if known else _number(point)
    total = conv_transpose(x, weight, geometry, product=dot, outside=number * _EACH_BYTE)

    def element(*at: Any) -> Any:
        _, *place, o = at
        phases = (tirx.floormod(h, s) for h, s in zip(place, geometry.strides, strict=True))
        own = sums(*phases, o)
        return (total(*at) - (own if known else number * own)).astype("float32")

    return te.compute(total.shape, element, name="shifted")


def _shifted(total: Tensor, sums: Tensor, point: Tensor | None) -> Tensor:
    def element(*at: Any) -> Any:
        shift = sums(at[-1]) if point is None else _number(point) * sums(at[-1])
        return (total(*at) - shift).astype("float32")

    return te.compute(total.shape, element, name="shifted")


def _number(point: Tensor) -> Any:
    return point(*(0 for _ in point.shape)).astype("int32")
