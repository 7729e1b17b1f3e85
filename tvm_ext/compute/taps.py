"""Convolution to few channels: a product with all taps at once, then the sum of shifted results.

    t[n, h, w, (k, o)] = sum over c of x[n, h, w, c] * w[o, k, c]
    y[n, h, w, o]      = sum over k of t[n, h + k_h - pad, w + k_w - pad, (k, o)]

and transposed, by stride s, where an output sees every s-th tap only:

    y[n, h, w, o] = sum over j of t[n, h // s + j_h - .., w // s + j_w - .., (j, h % s, w % s, o)]

Three output channels fill three lanes of a vector; of nine taps of three channels there are 27
(kn2row: Vasudevan, Anderson and Gregg, ASAP 2017, whose planes are channels-last here). The last
layer of an image generator, 64 channels of 256 x 256 to 3: 7.2 ms directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import padded
from tvm_ext.compute.conv import ConvGeometry, padded_data
from tvm_ext.compute.conv_transpose import (
    TransposedGeometry,
    by_phase,
    cropped,
    reading,
    tap_axes,
)
from tvm_ext.tvm_api import te

Tensor = Any


def applies(geometry: ConvGeometry, lanes: int) -> bool:
    """Whether at most half of a vector of output channels would be used, and taps are many."""
    one_each = set(geometry.strides) == {1} == {geometry.groups}
    return one_each and 2 * geometry.out_channels <= lanes and prod(geometry.kernel) > 1


def product_geometry(geometry: ConvGeometry, lanes: int) -> ConvGeometry:
    """The 1 x 1 convolution that makes t; its columns are whole vectors."""
    columns = prod(geometry.kernel) * geometry.out_channels
    return _one_by_one(len(geometry.kernel), geometry.in_channels, padded(columns, lanes))


def _one_by_one(rank: int, inputs: int, outputs: int) -> ConvGeometry:
    ones, zeros = (1,) * rank, (0,) * rank
    return ConvGeometry(ones, ones, zeros, zeros, ones, 1, inputs, outputs)


def tap_columns(weight: np.ndarray, lanes: int) -> np.ndarray:
    """[O, k.., C]  →  [(k, O), 1.., C], padded by zeros: the weight of `product_geometry`."""
    *kernel, inner = weight.shape[1:]
    rows = np.moveaxis(weight, 0, -2).reshape(-1, inner)
    return _filters(rows, len(kernel), lanes)


def _filters(rows: np.ndarray, rank: int, lanes: int) -> np.ndarray:
    """[columns, C]  →  [columns, 1.., C], padded by zeros to whole vectors."""
    extra = padded(len(rows), lanes) - len(rows)
    return np.pad(rows, ((0, extra), (0, 0))).reshape(-1, *(1,) * rank, rows.shape[1])


def _flat(indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The row-major position of several indices."""
    position: Any = 0
    for index, size in zip(indices, sizes, strict=True):
        position = position * size + index
    return position


def shifted_sum(t: Tensor, geometry: ConvGeometry) -> Tensor:
    """y of t [n, spatial.., columns]."""
    out = geometry.out_size([int(size) for size in t.shape[1:-1]])
    t = padded_data(t, geometry, 1)
    taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(geometry.kernel)]

    def body(n: Any, *at: Any) -> Any:
        *place, o = at
        tap = _flat(taps, geometry.kernel)
        shifted = [p + k * d for p, k, d in zip(place, taps, geometry.dilation, strict=True)]
        return te.sum(t(n, *shifted, tap * geometry.out_channels + o), axis=taps)

    return te.compute((t.shape[0], *out, geometry.out_channels), body, name="taps")


def applies_transposed(geometry: TransposedGeometry, lanes: int) -> bool:
    """`applies` for a transposed convolution."""
    few = 2 * geometry.out_channels <= lanes and geometry.groups == 1
    return few and prod(geometry.kernel) > 1


def transposed_product(geometry: TransposedGeometry, lanes: int) -> ConvGeometry:
    """The 1 x 1 convolution that makes t of a transposed one; its columns are whole vectors."""
    taps = prod(s * geometry.taps(axis) for axis, s in enumerate(geometry.strides))
    columns = padded(taps * geometry.out_channels, lanes)
    return _one_by_one(len(geometry.kernel), geometry.in_channels, columns)


def transposed_columns(weight: np.ndarray, geometry: TransposedGeometry, lanes: int) -> np.ndarray:
    """[C, O, k..]  →  [(tap.., phase.., O), 1.., C], padded by zeros: the weight of
    `transposed_product`. Phases of the last axis and channels are what lies in a row of y."""
    rank = len(geometry.kernel)
    spread = by_phase(weight, geometry)
    rows = spread.transpose(*range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2), 1, 0)
    return _filters(rows.reshape(-1, geometry.in_channels), rank, lanes)


def transposed_sum(t: Tensor, geometry: TransposedGeometry) -> Tensor:
    """y of t [n, spatial.., columns], of a transposed convolution."""
    t, position, phases = reading(t, geometry)
    counts = [geometry.taps(axis) for axis in range(len(geometry.kernel))]
    several = prod(counts) > 1
    taps = tap_axes(geometry) if several else [0] * len(counts)

    def body(n: Any, *at: Any) -> Any:
        *place, o = at
        column = _flat([*taps, *phases(place)], [*counts, *geometry.strides])
        element = t(n, *position(place, taps), column * geometry.out_channels + o)
        return te.sum(element, axis=taps) if several else element

    shape = (t.shape[0], *geometry.whole_size, geometry.out_channels)
    return cropped(te.compute(shape, body, name="taps_transpose"), geometry)
