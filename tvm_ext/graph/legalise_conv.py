"""Convolution to tensor programs: the algorithm by the picker's model, weights packed on the way.

conv2d(x, W, NHWC)  →  call_tir(conv, x, W packed [O/B, kh, kw, C, B])
                    or call_tir(winograd, x, G W G^T packed [a, b, O/B, C, B])
                    or call_tir(taps, call_tir(conv, x, W as [(k, O), 1, 1, C], packed))
                    or call_tir(total, call_tir(dots, x, W packed [kh, kw, C/lanes, O, lanes]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf, prod
from typing import Any

import numpy as np

from tvm_ext.compute import dots, taps
from tvm_ext.compute.blocking import lanes_along
from tvm_ext.compute.conv import ConvGeometry, conv, conv_planes, pack_weight
from tvm_ext.compute.conv import packed_shape as conv_shape
from tvm_ext.compute.winograd import (
    output_tiles,
    packed_shape,
    points,
    tile,
    transform_flops,
    transform_weight,
    winograd,
)
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import peak_gflops, roof
from tvm_ext.tvm_api import PrimFunc, constant, constant_array, te, topi

CONVOLUTIONS = {
    "relax.nn.conv1d": ("NWC", "OWI", "NCW"),
    "relax.nn.conv2d": ("NHWC", "OHWI", "NCHW"),
    "relax.nn.conv3d": ("NDHWC", "ODHWI", "NCDHW"),
}
"""Operators with the layouts of data and weight this rule takes, and that of data in planes."""
PLANES = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}
"""The same operators' layouts of data and weight where convolution stays in planes."""
WORTH = 0.95
"""Part of the direct convolution's time from which less is worth copies of what it reads."""
DIRECT, TAPS, DOTS = 0, -1, -2
"""The algorithms that are no Winograd tile; of the others see `compute.taps`, `compute.dots`."""


def stays_in_planes(call: Any, lanes: int) -> bool:
    """Whether a convolution of planes to planes is best left so: dense, with stride 1, by a
    constant, to no more channels than it reads, so few that channels last would leave half of a
    vector empty, along rows of at least a vector."""
    given, out, attrs = static_shape(call.args[0]), static_shape(call), call.attrs
    weight = constant_array(call.args[1])
    if given is None or out is None or weight is None or weight.dtype != np.float32:
        return False
    data, kernel = PLANES[str(call.op.name)]
    return (
        (str(attrs.data_layout), str(attrs.kernel_layout)) == (data, kernel)
        and str(attrs.out_layout) in ("", data)
        and int(attrs.groups) == 1
        and set(ints(attrs.strides)) == {1}
        and 2 * out[1] <= lanes <= out[-1]
        and out[1] <= given[1]
    )


