"""`FoldStride`: a strided window as a plain one over blocks of points, where Winograd's algorithm
then pays.

    y = conv2d(x [n, h, w, c], W 7 x 7, strides 2)
        →
    s [n, h/2, w/2, (2, 2, c)] = blocks of x            each point once, with its padding
    y = conv2d(s, W as 4 x 4 of 4 * c channels)

The first layer of a residual network (7 x 7 by 2) takes 36 multiplications of 12 channels for nine
results where it took 147 for each. Planes are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, pays_by_winograd, read_call
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    constant,
    op_name,
    relax,
    rewritten,
    te,
    tirx,
    tvm,
)


@tvm.transform.module_pass(opt_level=0, name="FoldStride")
@dataclass(frozen=True)
class FoldStride:
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
class _Folder(relax.PyExprMutator):
    def __init__(self, mod: IRModule, options: FoldStride) -> None:
        super().__init__(mod)
        self._options = options
        self._faster: dict[Any, bool] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        found = read_call(call) if op_name(call) in CONVOLUTIONS else None
        if found is None:
            return call
        geometry, shape, weight, planes = found
        folds = set(geometry.strides) != {1} == set(geometry.dilation) and len(shape) < 5
        if geometry.groups != 1 or not folds:
            return call
        key = geometry, shape, planes
        if key not in self._faster:
            self._faster[key] = pays(geometry, shape, planes, self._options)
        if not self._faster[key]:
            return call
        blocks = self.builder_.emit_te(
            lambda x: split_blocks(x, geometry, planes),
            call.args[0],
            primfunc_name_hint="blocks",
        )
        plain = relax.op.reshape(blocks, blocks_shape(geometry, shape))
        data, kernel, _ = CONVOLUTIONS[op_name(call)]
        return getattr(relax.op.nn, op_name(call).rsplit(".", 1)[-1])(
            self.builder_.emit(plain),
            constant(blocks_of_taps(weight, geometry, planes)),
            data_layout=data,
            kernel_layout=kernel,
            out_dtype=call.attrs.out_dtype,
        )


def pays(geometry: ConvGeometry, shape: tuple[int, ...], planes: bool, options: FoldStride) -> bool:
    """Whether blocks and Winograd's algorithm take less time than the strided window."""
    plain, blocks = of_blocks(geometry), blocks_shape(geometry, shape)
    data = (shape[0], shape[-1], *shape[1:-1]) if planes else shape

    def copies() -> list[PrimFunc]:
        x = te.placeholder(data, "float32", name="x")
        return [te.create_prim_func([x, split_blocks(x, geometry, planes)])]

    return pays_by_winograd(geometry, shape, plain, blocks, copies, options, planes)


def of_blocks(geometry: ConvGeometry) -> ConvGeometry:
    """The plain convolution of blocks that have their padding already."""
    ones, zeros = (1,) * len(geometry.kernel), (0,) * len(geometry.kernel)
    return msgspec.structs.replace(
        geometry,
        kernel=_taps(geometry),
        strides=ones,
        pad_before=zeros,
        pad_after=zeros,
        in_channels=geometry.in_channels * prod(geometry.strides),
    )


def _taps(geometry: ConvGeometry) -> tuple[int, ...]:
    """How many blocks a window covers along each axis."""
    return tuple(-(-k // s) for k, s in zip(geometry.kernel, geometry.strides, strict=True))


def blocks_shape(geometry: ConvGeometry, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the blocks of channels-last data of that shape, a block's points in its channels."""
    sides = zip(geometry.out_size(shape[1:-1]), _taps(geometry), strict=True)
    counts = (out + taps - 1 for out, taps in sides)
    return (shape[0], *counts, shape[-1] * prod(geometry.strides))


def split_blocks(x: Any, geometry: ConvGeometry, planes: bool) -> Any:
    """Blocks of x, or of planes of it, padded by zeros: [n, h/s, w/s, s, s, c] of channels-last
    data. Of planes neighbours along the last axis stay neighbours: [n, h/s, w/s, s, c, s]."""
    batch, *rest = (int(extent) for extent in x.shape)
    spatial = rest[1:] if planes else rest[:-1]
    rank, steps = len(spatial), geometry.strides
    whole = (batch, *spatial, geometry.in_channels)

    def body(n: Any, *at: Any) -> Any:
        block, (*points, last) = at[:rank], at[rank:]
        c, point = (points[-1], (*points[:-1], last)) if planes else (last, points)
        axes = zip(block, steps, point, geometry.pad_before, strict=True)
        place = [b * step + p - before for b, step, p, before in axes]
        bounds = zip(place, spatial, strict=True)
        inside = tirx.all(*(tirx.all(p >= 0, p < extent) for p, extent in bounds))
        element = x(n, c, *place) if planes else x(n, *place, c)
        return tirx.if_then_else(inside, element, tirx.const(0.0, x.dtype))

    inner = (*steps[:-1], geometry.in_channels, steps[-1]) if planes else (*steps, whole[-1])
    return te.compute((*blocks_shape(geometry, whole)[:-1], *inner), body, name="blocks")


def blocks_of_taps(weight: np.ndarray, geometry: ConvGeometry, planes: bool) -> np.ndarray:
    """[O, k.., C] → [O, k/s.., (s.., C)], in the order of the blocks' points, with zeros where the
    last blocks are longer than the window."""
    rank = len(geometry.kernel)
    sides = list(zip(_taps(geometry), geometry.strides, geometry.kernel, strict=True))
    more = [(0, taps * step - k) for taps, step, k in sides]
    whole = np.pad(weight, [(0, 0), *more, (0, 0)])
    parted = whole.reshape(len(weight), *(e for taps, step, _ in sides for e in (taps, step)), -1)
    taps, points, channel = range(1, 2 * rank, 2), range(2, 2 * rank + 1, 2), 2 * rank + 1
    inner = (*points[:-1], channel, points[-1]) if planes else (*points, channel)
    turned = parted.transpose(0, *taps, *inner)
    return np.ascontiguousarray(turned.reshape(len(weight), *_taps(geometry), -1))
