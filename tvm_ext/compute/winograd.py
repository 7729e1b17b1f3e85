"""Winograd's minimal filtering for 3 x 3 convolutions with stride 1 (Lavin and Gray, CVPR 2016).

An output tile of m x m needs (m+2)^2 multiplications per channel pair instead of 9 m^2:

    y = A^T [ (G w G^T) . (B^T x B) ] A         F(2x2): 2.25 times fewer, F(4x4): 4 times fewer

in five stages over tiles (ty, tx), channels-last, weights transformed and packed at compile time:

    rows_in   [n, ty, tx, a, j, c]    B^T x, on a padded input
    cols_in   [a, b, n, ty, tx, c]    (B^T x) B
    product   [a, b, n, ty, tx, o]    sum over c with weights [a, b, o/B, c, o%B]
    rows_out  [n, ty, tx, i, b, o]    A^T product
    winograd  [n, h, w, o]            (A^T product) A

Groups of channels take the place of images, of which there is one: product [a, b, group, ty, tx, o]
with weights [a, b, group, o/B, c, o%B].

Rounding: the transforms cancel, so errors exceed those of direct convolution. Against float64, as
max|error| / max|y| on normal data with up to 512 channels: F(2x2) 8e-7, F(4x4) 3e-6 (tested). The
intermediates of F(4x4) are up to 24 times the data: they overflow 24 times earlier, and of data
below 1e-38 up to 512 of the smallest subnormals are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_block, choose_group_block, padded
from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.tvm_api import te, tirx

Tensor = Any
MIN_LANES = 4
"""Input channels come in multiples of this: narrower vectors do not pay."""
OUTPUT_TILES = (4, 2)
"""Output tile sizes m there are transforms for."""

_NEAR, _FAR = 11 / 16, 11 / 8
"""The points of F(4x4) are 0, both of these with either sign, and infinity. Transforms cancel least
if these are spread evenly around one (Barabasz et al., ACM TOMS 2020): errors are less than half of
those of Lavin's 1 and 2. Up to their third powers they are exact in float32."""


def _filter_rows(points: Sequence[float]) -> np.ndarray:
    """G for points and infinity: Lagrange's polynomials of a filter of three taps."""
    scales = [prod(p - q for q in points if q != p) for p in points]
    rows = [[p**k / scale for k in range(3)] for p, scale in zip(points, scales, strict=True)]
    return np.array([*rows, [0.0, 0.0, 1.0]])


_FILTER = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: _filter_rows([0.0, _NEAR, -_NEAR, _FAR, -_FAR]),
}
"""G for the points 0, 1, -1 (m = 2) and for those of F(4x4), each with infinity."""


def applies(geometry: ConvGeometry, images: int, lanes: int) -> bool:
    """Whether the convolution is a 3 x 3 one with stride 1, each group's output in whole vectors;
    with several groups of one image."""
    return (
        (geometry.groups == 1 or images == 1)
        and geometry.kernel == (3, 3)
        and geometry.strides == geometry.dilation == (1, 1)
        and not geometry.depthwise
        and geometry.in_channels // geometry.groups % MIN_LANES == geometry.per_group % lanes == 0
    )


