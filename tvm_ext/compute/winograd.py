"""Winograd's minimal filtering for convolutions with stride 1 (Lavin and Gray, CVPR 2016).

An output tile of m x m by a window of r x r needs (m+r-1)^2 multiplications per channel pair, which
are its points, instead of r^2 m^2; along one axis m+r-1 for r m:

    y = A^T [ (G w G^T) . (B^T x B) ] A         F(2x2, 3x3): 2.25 times fewer, F(4x4, 3x3): 4 times,
                                                F(2x2, 5x5): 2.8 times, F(4, 3): 2 times

in five stages over tiles (ty, tx), channels-last, weights transformed and packed at compile time:

    rows_in   [n, ty, tx, a, j, c]    B^T x, on a padded input
    cols_in   [a, b, n, ty, tx, c]    (B^T x) B
    product   [a, b, n, ty, tx, o]    sum over c with weights [a, b, o/B, c, o%B]
    rows_out  [n, ty, tx, i, b, o]    A^T product
    winograd  [n, h, w, o]            (A^T product) A

Where a window has one tap along an axis (a row, a column, a sequence) the transforms along it are
copies, which `tir.prepare` takes out. Groups of channels take the place of images, of which there
is one: product [a, b, group, ty, tx, o] with weights [a, b, group, o/B, c, o%B].

Rounding: the transforms cancel, so errors exceed those of direct convolution. Against float64, as
max|error| / max|y| on normal data with up to 512 channels: four points 1e-6, six 4e-6, of windows
of 2 x 2 5e-6, along one axis 2e-6 (tested). The intermediates of six points are up to 24 times the
data: they overflow 24 times earlier, and of data below 1e-38 up to 512 of the smallest subnormals
are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_block, choose_group_block, padded
from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.tvm_api import te, tirx

Tensor = Any
MIN_LANES = 4
"""Channels come in multiples of this: narrower vectors do not pay."""
OUTPUT_TILES = (5, 4, 3, 2)
"""Output tile sizes m there are transforms for, with windows of some size."""
_POINTS = {2: (6,), 3: (6, 4), 4: (6,), 5: (6,)}
"""Points of a tile along one axis, by the taps of a window along it, that pay."""

_OPERATIONS = {1: (0, 0), 4: (4, 4), 6: (14, 13)}
"""Operations of a transform of so many points along one axis, of what is read and what is made, a
multiply-add as one."""

_NEAR, _FAR = 11 / 16, 11 / 8
"""Of six points these are 0, both of these with either sign, and infinity. Transforms cancel least
if these are spread evenly around one (Barabasz et al., ACM TOMS 2020): errors are less than half of
those of Lavin's 1 and 2. Up to their fourth powers they are exact in float32."""


def _filter(points: int, taps: int) -> np.ndarray:
    """G: Lagrange's polynomials of a filter's taps at finite points, and its last tap."""
    if points == 1:
        return np.ones((1, 1))
    if points == 4:  # 0, 1, -1
        return np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    finite = (0.0, _NEAR, -_NEAR, _FAR, -_FAR)
    scales = [prod(p - q for q in finite if q != p) for p in finite]
    rows = [[p**k / scale for k in range(taps)] for p, scale in zip(finite, scales, strict=True)]
    return np.array([*rows, [*(0.0 for _ in range(taps - 1)), 1.0]])


def window(geometry: ConvGeometry) -> tuple[int, int]:
    """Taps along rows and columns; a sequence is an image of one row."""
    rows, columns = (1, *geometry.kernel)[-2:]
    return rows, columns


def tile(geometry: ConvGeometry, m: int) -> tuple[int, int]:
    """Outputs of a tile along rows and columns: m, or one where the window has one tap."""
    rows, columns = (m if taps > 1 else 1 for taps in window(geometry))
    return rows, columns


def points(geometry: ConvGeometry, m: int) -> tuple[int, int]:
    """Points of a tile along rows and columns."""
    both = zip(tile(geometry, m), window(geometry), strict=True)
    rows, columns = (side + taps - 1 for side, taps in both)
    return rows, columns


