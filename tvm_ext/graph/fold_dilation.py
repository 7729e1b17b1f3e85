"""`FoldDilation`: a window with holes as a plain one over several images, where Winograd's
algorithm then pays.

    y = conv2d(x [n, h, w, c], W 3 x 3, dilation d)
        →
    s [n * d * d, h/d, w/d, c] = every d-th row and column of x, from each of d x d places on
    y[h, w] = conv2d(s, W)[place of h % d and w % d, h / d, w / d]

    y = conv1d(x [n, w, c], W 3, dilation d)   →   conv2d(reshape(x, [n, w/d, d, c]), W 3 x 1)

Networks that answer for each point keep their last stages' resolution by dilation (DeepLab, FCN,
PSPNet). Both copies move each element once; of the multiplications a quarter is left. Networks of
sound look far back by it, along one axis: nothing is moved where its length is whole steps, and
half of the multiplications are left.
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
from tvm_ext.graph.fold_window import blocks_shape, of_blocks, split_blocks
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


@tvm.transform.module_pass(opt_level=0, name="FoldDilation")
@dataclass(frozen=True)
class FoldDilation:
    """Rewrites dense channels-last conv2d and conv1d of stride 1 by constants.

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
        if op_name(call) not in ("relax.nn.conv1d", IMAGES):
            return call
        found, out = read_conv(call, *CONVOLUTIONS[op_name(call)][:2]), static_shape(call)
        if found is None or out is None:
            return call
        geometry, shape, weight = of_image(*found)
        if geometry.groups != 1 or set(geometry.strides) != {1} or set(geometry.dilation) == {1}:
            return call
        if not self._once(pays, geometry, shape):
            return call
        x, dtype, rows = call.args[0], call.attrs.out_dtype, rows_of_steps(geometry, shape)
        if rows is not None:
            made = self._convolved(IMAGES, self._reshaped(x, rows[1]), weight, rows[0], dtype)
            return self._reshaped(self.builder_.emit(made), out)
        images = self.builder_.emit_te(
            lambda x: split_image(x, geometry),
            self._reshaped(x, shape),
            primfunc_name_hint="images",
        )
        made = self._convolved(IMAGES, images, weight, of_images(geometry), dtype)
        image = self.builder_.emit_te(
            lambda y: join_images(y, geometry, shape),
            self.builder_.emit(made),
            primfunc_name_hint="image",
        )
        return self._reshaped(image, out)


def of_image(
    geometry: ConvGeometry, shape: tuple[int, ...], weight: np.ndarray
) -> tuple[ConvGeometry, tuple[int, ...], np.ndarray]:
    """The same convolution of images: a sequence is one of one row."""
    if len(shape) == 4:
        return geometry, shape, weight
    fields = ("kernel", "strides", "dilation", "pad_before", "pad_after")
    more = {name: (0 if "pad" in name else 1, *getattr(geometry, name)) for name in fields}
    wide = msgspec.structs.replace(geometry, **more)
    return wide, (shape[0], 1, *shape[1:]), weight[:, None]


def pays(geometry: ConvGeometry, shape: tuple[int, ...], options: FoldDilation) -> bool:
    """Whether Winograd's algorithm of what has no holes takes less time than the window with them,
    with the copies that it needs, and with those of a long window (`FoldWindow`)."""
    rows = rows_of_steps(geometry, shape)
    plain, images = rows or (of_images(geometry), images_shape(geometry, shape))
    results = (images[0], *plain.out_size(images[1:-1]), geometry.out_channels)
    short, blocks = of_blocks(plain), blocks_shape(plain, images)

    def copies() -> list[PrimFunc]:
        x, s, y = (
            te.placeholder(each, "float32", name=name)
            for name, each in (("x", shape), ("s", images), ("y", results))
        )
        made = [
            te.create_prim_func([x, split_image(x, geometry)]),
            te.create_prim_func([y, join_images(y, geometry, shape)]),
        ]
        of_window = [te.create_prim_func([s, split_blocks(s, plain, False)])]
        return [*([] if rows else made), *([] if short.kernel == plain.kernel else of_window)]

    if short.kernel == plain.kernel:
        return pays_by_winograd(geometry, shape, plain, images, copies, options)
    return pays_by_winograd(geometry, shape, short, blocks, copies, options)


def rows_of_steps(
    geometry: ConvGeometry, shape: tuple[int, ...]
) -> tuple[ConvGeometry, tuple[int, ...]] | None:
    """The plain convolution along columns of images, and their shape, whose rows are the steps of a
    window with holes along one axis, so many elements each; None where a rest is left."""
    axes = [axis for axis, k in enumerate(geometry.kernel) if k > 1]
    if len(axes) != 1:
        return None
    (axis,) = axes
    step, before, after = (
        every[axis] for every in (geometry.dilation, geometry.pad_before, geometry.pad_after)
    )
    padded = sum(geometry.pad_before) + sum(geometry.pad_after)
    spatial = shape[1:-1]
    if padded != before + after or any(n % step for n in (spatial[axis], before, after)):
        return None
    inner, outer = prod(spatial[axis + 1 :]), prod(spatial[:axis])
    plain = msgspec.structs.replace(
        geometry,
        kernel=(geometry.kernel[axis], 1),
        dilation=(1, 1),
        pad_before=(before // step, 0),
        pad_after=(after // step, 0),
    )
    return plain, (shape[0] * outer, spatial[axis] // step, step * inner, shape[-1])


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
