"""`FoldWindow`: a strided or long window as a short plain one over blocks of points, where
Winograd's algorithm then pays.

    y = conv2d(x [n, h, w, c], W 7 x 7, strides 2)
        →
    s [n, h/2, w/2, (2, 2, c)] = blocks of x            each point once, with its padding
    y = conv2d(s, W as 4 x 4 of 4 * c channels)

    y = conv1d(x [n, w, c], W 9)
        →
    s [n, w, (3, c)] = x [n, w + 3 * j, c]              each point with two that are further on
    y = conv1d(s, W as 3 of 3 * c channels)

The first layer of a residual network (7 x 7 by 2) takes 36 multiplications of 12 channels for nine
results where it took 147 for each. Planes are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.folder import Folder
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, pays_by_winograd, read_call
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    op_name,
    relax,
    rewritten,
    te,
    tirx,
    tvm,
)

LONGEST = 5
"""Taps of the longest window that Winograd's algorithm has tiles for."""


@tvm.transform.module_pass(opt_level=0, name="FoldWindow")
@dataclass(frozen=True)
class FoldWindow:
    """Rewrites dense convolutions by constants, of one or two axes, to channels-last results.

    hardware    the machine: its vector width and peak
    predict_us  predicted time of a PrimFunc; both ways are compared by it
    winograd    output tiles of Winograd's algorithm that may be chosen
    """

    hardware: HardwareModel
    predict_us: Callable[[PrimFunc], float]
    winograd: tuple[int, ...] = OUTPUT_TILES

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; what is not worth it stays as it is."""
        return rewritten(mod, _Folder(mod, self))


@relax.expr_functor.mutator
class _Folder(Folder):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        found = read_call(call) if op_name(call) in CONVOLUTIONS else None
        if found is None:
            return call
        geometry, shape, weight, planes = found
        dense = set(geometry.dilation) == {1} and geometry.groups == 1 and len(shape) < 5
        if not dense or geometry.kernel == of_blocks(geometry).kernel:
            return call
        if not self._once(pays, geometry, shape, planes):
            return call
        blocks = self.builder_.emit_te(
            lambda x: split_blocks(x, geometry, planes),
            call.args[0],
            primfunc_name_hint="blocks",
        )
        joined = self._reshaped(blocks, blocks_shape(geometry, shape))
        taps = blocks_of_taps(weight, geometry, planes)
        return self._convolved(
            op_name(call), joined, taps, of_blocks(geometry), call.attrs.out_dtype
        )


def pays(geometry: ConvGeometry, shape: tuple[int, ...], planes: bool, options: FoldWindow) -> bool:
    """Whether blocks and Winograd's algorithm take less time than the window as it is."""
    plain, blocks = of_blocks(geometry), blocks_shape(geometry, shape)
    data = (shape[0], shape[-1], *shape[1:-1]) if planes else shape

    def copies() -> list[PrimFunc]:
        x = te.placeholder(data, "float32", name="x")
        return [te.create_prim_func([x, split_blocks(x, geometry, planes)])]

    return pays_by_winograd(geometry, shape, plain, blocks, copies, options, planes)


class _Axis(NamedTuple):
    """How a window lies along one axis."""

    stride: int
    taps: int
    """Blocks it covers in one go."""
    parts: int
    """How often it does."""


def _axes(geometry: ConvGeometry) -> list[_Axis]:
    axes = []
    for k, stride in zip(geometry.kernel, geometry.strides, strict=True):
        blocks = -(-k // stride)
        taps = min(blocks, LONGEST)
        if blocks > LONGEST:  # of tiles of as many points the one with the fewest multiplications
            taps = min((3, 4, 5), key=lambda r: -(-blocks // r) / (7 - r))
        axes.append(_Axis(stride, taps, -(-blocks // taps)))
    return axes


def of_blocks(geometry: ConvGeometry) -> ConvGeometry:
    """The plain convolution of blocks that have their padding already."""
    axes = _axes(geometry)
    ones, zeros = (1,) * len(axes), (0,) * len(axes)
    return msgspec.structs.replace(
        geometry,
        kernel=tuple(axis.taps for axis in axes),
        strides=ones,
        pad_before=zeros,
        pad_after=zeros,
        in_channels=geometry.in_channels * prod(axis.stride * axis.parts for axis in axes),
    )


def blocks_shape(geometry: ConvGeometry, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the blocks of channels-last data of that shape, a block's points in its channels."""
    plain = of_blocks(geometry)
    sides = zip(geometry.out_size(shape[1:-1]), plain.kernel, strict=True)
    return (shape[0], *(out + taps - 1 for out, taps in sides), plain.in_channels)


def split_blocks(x: Any, geometry: ConvGeometry, planes: bool) -> Any:
    """Blocks of x, or of planes of it, padded by zeros: [n, h/s, w/s, parts.., s.., c] of
    channels-last data. Of planes neighbours along the last axis stay neighbours: [.., s, c, s]."""
    batch, *rest = (int(extent) for extent in x.shape)
    spatial = rest[1:] if planes else rest[:-1]
    rank, axes, channels = len(spatial), _axes(geometry), geometry.in_channels

    def body(n: Any, *at: Any) -> Any:
        block, part, point = at[:rank], at[rank : 2 * rank], at[2 * rank :]
        c, point = (point[-2], (*point[:-2], point[-1])) if planes else (point[-1], point[:-1])
        place = [
            (b + j * axis.taps) * axis.stride + p - before
            for b, j, p, axis, before in zip(
                block, part, point, axes, geometry.pad_before, strict=True
            )
        ]
        bounds = zip(place, spatial, strict=True)
        inside = tirx.all(*(tirx.all(p >= 0, p < extent) for p, extent in bounds))
        element = x(n, c, *place) if planes else x(n, *place, c)
        return tirx.if_then_else(inside, element, tirx.const(0.0, x.dtype))

    steps = [axis.stride for axis in axes]
    inner = (*steps[:-1], channels, steps[-1]) if planes else (*steps, channels)
    outer = blocks_shape(geometry, (batch, *spatial, channels))[:-1]
    return te.compute((*outer, *(axis.parts for axis in axes), *inner), body, name="blocks")


def blocks_of_taps(weight: np.ndarray, geometry: ConvGeometry, planes: bool) -> np.ndarray:
    """[O, k.., C] → [O, taps.., (parts.., s.., C)], in the order of the blocks' points, with zeros
    where the last blocks are longer than the window."""
    axes, outputs = _axes(geometry), len(weight)
    lengths = [axis.parts * axis.taps * axis.stride for axis in axes]
    more = [(0, length - k) for length, k in zip(lengths, geometry.kernel, strict=True)]
    cut = [extent for axis in axes for extent in (axis.parts, axis.taps, axis.stride)]
    whole = np.pad(weight, [(0, 0), *more, (0, 0)]).reshape(outputs, *cut, -1)
    parts, taps, points = (range(first, whole.ndim - 1, 3) for first in (1, 2, 3))
    channel = whole.ndim - 1
    inner = (*points[:-1], channel, points[-1]) if planes else (*points, channel)
    turned = whole.transpose(0, *taps, *parts, *inner)
    return np.ascontiguousarray(turned.reshape(outputs, *(axis.taps for axis in axes), -1))
