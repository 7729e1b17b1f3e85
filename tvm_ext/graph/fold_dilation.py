"""`FoldDilation`: a window with holes as a plain one over several images, where Winograd's
algorithm then pays.

    y = conv2d(x [n, h, w, c], W 3 x 3, dilation d)
        →
    s [n * d * d, h/d, w/d, c] = every d-th row and column of x, from each of d x d places on
    y[h, w] = conv2d(s, W)[place of h % d and w % d, h / d, w / d]

Networks that answer for each point keep their last stages' resolution by dilation (DeepLab, FCN,
PSPNet). Both copies move each element once; of the multiplications a quarter is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.legalise_conv import pays_by_winograd, read_conv
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

DATA, KERNEL = "NHWC", "OHWI"


@tvm.transform.module_pass(opt_level=0, name="FoldDilation")
@dataclass(frozen=True)
class FoldDilation:
    """Rewrites dense channels-last conv2d of stride 1 by constants.

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
    def __init__(self, mod: IRModule, options: FoldDilation) -> None:
        super().__init__(mod)
        self._options = options
        self._faster: dict[Any, bool] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.nn.conv2d":
            return call
        found = read_conv(call, DATA, KERNEL)
        if found is None:
            return call
        geometry, shape, _ = found
        if geometry.groups != 1 or set(geometry.strides) != {1} or set(geometry.dilation) == {1}:
            return call
        key = geometry, shape
        if key not in self._faster:
            self._faster[key] = pays(geometry, shape, self._options)
        if not self._faster[key]:
            return call
        images = self.builder_.emit_te(
            lambda x: split_image(x, geometry), call.args[0], primfunc_name_hint="images"
        )
        made = relax.op.nn.conv2d(
            images,
            call.args[1],
            data_layout=DATA,
            kernel_layout=KERNEL,
            out_dtype=call.attrs.out_dtype,
        )
        return self.builder_.call_te(
            lambda y: join_images(y, geometry, shape),
            self.builder_.emit(made),
            primfunc_name_hint="image",
        )


def pays(geometry: ConvGeometry, shape: tuple[int, ...], options: FoldDilation) -> bool:
    """Whether several images and Winograd's algorithm take less time than the window with holes."""
    plain, images = of_images(geometry), images_shape(geometry, shape)
    results = (images[0], *plain.out_size(images[1:-1]), geometry.out_channels)

    def copies() -> list[PrimFunc]:
        x, y = (
            te.placeholder(each, "float32", name=n) for n, each in (("x", shape), ("y", results))
        )
        return [
            te.create_prim_func([x, split_image(x, geometry)]),
            te.create_prim_func([y, join_images(y, geometry, shape)]),
        ]

    return pays_by_winograd(geometry, shape, plain, images, copies, options)


def of_images(geometry: ConvGeometry) -> ConvGeometry:
    """The plain convolution of images that have their padding already."""
    ones, zeros = (1, 1), (0, 0)
    return msgspec.structs.replace(geometry, dilation=ones, pad_before=zeros, pad_after=zeros)


def images_shape(geometry: ConvGeometry, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the images of x of that shape, as large as the longest rows and columns."""
    sizes = zip(geometry.out_size(shape[1:-1]), geometry.kernel, geometry.dilation, strict=True)
    sides = (-(-out // step) + taps - 1 for out, taps, step in sizes)
    return (shape[0] * prod(geometry.dilation), *sides, shape[-1])


def split_image(x: Any, geometry: ConvGeometry) -> Any:
    """Images of every d-th row and column of x, padded by zeros."""
    _, height, width, _ = shape = tuple(int(extent) for extent in x.shape)
    (down, across), (top, left) = geometry.dilation, geometry.pad_before

    def body(image: Any, i: Any, j: Any, c: Any) -> Any:
        place = image % (down * across)
        row, column = i * down + place // across - top, j * across + place % across - left
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        element = x[image // (down * across), row, column, c]
        return tirx.if_then_else(inside, element, tirx.const(0.0, x.dtype))

    return te.compute(images_shape(geometry, shape), body, name="images")


def join_images(y: Any, geometry: ConvGeometry, shape: tuple[int, ...]) -> Any:
    """The result from those of the images of x of that shape."""
    down, across = geometry.dilation
    out = (shape[0], *geometry.out_size(shape[1:-1]), geometry.out_channels)

    def body(n: Any, h: Any, w: Any, o: Any) -> Any:
        image = (n * down + h % down) * across + w % across
        return y[image, h // down, w // across, o]

    return te.compute(out, body, name="image")