def packed_shape(geometry: ConvGeometry, lanes: int, m: int) -> tuple[int, ...]:
    """Shape of the weight that `transform_weight` makes."""
    block = _block(geometry.per_group, geometry.groups, lanes)
    blocks = padded(geometry.per_group, block) // block
    groups = (geometry.groups,) if geometry.groups > 1 else ()
    return (m + 2, m + 2, *groups, blocks, geometry.in_channels // geometry.groups, block)


def transform_weight(weight: np.ndarray, lanes: int, m: int, groups: int = 1) -> np.ndarray:
    """[O, 3, 3, C] → G w G^T packed as [a, b, O/B, C, B], channels padded by zeros; of several
    groups as [a, b, groups, O/groups/B, C, B]."""
    block = _block(len(weight) // groups, groups, lanes)
    parts = [_transformed(part, block, m) for part in np.split(weight, groups)]
    return np.stack(parts, axis=2) if groups > 1 else parts[0]


def _block(per_group: int, groups: int, lanes: int) -> int:
    """Channels of a panel; whole ones of groups, which lie side by side in what is made of them."""
    choose = choose_block if groups == 1 else choose_group_block
    return choose(per_group, lanes)


def _transformed(weight: np.ndarray, block: int, m: int) -> np.ndarray:
    filters = _FILTER[m]
    alpha = m + 2
    outer, _, _, inner = weight.shape
    blocks = padded(outer, block) // block
    packed = np.zeros((alpha, alpha, blocks, inner, block), np.float32)
    for place in range(blocks):  # block by block, so that float64 copies stay small
        part = weight[place * block : (place + 1) * block].astype(np.float64)
        rows = np.tensordot(filters, part, axes=(1, 1))
        both = np.tensordot(filters, rows, axes=(1, 2))  # [b, a, o, c]
        packed[:, :, place, :, : part.shape[0]] = both.transpose(1, 0, 3, 2)
    return packed


def winograd(x: Tensor, weight: Tensor, geometry: ConvGeometry, m: int) -> Tensor:
    """The convolution of x [n, h, w, C] by F(m x m, 3 x 3), [n, h', w', O].

    `weight` is packed by `transform_weight`.
    """
    alpha = m + 2
    batch, height, width, inner = (int(extent) for extent in x.shape)
    (top, left), _ = geometry.pad_before, geometry.pad_after
    out_height, out_width = geometry.out_size((height, width))
    grid = (batch, -(-out_height // m), -(-out_width // m))
    block, groups = int(weight.shape[-1]), geometry.groups
    per_group = int(weight.shape[-3]) * block
    columns = groups * per_group

    def padded_input(n: Any, h: Any, w: Any, c: Any) -> Any:
        inside = tirx.all(h >= top, h < height + top, w >= left, w < width + left)
        return tirx.if_then_else(inside, x[n, h - top, w - left, c], _const(0.0))

    whole = (batch, grid[1] * m + 2, grid[2] * m + 2, inner)
    data = te.compute(whole, padded_input, name="pad")
    rows_in = te.compute(
        (*grid, alpha, alpha, inner),
        lambda n, ty, tx, a, j, c: select(
            a, _input_transform([data[n, ty * m + i, tx * m + j, c] for i in range(alpha)])
        ),
        name="rows_in",
    )
    cols_in = te.compute(
        (alpha, alpha, *grid, inner),
        lambda a, b, n, ty, tx, c: select(
            b, _input_transform([rows_in[n, ty, tx, a, j, c] for j in range(alpha)])
        ),
        name="cols_in",
    )
    deep = inner // groups
    channel = te.reduce_axis((0, deep), name="c")

    def multiplied(a: Any, b: Any, image: Any, ty: Any, tx: Any, o: Any) -> Any:
        block_of, column = o // block, o % block
        if groups == 1:
            data = cols_in[a, b, image, ty, tx, channel]
            filters = weight[a, b, block_of, channel, column]
        else:
            data = cols_in[a, b, 0, ty, tx, image * deep + channel]
            filters = weight[a, b, image, block_of, channel, column]
        return te.sum(data * filters, axis=channel)

    images = batch if groups == 1 else groups
    product = te.compute((alpha, alpha, images, *grid[1:], per_group), multiplied, name="product")

    def made(a: Any, b: Any, n: Any, ty: Any, tx: Any, o: Any) -> Any:
        image, column = (n, o) if groups == 1 else (o // per_group, o % per_group)
        return product[a, b, image, ty, tx, column]

    rows_out = te.compute(
        (*grid, m, alpha, columns),
        lambda n, ty, tx, i, b, o: select(
            i, _output_transform([made(a, b, n, ty, tx, o) for a in range(alpha)])
        ),
        name="rows_out",
    )
    return te.compute(
        (batch, out_height, out_width, geometry.out_channels),
        lambda n, h, w, o: select(
            w % m,
            _output_transform([rows_out[n, h // m, w // m, h % m, b, o] for b in range(alpha)]),
        ),
        name="winograd",
    )


def _const(value: float) -> Any:
    return tirx.const(value, "float32")


def select(index: Any, values: Sequence[Any]) -> Any:
    """values[index]; once the index is unrolled, one expression."""
    chosen = values[-1]
    for place in range(len(values) - 2, -1, -1):
        chosen = tirx.Select(index == place, values[place], chosen)
    return chosen


def _input_transform(d: Sequence[Any]) -> list[Any]:
    """B^T d, common terms written once so that the compiler shares them."""
    if len(d) == 4:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[3] - d[1]]
    near, far = _const(_NEAR), _const(_FAR)
    near2, far2 = _const(_NEAR**2), _const(_FAR**2)
    product, total = _const(_NEAR**2 * _FAR**2), _const(_NEAR**2 + _FAR**2)
    even, odd = d[4] - far2 * d[2], near * (d[3] - far2 * d[1])
    wide_even, wide_odd = d[4] - near2 * d[2], far * (d[3] - near2 * d[1])
    return [
        product * d[0] - total * d[2] + d[4],
        even + odd,
        even - odd,
        wide_even + wide_odd,
        wide_even - wide_odd,
        product * d[1] - total * d[3] + d[5],
    ]


def _output_transform(p: Sequence[Any]) -> list[Any]:
    """A^T p, common terms written once."""
    if len(p) == 4:
        return [p[0] + p[1] + p[2], p[1] - p[2] + p[3]]
    plus, minus = p[1] + p[2], p[1] - p[2]
    wide_plus, wide_minus = p[3] + p[4], p[3] - p[4]
    return [
        p[0] + plus + wide_plus,
        _const(_NEAR) * minus + _const(_FAR) * wide_minus,
        _const(_NEAR**2) * plus + _const(_FAR**2) * wide_plus,
        _const(_NEAR**3) * minus + _const(_FAR**3) * wide_minus + p[5],
    ]
