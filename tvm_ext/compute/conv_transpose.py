"""Transposed convolution as one convolution per phase of the output, channels last.

    y[n, h.., o] = sum over i, k with i * stride + k - pad = h of x[n, i.., c] * w[c, o, k..]
        →  sum over j.., c of x[n, h // stride + j + .., c] * w'[h % stride, j.., c, o]

An output sees only every `stride`-th tap of the kernel. Which ones depends on its phase, `h %
stride`, so nothing is multiplied by the zeros that a transposed convolution is said to insert (Shi
et al. 2016, "Is the deconvolution layer the same as a convolutional layer?").
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tvm_ext.compute.blocking import choose_block, padded
from tvm_ext.tvm_api import te, tirx, topi

Tensor = Any


class TransposedGeometry(msgspec.Struct, frozen=True):
    """A transposed convolution's attributes, one entry per spatial axis. `pad` is what is cut off
    the result before its first element; what follows its last is decided by `out_size`."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pad: tuple[int, ...]
    out_size: tuple[int, ...]
    in_channels: int
    out_channels: int
    groups: int = 1

    @property
    def depthwise(self) -> bool:
        """Whether every input channel makes its own output channel."""
        return 1 < self.groups == self.in_channels == self.out_channels

    @property
    def grouped(self) -> bool:
        """Whether groups of channels have an axis of their own."""
        return self.groups > 1 and not self.depthwise

    @property
    def per_group(self) -> int:
        """Output channels of one group."""
        return self.out_channels // self.groups

    def carries(self, axis: int) -> bool:
        """Whether the later phases begin an element later, and no index can say so: they get a tap
        more, the first or the last of which is zero. With a stride of 2 the phase itself says it.
        """
        return self.strides[axis] > 2 and self.pad[axis] % self.strides[axis] > 0

    def reach(self, axis: int) -> int:
        """Elements of the input from the first to the last that one output sees."""
        return (self.kernel[axis] - 1) // self.strides[axis]

    def taps(self, axis: int) -> int:
        """Taps of the kernel that one output sees; some phases see a zero."""
        return self.reach(axis) + 1 + self.carries(axis)

    def places(self, axis: int) -> tuple[list[int], list[int]]:
        """Phase and tap of every element of the kernel. The last one meets the first input."""
        stride, pad, last = self.strides[axis], self.pad[axis], self.reach(axis)
        phases = [(k - pad) % stride for k in range(self.kernel[axis])]
        late = [self.carries(axis) * ((phase + pad % stride) // stride) for phase in phases]
        return phases, [last - k // stride + carry for k, carry in enumerate(late)]

    @property
    def whole_size(self) -> tuple[int, ...]:
        """The output's extents in whole strides."""
        return tuple(padded(size, s) for size, s in zip(self.out_size, self.strides, strict=True))


def by_phase(weight: np.ndarray, geometry: TransposedGeometry) -> np.ndarray:
    """[C, O, k..] → [C, O, (phase, tap)..], zeros where a phase sees no tap of the kernel."""
    for axis, stride in enumerate(geometry.strides):
        place = 2 + 2 * axis
        moved = np.moveaxis(weight, place, 0)
        spread = np.zeros((stride, geometry.taps(axis), *moved.shape[1:]), weight.dtype)
        spread[geometry.places(axis)] = moved
        weight = np.moveaxis(spread, (0, 1), (place, place + 1))
    return weight


def pack_transposed(weight: np.ndarray, geometry: TransposedGeometry, lanes: int) -> np.ndarray:
    """[C, O, k..] → [O/B, phase.., tap.., C, B]; depthwise [C, 1, k..] → [phase.., tap.., C];
    groups [C, O/groups, k..] → [groups, O/groups/B, phase.., tap.., C/groups, B]. What a register
    tile of one phase reads lies in a row."""
    rank = len(geometry.kernel)
    weight = by_phase(weight, geometry)
    phases, taps = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    weight = weight.transpose(*phases, *taps, 0, 1)
    if geometry.depthwise:
        return weight[..., 0]
    block = choose_block(geometry.per_group, lanes)
    extra = padded(geometry.per_group, block) - geometry.per_group
    weight = np.pad(weight, ((0, 0),) * (weight.ndim - 1) + ((0, extra),))
    *outer, inputs, _ = weight.shape
    weight = weight.reshape(*outer, geometry.groups, inputs // geometry.groups, -1, block)
    packed = np.moveaxis(weight, (-4, -2), (0, 1))
    return packed if geometry.grouped else packed[0]


class Reading(NamedTuple):
    """How the outputs of a transposed convolution read its data."""

    data: Tensor
    """The data, padded where outputs read beside it."""
    position: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    """Of an output's place and of taps: where in the data."""
    phases: Callable[[Sequence[Any]], list[Any]]
    """Of an output's place: which of the kernels inside the kernel it sees."""


def reading(x: Tensor, geometry: TransposedGeometry, outside: Any = None) -> Reading:
    """The places that outputs read of x [n, spatial.., channels..], padded by zeros or by what is
    `outside`."""
    before, after, ahead = [], [], []
    for axis, (stride, pad) in enumerate(zip(geometry.strides, geometry.pad, strict=True)):
        reach = geometry.reach(axis)
        last = geometry.whole_size[axis] // stride - 1 + pad // stride + (pad % stride > 0)
        before.append(max(0, reach - pad // stride))
        after.append(max(0, last - int(x.shape[axis + 1]) + 1))
        ahead.append(pad // stride - reach + before[-1])
    if any((*before, *after)):
        behind = (0,) * (len(x.shape) - len(geometry.kernel) - 1)
        value = 0.0 if outside is None else outside
        x = topi.nn.pad(x, [0, *before, *behind], [0, *after, *behind], value, name="pad")

    def position(at: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
        found = []
        for axis, (h, stride) in enumerate(zip(at, geometry.strides, strict=True)):
            late = tirx.floormod(h, stride) if stride == 2 and geometry.pad[axis] % 2 else 0
            found.append(tirx.floordiv(h, stride) + late + taps[axis] + ahead[axis])
        return found

    def phases(at: Sequence[Any]) -> list[Any]:
        return [tirx.floormod(h, s) for h, s in zip(at, geometry.strides, strict=True)]

    return Reading(x, position, phases)


def tap_axes(geometry: TransposedGeometry) -> list[Any]:
    """A reduction axis for each spatial axis: the taps that an output sees."""
    taps = map(geometry.taps, range(len(geometry.kernel)))
    return [te.reduce_axis((0, count), name=f"k{axis}") for axis, count in enumerate(taps)]


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    geometry: TransposedGeometry,
    product: Callable[[Any, Any], Any] = operator.mul,
    outside: Any = None,
) -> Tensor:
    """The transposed convolution of x [n, spatial.., C] (grouped: [n, spatial.., groups, C/groups])
    by a weight of `pack_transposed`: [n, out.., O]. `product` is that of two elements of whole
    channels, and `outside` what lies around x, by default zero."""
    x, position, phases = reading(x, geometry, outside)
    taps = tap_axes(geometry)
    if geometry.depthwise:

        def depthwise(n: Any, *at: Any) -> Any:
            *place, o = at
            weighted = weight(*phases(place), *taps, o)
            return te.sum(x(n, *position(place, taps), o) * weighted, axis=taps)

        shape = (x.shape[0], *geometry.whole_size, geometry.out_channels)
        return cropped(te.compute(shape, depthwise, name="depthwise_transpose"), geometry)
    block = int(weight.shape[-1])
    channel = te.reduce_axis((0, geometry.in_channels // geometry.groups), name="c")
    rank = len(geometry.kernel)

    def dense(n: Any, *at: Any) -> Any:
        place, group, o = at[:rank], at[rank:-1], at[-1]
        weighted = weight(*group, o // block, *phases(place), *taps, channel, o % block)
        element = x(n, *position(place, taps), *group, channel)
        return te.sum(product(element, weighted), axis=[*taps, channel])

    groups = (geometry.groups,) if geometry.grouped else ()
    shape = (x.shape[0], *geometry.whole_size, *groups, padded(geometry.per_group, block))
    return cropped(te.compute(shape, dense, name="conv_transpose"), geometry)


def cropped(y: Tensor, geometry: TransposedGeometry) -> Tensor:
    """The result without what only makes strides and blocks whole, groups side by side; an epilogue
    takes this in."""
    wanted = (int(y.shape[0]), *geometry.out_size, geometry.out_channels)
    if tuple(int(extent) for extent in y.shape) == wanted:
        return y

    def element(*at: Any) -> Any:
        *place, o = at
        return y(*place, o // geometry.per_group, o % geometry.per_group)

    return te.compute(wanted, element if geometry.grouped else lambda *at: y[at], name="crop")
