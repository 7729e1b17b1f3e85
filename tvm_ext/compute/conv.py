"""Channels-last convolution over packed weights.

    y[n, p.., o] = sum over k.., c of x[n, p*stride + k*dilation - pad, c] * w[o / B, k.., c, o % B]

`B` is the block of `blocking`; output channels are padded to whole blocks inside the group and
cropped by the last stage, which the epilogue absorbs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from tvm_ext.compute.blocking import choose_block, choose_group_block, padded
from tvm_ext.compute.dense import crop
from tvm_ext.tvm_api import te, topi

Tensor = Any

NARROW = 4
"""Output channels of the widest groups of which a vector takes several, each lane with the element
of its own group (32 groups of 4 channels, 56 x 56: 272 us of a core where a group at a time takes
622). Wider ones fill half a vector of AVX-512; of halves a core computes two at once, or it
shuffles where it multiplies (32 groups of 8, 28 x 28: halves 338 us, several at a time 362)."""


class ConvGeometry(msgspec.Struct, frozen=True):
    """A convolution's attributes, one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pad_before: tuple[int, ...]
    pad_after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    in_channels: int
    out_channels: int

    @property
    def depthwise(self) -> bool:
        """Whether every input channel makes its own output channel."""
        return self.groups == self.in_channels == self.out_channels

    def out_size(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Output extents for input extents `spatial`."""
        return tuple(
            (size + before + after - (k - 1) * d - 1) // s + 1
            for size, before, after, k, d, s in zip(
                spatial,
                self.pad_before,
                self.pad_after,
                self.kernel,
                self.dilation,
                self.strides,
                strict=True,
            )
        )

    def position(self, at: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
        """Where the result at a place reads its padded data, tap by tap."""
        axes = zip(at, self.strides, taps, self.dilation, strict=True)
        return [p * s + k * d for p, s, k, d in axes]

    @property
    def takes_points(self) -> bool:
        """Whether each result is a product with the channels of one point, and all points have
        one."""
        plain = {*self.kernel, *self.strides, self.groups} == {1}
        return plain and not any((*self.pad_before, *self.pad_after))

    @property
    def per_group(self) -> int:
        """Output channels of one group."""
        return self.out_channels // self.groups

    def narrow(self, lanes: int) -> bool:
        """Whether vectors hold the outputs of several whole groups, the inputs of which lie side by
        side in two vectors at most."""
        if self.groups == 1 or self.depthwise or self.out_channels % lanes:
            return False
        together, rest = divmod(lanes, self.per_group)
        inputs = together * self.in_channels // self.groups
        return self.per_group <= NARROW and together > 1 and not rest and inputs <= 2 * lanes

    def ragged(self, lanes: int) -> bool:
        """Whether groups are no whole vectors: each is then padded on an axis of its own."""
        grouped = self.groups > 1 and not self.depthwise
        return grouped and self.per_group % lanes != 0 and not self.narrow(lanes)

    def block(self, lanes: int) -> int:
        """Output channels side by side in a packed weight."""
        if self.narrow(lanes):
            return lanes
        if self.groups == 1 or self.ragged(lanes):
            return choose_block(self.per_group, lanes)
        return choose_group_block(self.per_group, lanes)

    def added(self, taps: Sequence[Any], channel: Any, lanes: int) -> list[Any]:
        """The axes of the sum, in order: channels innermost, but for groups of a vector or less
        taps along a row, which share what they load (32 groups of 8, 28 x 28: 420 → 340 us)."""
        if self.kernel[-1] > 1 and self.groups > 1 and self.block(lanes) <= lanes:
            return [*taps[:-1], channel, taps[-1]]
        return [*taps, channel]


def pack_weight(weight: np.ndarray, geometry: ConvGeometry, lanes: int) -> np.ndarray:
    """[O, k.., C/groups] → a view [O/B, k.., C/groups, B], channels padded by zeros to blocks.

    Ragged groups: [groups, O/groups/B, k.., C/groups, B]; depthwise: [k.., O].
    """
    if geometry.depthwise:
        return np.moveaxis(weight[..., 0], 0, -1)
    block = geometry.block(lanes)
    groups = geometry.groups if geometry.ragged(lanes) else 1
    weight = weight.reshape(groups, -1, *weight.shape[1:])
    extra = padded(weight.shape[1], block) - weight.shape[1]
    if extra:
        weight = np.pad(weight, ((0, 0), (0, extra)) + ((0, 0),) * (weight.ndim - 2))
    blocked = weight.reshape(groups, -1, block, *weight.shape[2:])
    packed = np.moveaxis(blocked, 2, -1)
    return packed if geometry.ragged(lanes) else packed[0]


def packed_shape(geometry: ConvGeometry, lanes: int) -> tuple[int, ...]:
    """That of `pack_weight`."""
    if geometry.depthwise:
        return (*geometry.kernel, geometry.out_channels)
    block, groups = geometry.block(lanes), geometry.groups if geometry.ragged(lanes) else 1
    blocks = padded(geometry.out_channels // groups, block) // block
    own = (blocks, *geometry.kernel, geometry.in_channels // geometry.groups, block)
    return (groups, *own) if geometry.ragged(lanes) else own


def conv(
    x: Tensor,
    weight: Tensor,
    geometry: ConvGeometry,
    lanes: int,
    *,
    planes: bool = False,
    product: Callable[[Any, Any], Any] = operator.mul,
    outside: Any = None,
) -> Tensor:
    """The convolution of x [n, spatial.., C] (grouped: [n, spatial.., groups, C/groups]).

    `weight` is packed by `pack_weight`; the result is [n, out.., O], ragged groups side by side.
    With `planes` x is [n, C, spatial..], for one group only. `product` is that of two elements of
    whole channels, and `outside` what lies around x, by default zero.
    """
    rank = len(geometry.kernel)
    first = 2 if planes else 1
    out = geometry.out_size([int(size) for size in x.shape[first : rank + first]])
    grouped = geometry.groups > 1 and not geometry.depthwise
    x = padded_data(x, geometry, first, outside)
    taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(geometry.kernel)]

    if geometry.depthwise:

        def depthwise(n: Any, *at: Any) -> Any:
            *place, o = at
            position = geometry.position(place, taps)
            element = x(n, o, *position) if planes else x(n, *position, o)
            return te.sum(element * weight(*taps, o), axis=taps)

        return te.compute((x.shape[0], *out, geometry.out_channels), depthwise, name="depthwise")
    channel = te.reduce_axis((0, geometry.in_channels // geometry.groups), name="c")
    block, added = geometry.block(lanes), geometry.added(taps, channel, lanes)
    if geometry.ragged(lanes):

        def ragged(n: Any, *at: Any) -> Any:
            *place, g, o = at
            element = x(n, *geometry.position(place, taps), g, channel)
            weighted = product(element, weight(g, o // block, *taps, channel, o % block))
            return te.sum(weighted, axis=added)

        shape = (x.shape[0], *out, geometry.groups, padded(geometry.per_group, block))
        return joined(te.compute(shape, ragged, name="conv"), geometry.per_group)

    def dense(n: Any, *at: Any) -> Any:
        *place, o = at
        group = (o // geometry.per_group,) if grouped else ()
        if planes:
            element = x(n, channel, *geometry.position(place, taps))
        else:
            element = x(n, *geometry.position(place, taps), *group, channel)
        weighted = product(element, weight(o // block, *taps, channel, o % block))
        return te.sum(weighted, axis=added)

    channels = padded(geometry.out_channels, block)
    y = te.compute((x.shape[0], *out, channels), dense, name="conv")
    return crop(y, geometry.out_channels)


def joined(parts: Tensor, size: int) -> Tensor:
    """The first `size` elements of each row, one row after another: [.., g, o] → [.., g * size]."""
    *outer, rows, _ = parts.shape

    def element(*at: Any) -> Any:
        *place, c = at
        return parts(*place, c // size, c % size)

    return te.compute((*outer, int(rows) * size), element, name="joined")


def conv_planes(x: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """The convolution of planes x [n, C, spatial..] by weight [O, C, k..] to planes [n, O, out..],
    of one group: for fewer output channels than a vector holds, since vectors lie along rows."""
    out = geometry.out_size([int(size) for size in x.shape[2:]])
    x = padded_data(x, geometry, 2)
    channel = te.reduce_axis((0, geometry.in_channels), name="c")
    taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(geometry.kernel)]

    def dense(n: Any, o: Any, *at: Any) -> Any:
        place = geometry.position(at, taps)
        return te.sum(x(n, channel, *place) * weight(o, channel, *taps), axis=[channel, *taps])

    return te.compute((x.shape[0], geometry.out_channels, *out), dense, name="conv")


def padded_data(x: Tensor, geometry: ConvGeometry, first: int, outside: Any = None) -> Tensor:
    """The data with the padding of its spatial axes, of which `first` is the first: zeros, or what
    is `outside`."""
    if not any((*geometry.pad_before, *geometry.pad_after)):
        return x
    flat, behind = (0,) * first, (0,) * (len(x.shape) - len(geometry.kernel) - first)
    before = (*flat, *geometry.pad_before, *behind)
    after = (*flat, *geometry.pad_after, *behind)
    return topi.nn.pad(x, before, after, 0.0 if outside is None else outside, name="pad")
