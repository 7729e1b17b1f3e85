"""Products and convolutions in bfloat16 by constants, two elements at a time (`tvm_pairs`).

y[.., j] = sum over k of x[.., k] * w[k, j]                      x, w: rounded to bfloat16
         = sum over q of dot_pairs(x2[.., q], w2[q, j])          the sum: float32

with x2 and w2 two elements in a uint32: `dense` and `conv` of these, with `dot_pairs` in place of
the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose
from tvm_ext.compute.dense import dense
from tvm_ext.tvm_api import te, tirx
from tvm_ext.tvm_pairs import PAIR, WORD, dot_pairs, paired, rounded

Tensor = Any


def in_pairs(weight: np.ndarray) -> np.ndarray:
    """float32 [.., K]  →  uint32 [.., K/2], K padded by a zero to an even number."""
    halves = weight.astype(ml_dtypes.bfloat16)
    if halves.shape[-1] % PAIR:
        halves = np.pad(halves, ((0, 0),) * (halves.ndim - 1) + ((0, 1),))
    return np.ascontiguousarray(halves).view(WORD)


def halves(x: Tensor) -> Tensor:
    """float32  →  uint16, the bits of the nearest bfloat16."""
    return te.compute(x.shape, lambda *at: rounded(x(*at)), name="halves")


def planes_in_pairs(x: Tensor) -> Tensor:
    """float32 [n, C, spatial..]  →  uint32 [n, C/2, spatial..], of few channels, filled up to an
    even number by zeros."""
    images, planes, *spatial = x.shape

    def body(n: Any, q: Any, *place: Any) -> Any:
        return _word(x, int(planes), n, q, place)

    return te.compute((images, _words(planes), *spatial), body, name="planes_in_pairs")


def points_in_pairs(x: Tensor) -> Tensor:
    """float32 [n, C, spatial..]  →  uint32 [n, spatial.., C/2], the same of points."""
    images, planes, *spatial = x.shape

    def body(n: Any, *at: Any) -> Any:
        return _word(x, int(planes), n, at[-1], at[:-1])

    return te.compute((images, *spatial, _words(planes)), body, name="points_in_pairs")


def _words(channels: Any) -> int:
    return -(-int(channels) // PAIR)


def _word(x: Tensor, channels: int, n: Any, q: Any, place: Sequence[Any]) -> Any:
    """Two channels of a point in planes; for one that is missing zero."""

    def word(pair: int) -> Any:
        own = [x(n, c, *place) for c in range(channels)[PAIR * pair : PAIR * pair + PAIR]]
        return paired(*own) if len(own) == PAIR else rounded(*own).astype(WORD)

    pairs = range(_words(channels))
    return reduce(lambda other, i: tirx.Select(q == i, word(i), other), pairs[1:], word(0))


def dense_pairs(x: Tensor, weight: Tensor, columns: int) -> Tensor:
    """x uint32 [.., K/2] times the matrix packed by `dense.pack_matrix`, float32 [.., columns]."""
    return dense(x, weight, columns, product=dot_pairs)


def conv_pairs(
    x: Tensor, weight: Tensor, geometry: ConvGeometry, lanes: int, planes: bool = False
) -> Tensor:
    """The convolution of x uint32 [n, spatial.., C/2] (grouped: [n, spatial.., groups, C/groups/2])
    by the weight packed by `conv.pack_weight`, float32 [n, out.., O]. In `geometry` two input
    channels are one. With `planes` x is [n, C/2, spatial..], for one group only."""
    nothing = tirx.const(0, WORD)
    return conv(x, weight, geometry, lanes, planes=planes, product=dot_pairs, outside=nothing)


def conv_transpose_pairs(x: Tensor, weight: Tensor, geometry: TransposedGeometry) -> Tensor:
    """The transposed convolution of x uint32 [n, spatial.., C/2] by the weight packed by
    `conv_transpose.pack_transposed`, float32 [n, out.., O]. In `geometry` two input channels are
    one."""
    nothing = tirx.const(0, WORD)
    return conv_transpose(x, weight, geometry, product=dot_pairs, outside=nothing)
