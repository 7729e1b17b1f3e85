"""`FoldDepth`: a convolution of volumes as one of planes, where Winograd's algorithm then pays.

    y = conv3d(x [n, d, h, w, c], W 3 x 3 x 3)
        →
    s [n * d, h, w, (k, c)] = x [n, d + k - 1, h, w, c]        each plane with its neighbours
    y = reshape(conv2d(s, W as 3 x 3 of 3 * c channels))

    y = conv3d(x, W 1 x k x k)   →   conv2d(reshape(x, [n * d, h, w, c]), W k x k)
    y = conv3d(x, W k x 1 x 1)   →   conv2d(reshape(x, [n, d, h * w, c]), W k x 1)

The planes are copied as often as the kernel is deep; of the multiplications a quarter is left. A
video network's layers of 14 x 14 and 28 x 28 with 32 to 128 channels take half the time. Windows
that are flat, or one element wide, are those of images whatever they take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.folder import IMAGES, Folder
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, pays_by_winograd, read_conv
from tvm_ext.graph.legalise_norm import static_shape
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


@tvm.transform.module_pass(opt_level=0, name="FoldDepth")
@dataclass(frozen=True)
class FoldDepth:
    """Rewrites dense channels-last conv3d by constants.

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
        if op_name(call) != "relax.nn.conv3d":
            return call
        out, found = static_shape(call), read_conv(call, *CONVOLUTIONS[op_name(call)][:2])
        if found is None or out is None:
            return call
        (geometry, shape, weight), x, dtype = found, call.args[0], call.attrs.out_dtype
        if image := as_image(geometry, shape):
            made = self._convolved(IMAGES, self._reshaped(x, image[1]), weight, image[0], dtype)
            return relax.op.reshape(self.builder_.emit(made), out)
        if geometry.groups != 1 or set(geometry.strides) | set(geometry.dilation) != {1}:
            return call
        if not self._once(pays, geometry, shape):
            return call
        stacked = self.builder_.emit_te(
            lambda x: stack_planes(x, geometry), x, primfunc_name_hint="planes"
        )
        columns = weight.transpose(0, 2, 3, 1, 4)
        made = self._convolved(IMAGES, stacked, columns, of_planes(geometry), dtype)
        return relax.op.reshape(self.builder_.emit(made), out)


def as_image(
    geometry: ConvGeometry, shape: tuple[int, ...]
) -> tuple[ConvGeometry, tuple[int, ...]] | None:
    """A convolution of images, and their shape, that does what a flat window does to each plane, or
    one along the depth to all planes' points; None of other windows, and of groups."""
    images, depth, height, width, channels = shape
    pads = tuple(zip(geometry.pad_before, geometry.pad_after, strict=True))
    if geometry.groups > 1:
        return None
    if (geometry.kernel[0], geometry.strides[0], pads[0]) == (1, 1, (0, 0)):
        return _along(geometry, lambda every: every[1:]), (images * depth, height, width, channels)
    flat = geometry.kernel[1:] == geometry.strides[1:] == (1, 1)
    if flat and pads[1:] == ((0, 0), (0, 0)):
        return _along(geometry, lambda every: every[:2]), (images, depth, height * width, channels)
    return None


def _along(
    geometry: ConvGeometry, axes: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> ConvGeometry:
    """The geometry of some axes."""
    fields = ("kernel", "strides", "dilation", "pad_before", "pad_after")
    return msgspec.structs.replace(geometry, **{n: axes(getattr(geometry, n)) for n in fields})


def pays(geometry: ConvGeometry, shape: tuple[int, ...], options: FoldDepth) -> bool:
    """Whether planes side by side and Winograd's algorithm take less time than the volume."""
    flat = of_planes(geometry)
    planes = (shape[0] * geometry.out_size(shape[1:-1])[0], *shape[2:-1], flat.in_channels)

    def copies() -> list[PrimFunc]:
        x = te.placeholder(shape, "float32", name="x")
        return [te.create_prim_func([x, stack_planes(x, geometry)])]

    return pays_by_winograd(geometry, shape, flat, planes, copies, options)


def of_planes(geometry: ConvGeometry) -> ConvGeometry:
    """The convolution of planes that lie with their neighbours, depth first among channels."""
    inner = geometry.kernel[0] * geometry.in_channels
    return msgspec.structs.replace(_along(geometry, lambda every: every[1:]), in_channels=inner)


def stack_planes(x: Any, geometry: ConvGeometry) -> Any:
    """s of x; planes beyond the ends are zeros."""
    batch, depth, height, width, channels = (int(extent) for extent in x.shape)
    out = geometry.out_size((depth, height, width))[0]
    before, deep = geometry.pad_before[0], geometry.kernel[0]

    def body(plane: Any, h: Any, w: Any, c: Any) -> Any:
        source = plane % out + c // channels - before
        element = x[plane // out, source, h, w, c % channels]
        inside = tirx.all(source >= 0, source < depth)
        return tirx.if_then_else(inside, element, tirx.const(0.0, x.dtype))

    return te.compute((batch * out, height, width, deep * channels), body, name="planes")
