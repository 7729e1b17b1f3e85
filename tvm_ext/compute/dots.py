"""Convolution to few channels as dot products: vectors lie along the channels that are summed up.

    p[n, h, w, o, l] = sum over k, c of x[n, h + k_h, w + k_w, c * lanes + l] * w[k, c, o, l]
    y[n, h, w, o]    = sum over l of p[n, h, w, o, l]

Three output channels fill three lanes of a vector; of the 64 channels read there are four vectors,
each of which three outputs share, as neighbours share the weights. The last layer of an image
generator, 32 channels of 136 x 136 to 3 by 9 x 9 taps: 3.9 ms by `taps`, 1.2 so, 93 % of peak.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_ext.compute.conv import ConvGeometry, padded_data
from tvm_ext.tvm_api import te

Tensor = Any


LEAST_VECTORS = 8
"""Products that a vector of partial sums is worth being written and read for (a last layer by 1 x 1
taps of 32 channels: 340 us, of which its partial sums, 6 MB, are most)."""


def applies(geometry: ConvGeometry, lanes: int) -> bool:
    """Whether at most half of a vector of output channels would be used, and those read are whole
    vectors, and enough of them."""
    few = 2 * geometry.out_channels <= lanes and geometry.groups == 1
    vectors, rest = divmod(geometry.in_channels, lanes)
    return few and not rest and prod(geometry.kernel) * vectors >= LEAST_VECTORS


def packed_shape(geometry: ConvGeometry, lanes: int) -> tuple[int, ...]:
    """That of `pack_weight`."""
    return (*geometry.kernel, geometry.in_channels // lanes, geometry.out_channels, lanes)


def pack_weight(weight: np.ndarray, lanes: int) -> np.ndarray:
    """[O, k.., C]  →  [k.., C / lanes, O, lanes]"""
    apart = weight.reshape(*weight.shape[:-1], -1, lanes)
    return np.ascontiguousarray(np.moveaxis(apart, 0, -2))


def partial_sums(x: Tensor, weight: Tensor, geometry: ConvGeometry, lanes: int) -> Tensor:
    """p of x [n, spatial.., C] and the packed weight."""
    out = geometry.out_size([int(size) for size in x.shape[1:-1]])
    x = padded_data(x, geometry, 1)
    taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(geometry.kernel)]
    vector = te.reduce_axis((0, geometry.in_channels // lanes), name="c")

    def body(n: Any, *at: Any) -> Any:
        *place, o, lane = at
        element = x(n, *geometry.position(place, taps), vector * lanes + lane)
        weighted = element * weight(*taps, vector, o, lane)
        return te.sum(weighted, axis=[*taps, vector])

    return te.compute((x.shape[0], *out, geometry.out_channels, lanes), body, name="dots")


def total(partial: Tensor) -> Tensor:
    """y of p."""
    *shape, lanes = partial.shape
    lane = te.reduce_axis((0, lanes), name="lane")
    return te.compute(shape, lambda *at: te.sum(partial(*at, lane), axis=lane), name="total")