def transform_flops(geometry: ConvGeometry, m: int, lanes: int) -> int:
    """Operations of the transforms of one tile, as many as vectors of `lanes` would take where
    channels fill narrower ones."""
    (down, along), sides = points(geometry, m), tile(geometry, m)
    (before, after), (before_along, after_along) = _OPERATIONS[down], _OPERATIONS[along]
    reads = (along * before + down * before_along) * geometry.in_channels
    makes = (along * after + sides[0] * after_along) * geometry.out_channels
    reads = reads * lanes // gcd(geometry.in_channels, lanes)
    return 2 * (reads + makes * lanes // gcd(geometry.out_channels, lanes))


def output_tiles(geometry: ConvGeometry, images: int, out_size: Sequence[int]) -> list[int]:
    """Output tile sizes that a convolution can be computed by, the largest first: with stride 1 and
    a window as long along both axes as it is along one, smaller than its results, each group's
    output in whole vectors, maybe narrower ones; with several groups of one image."""
    taps = {extent for extent in geometry.kernel if extent > 1}
    if len(geometry.kernel) > 2 or len(taps) != 1 or {*geometry.strides, *geometry.dilation} != {1}:
        return []
    if geometry.depthwise or (geometry.groups > 1 and images > 1):
        return []
    both = geometry.in_channels, geometry.out_channels
    if any(channels // geometry.groups % MIN_LANES for channels in both):
        return []
    (along,) = taps
    smallest = min(out for out, k in zip(out_size, geometry.kernel, strict=True) if k > 1)
    sizes = [count - along + 1 for count in _POINTS.get(along, ())]
    return [m for m in sizes if m < smallest]


def packed_shape(geometry: ConvGeometry, lanes: int, m: int) -> tuple[int, ...]:
    """Shape of the weight that `transform_weight` makes."""
    block = _block(geometry.per_group, geometry.groups, lanes)
    blocks = padded(geometry.per_group, block) // block
    groups = (geometry.groups,) if geometry.groups > 1 else ()
    return (*points(geometry, m), *groups, blocks, geometry.in_channels // geometry.groups, block)


def transform_weight(weight: np.ndarray, geometry: ConvGeometry, lanes: int, m: int) -> np.ndarray:
    """[O, k.., C] → G w G^T packed as [a, b, O/B, C, B], channels padded by zeros; of several
    groups as [a, b, groups, O/groups/B, C, B]."""
    block, groups = _block(geometry.per_group, geometry.groups, lanes), geometry.groups
    rows, columns = window(geometry)
    both = list(map(_filter, points(geometry, m), (rows, columns)))
    flat = weight.reshape(len(weight), rows, columns, -1)
    parts = [_transformed(part, block, both) for part in np.split(flat, groups)]
    return np.stack(parts, axis=2) if groups > 1 else parts[0]


def _block(per_group: int, groups: int, lanes: int) -> int:
    """Channels of a panel, of vectors that have none of padding; whole panels of groups, which lie
    side by side in what is made of them."""
    lanes = gcd(per_group, lanes)
    choose = choose_block if groups == 1 else choose_group_block
    return choose(per_group, lanes)


def _transformed(weight: np.ndarray, block: int, filters: Sequence[np.ndarray]) -> np.ndarray:
    down, along = filters
    outer, _, _, inner = weight.shape
    blocks = padded(outer, block) // block
    packed = np.zeros((len(down), len(along), blocks, inner, block), np.float32)
    for place in range(blocks):  # block by block, so that float64 copies stay small
        part = weight[place * block : (place + 1) * block].astype(np.float64)
        rows = np.tensordot(down, part, axes=(1, 1))
        both = np.tensordot(along, rows, axes=(1, 2))  # [b, a, o, c]
        packed[:, :, place, :, : part.shape[0]] = both.transpose(1, 0, 3, 2)
    return packed


def winograd(x: Tensor, weight: Tensor, geometry: ConvGeometry, m: int) -> Tensor:
    """The convolution of x [n, p.., C] by tiles of m x m, or of m along one axis, [n, p'.., O].

    `weight` is packed by `transform_weight`.
    """
    batch, *spatial, inner = (int(extent) for extent in x.shape)
    height, width = (1, *spatial)[-2:]
    top, left = (0, *geometry.pad_before)[-2:]
    out = geometry.out_size(spatial)
    (down, along), counts = tile(geometry, m), points(geometry, m)
    grid = (batch, -(-(1, *out)[-2] // down), -(-out[-1] // along))
    block, groups = int(weight.shape[-1]), geometry.groups
    per_group = int(weight.shape[-3]) * block
    columns = groups * per_group

    def padded_input(n: Any, h: Any, w: Any, c: Any) -> Any:
        inside = tirx.all(h >= top, h < height + top, w >= left, w < width + left)
        place = (h - top, w - left)[-len(spatial) :]
        return tirx.if_then_else(inside, x(n, *place, c), _const(0.0))

    taps_down, taps_along = window(geometry)
    whole = (batch, grid[1] * down + taps_down - 1, grid[2] * along + taps_along - 1, inner)
    data = te.compute(whole, padded_input, name="pad")

    def rows_of(n: Any, ty: Any, tx: Any, a: Any, j: Any, c: Any) -> Any:
        taps = [data[n, ty * down + i, tx * along + j, c] for i in range(counts[0])]
        return select(a, _input_transform(taps))

    rows_in = te.compute((*grid, *counts, inner), rows_of, name="rows_in")

    def columns_of(a: Any, b: Any, n: Any, ty: Any, tx: Any, c: Any) -> Any:
        if counts[1] == 1:
            return rows_of(n, ty, tx, a, 0, c)
        taps = [rows_in[n, ty, tx, a, j, c] for j in range(counts[1])]
        return select(b, _input_transform(taps))

    cols_in = te.compute((*counts, *grid, inner), columns_of, name="cols_in")
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
    product = te.compute((*counts, images, *grid[1:], per_group), multiplied, name="product")

    def made(a: Any, b: Any, n: Any, ty: Any, tx: Any, o: Any) -> Any:
        image, column = (n, o) if groups == 1 else (o // per_group, o % per_group)
        return product[a, b, image, ty, tx, column]

    rows_out = te.compute(
        (*grid, down, counts[1], columns),
        lambda n, ty, tx, i, b, o: select(
            i, _output_transform([made(a, b, n, ty, tx, o) for a in range(counts[0])], down)
        ),
        name="rows_out",
    )

    def result(n: Any, *at: Any) -> Any:
        *place, o = at
        h, w = (0, *place)[-2:]
        at_tile = h // down, w // along, h % down
        parts = [rows_out(n, *at_tile, b, o) for b in range(counts[1])]
        return select(w % along, _output_transform(parts, along))

    return te.compute((batch, *out, geometry.out_channels), result, name="winograd")


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
    if len(d) == 1:
        return [d[0]]
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


def _output_transform(p: Sequence[Any], m: int) -> list[Any]:
    """A^T p, common terms written once."""
    if len(p) == 1:
        return [p[0]]
    if len(p) == 4:
        return [p[0] + p[1] + p[2], p[1] - p[2] + p[3]]
    plus, minus = p[1] + p[2], p[1] - p[2]
    wide_plus, wide_minus = p[3] + p[4], p[3] - p[4]
    rows = [
        p[0] + plus + wide_plus,
        _const(_NEAR) * minus + _const(_FAR) * wide_minus,
        _const(_NEAR**2) * plus + _const(_FAR**2) * wide_plus,
        _const(_NEAR**3) * minus + _const(_FAR**3) * wide_minus,
        _const(_NEAR**4) * plus + _const(_FAR**4) * wide_plus,
    ]
    return [*rows[: m - 1], rows[m - 1] + p[5]]