def legalise_planes(builder: Any, call: Any) -> Any:
    """Convolution of planes to few planes (see `stays_in_planes`)."""
    outputs, inputs, *kernel = constant_array(call.args[1]).shape
    geometry = geometry_of(call.attrs, kernel, inputs, outputs)
    return builder.call_te(
        lambda data, filters: conv_planes(data, filters, geometry),
        *call.args,
        primfunc_name_hint=f"{call.op.name.rsplit('.', 1)[-1]}_planes",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def legalise_conv(builder: Any, call: Any, options: Any) -> Any:
    """Convolution by a constant to a channels-last result, of channels-last data or of planes, or
    from planes to few planes; None for other layouts and weights."""
    if stays_in_planes(call, options.lanes):
        return legalise_planes(builder, call)
    known = read_call(call)
    if known is None:
        return None
    geometry, shape, weight, planes = known
    name = f"{call.op.name.rsplit('.', 1)[-1]}{'_depthwise' if geometry.depthwise else ''}"
    return lower_conv(builder, call.args[0], shape, weight, geometry, options, name, planes)


def read_call(call: Any) -> tuple[ConvGeometry, tuple[int, ...], np.ndarray, bool] | None:
    """Geometry, shape of the data with its channels last, and weight of a convolution to a
    channels-last result by a float32 constant, and whether it reads planes; None of another."""
    planes, weight = reads_planes(call), constant_array(call.args[1])
    shape = static_shape(call.args[0])
    if planes is None or weight is None or shape is None or weight.dtype != np.float32:
        return None
    if planes:
        shape = (shape[0], *shape[2:], shape[1])
    geometry = geometry_of(call.attrs, weight.shape[1:-1], shape[-1], weight.shape[0])
    return geometry, tuple(shape), weight, planes


def reads_planes(call: Any) -> bool | None:
    """Whether a convolution to a channels-last result reads planes, of one group, and no
    channels-last data; None for other layouts."""
    attrs = call.attrs
    data, kernel, planar = CONVOLUTIONS[str(call.op.name)]
    planes = str(attrs.data_layout) == planar and int(attrs.groups) == 1
    known = planes or str(attrs.data_layout) == data
    if not known or str(attrs.kernel_layout) != kernel:
        return None
    return planes if str(attrs.out_layout) in ((data,) if planes else ("", data)) else None


def lower_conv(
    builder: Any,
    x: Any,
    shape: tuple[int, ...],
    weight: np.ndarray,
    geometry: ConvGeometry,
    options: Any,
    name: str,
    planes: bool = False,
) -> Any:
    """The convolution of x by weight [O, k.., C/groups], by the algorithm that is predicted to be
    fastest; `shape` is that of x with its channels last, even if x is in `planes`."""
    lanes, m = lanes_of(geometry, options.hardware), DIRECT
    if not planes:
        m = choose_algorithm(
            geometry,
            shape,
            lanes,
            options.winograd,
            options.predict_us,
            peak_gflops(options.hardware),
        )
    if m == TAPS:
        product = taps.product_geometry(geometry, lanes)
        return by_taps(
            builder,
            x,
            taps.tap_columns(weight, lanes),
            product,
            lambda data: taps.shifted_sum(data, geometry),
            key=geometry,
            name=name,
            lanes=lanes,
        )
    if m == DOTS:
        partial = builder.call_te(
            lambda data, filters: dots.partial_sums(data, filters, geometry, lanes),
            x,
            constant(dots.pack_weight(weight, lanes)),
            key=geometry,
            primfunc_name_hint=f"{name}_dots",
            primfunc_attrs=FUSES_EPILOGUE,
        )
        return builder.call_te(
            dots.total,
            builder.emit(partial),
            key="total",
            primfunc_name_hint=f"{name}_total",
            primfunc_attrs=FUSES_EPILOGUE,
        )
    if m != DIRECT:
        return builder.call_te(
            lambda data, filters: winograd(data, filters, geometry, m),
            x,
            constant(transform_weight(weight, geometry, lanes, m)),
            key=geometry,
            primfunc_name_hint=f"{name}_winograd{m}",
            primfunc_attrs=FUSES_EPILOGUE,
        )
    if geometry.groups > 1 and not geometry.depthwise:
        x = builder.emit_te(topi.reshape, x, by_groups(shape, geometry))
    return builder.call_te(
        lambda data, filters: conv(data, filters, geometry, lanes, planes=planes),
        x,
        constant(pack_weight(weight, geometry, lanes)),
        key=(geometry, planes),
        primfunc_name_hint=name,
        primfunc_attrs=FUSES_EPILOGUE,
    )


def lanes_of(geometry: ConvGeometry, hardware: HardwareModel) -> int:
    """Float32 elements of the vectors that a convolution's channels lie in, or those of a group
    that is padded."""
    whole = hardware.lanes(4)
    padded = geometry.groups == 1 or geometry.ragged(whole)
    return lanes_along(geometry.per_group, hardware) if padded else whole


def by_groups(shape: tuple[int, ...], geometry: ConvGeometry) -> tuple[int, ...]:
    """[n, .., C]  →  [n, .., groups, C / groups]"""
    return (*shape[:-1], geometry.groups, shape[-1] // geometry.groups)


def by_taps(
    builder: Any,
    x: Any,
    weight: np.ndarray,
    product: ConvGeometry,
    summed: Callable[[Any], Any],
    key: Any,
    name: str,
    lanes: int,
) -> Any:
    """The product with the columns of all taps, and what sums its results up."""
    columns = builder.call_te(
        lambda data, filters: conv(data, filters, product, lanes),
        x,
        constant(pack_weight(weight, product, lanes)),
        key=product,
        primfunc_name_hint=f"{name}_columns",
        primfunc_attrs=FUSES_EPILOGUE,
    )
    return builder.call_te(
        summed,
        builder.emit(columns),
        key=key,
        primfunc_name_hint=f"{name}_taps",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def geometry_of(attrs: Any, kernel: Sequence[int], inputs: int, outputs: int) -> ConvGeometry:
    """A Relax convolution's attributes, with the extents of its weight."""
    rank, padding = len(kernel), ints(attrs.padding)
    return ConvGeometry(
        kernel=tuple(kernel),
        strides=ints(attrs.strides),
        pad_before=padding[:rank],
        pad_after=padding[rank:],
        dilation=ints(attrs.dilation),
        groups=int(attrs.groups),
        in_channels=inputs,
        out_channels=outputs,
    )


def read_conv(
    call: Any, data: str, kernel: str
) -> tuple[ConvGeometry, tuple[int, ...], np.ndarray] | None:
    """Geometry, shape of the data and weight of a convolution in these channels-last layouts by a
    float32 constant; None of another."""
    attrs, weight, shape = call.attrs, constant_array(call.args[1]), static_shape(call.args[0])
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    if layouts != (data, kernel) or str(attrs.out_layout) not in ("", data):
        return None
    if shape is None or weight is None or weight.dtype != np.float32:
        return None
    geometry = geometry_of(attrs, weight.shape[1:-1], shape[-1], weight.shape[0])
    return geometry, tuple(shape), weight


def pays_by_winograd(
    geometry: ConvGeometry,
    shape: tuple[int, ...],
    plain: ConvGeometry,
    images: tuple[int, ...],
    copies: Callable[[], list[PrimFunc]],
    options: Any,
    planes: bool = False,
) -> bool:
    """Whether the `plain` convolution of `images` by Winograd's algorithm, with the copies that
    they need, takes less time than the one that it stands for, directly, perhaps of `planes`, and
    would at the machine's peaks; `options` are those of a pass: its hardware, predicted times, and
    output tiles."""
    lanes, peak = lanes_of(geometry, options.hardware), peak_gflops(options.hardware)
    predict_us = options.predict_us
    most_us = WORTH * _flops(geometry, shape, lanes, DIRECT) / (peak * 1e3)

    def least_us(m: int) -> float:
        weight_bytes = 4 * prod(packed_shape(plain, lanes, m))
        return roof(_flops(plain, images, lanes, m), weight_bytes, options.hardware).latency_us

    possible = output_tiles(plain, images[0], plain.out_size(images[1:-1]))
    tiles = tuple(m for m in possible if m in options.winograd and least_us(m) < most_us)
    m = choose_algorithm(plain, images, lanes, tiles, predict_us, peak) if tiles else DIRECT
    if m not in tiles:
        return False
    folded = [*copies(), *programs_of(plain, images, lanes, m)]
    direct = programs_of(geometry, shape, lanes, DIRECT)
    if planes:
        data = te.placeholder((shape[0], shape[-1], *shape[1:-1]), "float32", name="data")
        direct = [direct_program(data, geometry, lanes, planes=True)]
    return sum(map(predict_us, folded)) < WORTH * sum(map(predict_us, direct))


@lru_cache(maxsize=1024)
def choose_algorithm(
    geometry: ConvGeometry,
    shape: tuple[int, ...],
    lanes: int,
    tiles: tuple[int, ...],
    predict_us: Callable[[PrimFunc], float] | None,
    gflops: float = inf,
) -> int:
    """DIRECT, TAPS, DOTS, or one of the output `tiles`, whichever is predicted to be fastest.

    Those with the fewest multiplications are predicted first, and what would be slower even at the
    machine's peak of `gflops` is not.
    """
    if predict_us is None or geometry.depthwise:
        return DIRECT
    possible = output_tiles(geometry, shape[0], geometry.out_size(shape[1:-1]))
    choices = [DIRECT, *(m for m in possible if m in tiles)]
    if taps.applies(geometry, lanes):
        choices.append(TAPS)
    if dots.applies(geometry, lanes):
        choices.append(DOTS)
    if len(choices) == 1:
        return DIRECT
    least_us = {m: _flops(geometry, shape, lanes, m) / (gflops * 1e3) for m in choices}
    best, best_us = DIRECT, inf
    for m in sorted(choices, key=least_us.__getitem__):
        if least_us[m] < best_us:
            predicted = sum(map(predict_us, programs_of(geometry, shape, lanes, m)))
            best, best_us = (m, predicted) if predicted < best_us else (best, best_us)
    return best


def _flops(geometry: ConvGeometry, shape: tuple[int, ...], lanes: int, m: int) -> int:
    """Operations of an algorithm's multiply-adds between channels, and of Winograd's transforms."""
    if m == TAPS:
        columns = taps.product_geometry(geometry, lanes).out_channels
        return 2 * prod(shape) * columns
    out, macs = geometry.out_size(shape[1:-1]), geometry.in_channels // geometry.groups
    macs *= geometry.out_channels
    if m <= 0:
        return 2 * shape[0] * prod(out) * prod(geometry.kernel) * macs
    sides = zip(out, tile(geometry, m)[-len(out) :], strict=True)
    tiles = shape[0] * prod(-(-extent // side) for extent, side in sides)
    return tiles * (2 * prod(points(geometry, m)) * macs + transform_flops(geometry, m, lanes))


def programs_of(geometry: ConvGeometry, shape: tuple[int, ...], lanes: int, m: int) -> list[Any]:
    """The convolution by one algorithm: its kernels, one after another."""
    data = te.placeholder(shape, "float32", name="data")
    if m == DIRECT:
        if geometry.groups > 1:
            data = te.placeholder(by_groups(shape, geometry), "float32", name="data")
        return [direct_program(data, geometry, lanes)]
    if m == TAPS:
        product = taps.product_geometry(geometry, lanes)
        t = te.placeholder((*shape[:-1], product.out_channels), "float32", name="t")
        return [
            direct_program(data, product, lanes),
            te.create_prim_func([t, taps.shifted_sum(t, geometry)]),
        ]
    if m == DOTS:
        packed = te.placeholder(dots.packed_shape(geometry, lanes), "float32", name="filters")
        partial = dots.partial_sums(data, packed, geometry, lanes)
        p = te.placeholder(partial.shape, "float32", name="p")
        return [
            te.create_prim_func([data, packed, partial]),
            te.create_prim_func([p, dots.total(p)]),
        ]
    filters = te.placeholder(packed_shape(geometry, lanes, m), "float32", name="filters")
    return [te.create_prim_func([data, filters, winograd(data, filters, geometry, m)])]


def direct_program(
    data: Any,
    geometry: ConvGeometry,
    lanes: int,
    planes: bool = False,
    convolve: Callable[..., Any] = conv,
) -> PrimFunc:
    """The direct convolution of `data`, or of its `planes`, as a kernel."""
    filters = te.placeholder(conv_shape(geometry, lanes), data.dtype, name="filters")
    result = convolve(data, filters, geometry, lanes, planes=planes)
    return te.create_prim_func([data, filters, result])
