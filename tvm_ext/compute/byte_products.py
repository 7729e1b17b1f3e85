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
from tvm_ext.compute.dense import dense, matmul
from tvm_ext.tvm_api import te, tirx
from tvm_ext.tvm_dots import BYTES, dot

Tensor = Any
_EACH_BYTE = 0x01010101
_SIGNS = -0x7F7F7F80
"""0x80808080."""


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


def rows_in_fours(x: Tensor) -> Tensor:
    """uint8 [.., K, N]  →  int32 [.., K/4, N], four rows side by side, each byte less 128 as one
    with a sign; the last four are filled up with zeros."""
    *_, rows, columns = (int(extent) for extent in x.shape)

    def body(*at: Any) -> Any:
        *outer, r, c = at
        octets = []
        for i in range(BYTES):
            row = BYTES * r + i
            octet = x(*outer, tirx.min(row, rows - 1), c).astype("int32")
            if rows % BYTES:
                octet = tirx.Select(row < rows, octet, tirx.const(_SIGNS & 255, "int32"))
            octets.append(octet << 8 * i)
        return reduce(operator.or_, octets) ^ tirx.const(_SIGNS, "int32")

    return te.compute((*x.shape[:-2], -(-rows // BYTES), columns), body, name="rows_in_fours")


def turned_in_fours(words: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Four bytes each  →  the same with other axes, each byte less 128 as one with a sign."""
    signs = tirx.const(_SIGNS, "int32")

    def body(*at: Any) -> Any:
        place = dict(zip(axes, at, strict=True))
        return words(*(place[axis] for axis in range(len(axes)))) ^ signs

    return te.compute([words.shape[axis] for axis in axes], body, name="turned_in_fours")


def matmul_bytes(
    a: Tensor,
    b: Tensor,
    scale: Tensor,
    *sums: Tensor,
    lanes: int,
    of_rows: bool,
    of_columns: bool,
) -> Tensor:
    """a int32 [batch.., M, K/4] times b int32 [batch.., K/4, N] less what is said of each row,
    int32 [batch.., M, 1], and of each column, [batch.., 1, N], times one number; float32
    [batch.., M, N]."""
    total = matmul(a, b, lanes, product=dot)

    def element(*at: Any) -> Any:
        *batch, i, j = at
        shifted = total(*at)
        if of_rows:
            shifted = shifted - sums[0](*batch, i, 0)
        if of_columns:
            shifted = shifted - sums[-1](*batch, 0, j)
        return shifted.astype("float32") * _number(scale, "float32")

    return te.compute(total.shape, element, name="shifted")


def row_sums(a: Tensor, factor: Tensor) -> Tensor:
    """The bytes of each row of int32 [.., M, K/4] times a number, int32 [.., M, 1]."""
    *outer, rows, terms = a.shape
    q = te.reduce_axis((0, int(terms)), name="q")
    ones = tirx.const(_EACH_BYTE, "int32")

    def total(*at: Any) -> Any:
        return te.sum(dot(a(*at, q), ones), axis=q)

    summed = te.compute((*outer, rows), total, name="row_sums")
    shape = (*outer, rows, 1)
    return te.compute(shape, lambda *at: summed(*at[:-1]) * _number(factor), name="of_rows")


def column_sums(b: Tensor, factor: Tensor, less: Tensor) -> Tensor:
    """The bytes, with a sign, of each column of int32 [.., K/4, N] times a number less another one,
    int32 [.., 1, N]."""
    *outer, terms, columns = b.shape
    q = te.reduce_axis((0, int(terms)), name="q")
    ones = tirx.const(_EACH_BYTE, "int32")

    def total(*at: Any) -> Any:
        *batch, j = at
        return te.sum(dot(ones, b(*batch, q, j)), axis=q)

    summed = te.compute((*outer, columns), total, name="column_sums")

    def element(*at: Any) -> Any:
        *batch, _, j = at
        return summed(*batch, j) * _number(factor) - _number(less)

    return te.compute((*outer, 1, columns), element, name="of_columns")


def _shifted(total: Tensor, sums: Tensor, point: Tensor | None) -> Tensor:
    def element(*at: Any) -> Any:
        shift = sums(at[-1]) if point is None else _number(point) * sums(at[-1])
        return (total(*at) - shift).astype("float32")

    return te.compute(total.shape, element, name="shifted")


def _number(point: Tensor, dtype: str = "int32") -> Any:
    return point(*(0 for _ in point.shape)).astype(dtype)
