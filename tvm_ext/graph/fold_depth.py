"""`FoldDepth`: a convolution of volumes as one of planes, where Winograd's algorithm then pays.

    y = conv3d(x [n, d, h, w, c], W 3 x 3 x 3)
        →
    s [n * d, h, w, (k, c)] = x [n, d + k - 1, h, w, c]        each plane with its neighbours
    y = reshape(conv2d(s, W as 3 x 3 of 3 * c channels))

The planes are copied as often as the kernel is deep; of the multiplications a quarter is left. A
video network's layers of 14 x 14 and 28 x 28 with 32 to 128 channels take half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.legalise_conv import pays_by_winograd, read_conv
from tvm_ext.graph.legalise_norm import ints, static_shape
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

DATA, KERNEL = "NDHWC", "ODHWI"


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
class _Folder(relax.PyExprMutator):
    def __init__(self, mod: IRModule, options: FoldDepth) -> None:
        super().__init__(mod)
        self._options = options
        self._faster: dict[Any, bool] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.nn.conv3d":
            return call
        attrs, out, found = call.attrs, static_shape(call), read_conv(call, DATA, KERNEL)
        if found is None or out is None:
            return call
        geometry, shape, weight = found
        if geometry.groups != 1 or set(geometry.strides) | set(geometry.dilation) != {1}:
            return call
        key = geometry, shape
        if key not in self._faster:
            self._faster[key] = pays(geometry, shape, self._options)
        if not self._faster[key]:
            return call
        stacked = self.builder_.emit_te(
            lambda x: stack_planes(x, geometry), call.args[0], primfunc_name_hint="planes"
        )
        columns = weight.transpose(0, 2, 3, 1, 4).reshape(weight.shape[0], *geometry.kernel[1:], -1)
        padding = ints(attrs.padding)
        made = relax.op.nn.conv2d(
            stacked,
            constant(columns),
            padding=(padding[1], padding[2], padding[4], padding[5]),
            data_layout=DATA.replace("D", ""),
            kernel_layout=KERNEL.replace("D", ""),
            out_dtype=attrs.out_dtype,
        )
        return relax.op.reshape(self.builder_.emit(made), out)


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
    depth, *kernel = geometry.kernel
    return ConvGeometry(
        kernel=tuple(kernel),
        strides=geometry.strides[1:],
        pad_before=geometry.pad_before[1:],
        pad_after=geometry.pad_after[1:],
        dilation=geometry.dilation[1:],
        groups=1,
        in_channels=depth * geometry.in_channels,
        out_channels=geometry.out_channels,
    )


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
