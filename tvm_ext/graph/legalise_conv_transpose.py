"""Transposed convolution to tensor programs, the algorithm by the picker's model, weights packed
by phase on the way.

conv2d_transpose(x, W, NHWC)
    →  call_tir(conv_transpose, x, W packed [O/B, phase.., tap.., C, B])
    or call_tir(taps, call_tir(conv, x, W as [(tap.., phase.., O), 1, 1, C], packed))
    or, by a stride of 1, what becomes of conv2d(x, W turned round)

A dilated kernel is one with zeros in it, if the stride is above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_ext.compute import taps
from tvm_ext.compute.blocking import choose_block
from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose, pack_transposed
from tvm_ext.graph.legalise_conv import by_taps, direct_program, lower_conv
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.tvm_api import PrimFunc, constant, constant_array, te, topi

TRANSPOSED = {
    "relax.nn.conv1d_transpose": ("NWC", "IOW"),
    "relax.nn.conv2d_transpose": ("NHWC", "IOHW"),
    "relax.nn.conv3d_transpose": ("NDHWC", "IODHW"),
}
"""Operators with the layouts of data and weight this rule takes."""


def is_ours(call: Any) -> bool:
    """Whether a transposed convolution, in whatever layout, can be lowered by `legalise`: by a
    constant, of known shape."""
    weight, shape = constant_array(call.args[1]), static_shape(call.args[0])
    return weight is not None and shape is not None and weight.dtype == np.float32


def geometry_of_call(call: Any) -> TransposedGeometry | None:
    """A transposed convolution of channels-last data by a constant, the kernel as long as it
    reaches; None for any other."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
    if layouts != TRANSPOSED[str(call.op.name)] or not is_ours(call):
        return None
    out, weight = static_shape(call), constant_array(call.args[1])
    if out is None or str(attrs.out_layout) not in ("", layouts[0]):
        return None
    reach = zip(weight.shape[2:], ints(attrs.dilation), strict=True)
    return TransposedGeometry(
        kernel=tuple((k - 1) * d + 1 for k, d in reach),
        strides=ints(attrs.strides),
        pad=ints(attrs.padding)[: weight.ndim - 2],
        out_size=out[1:-1],
        in_channels=weight.shape[0],
        out_channels=out[-1],
        groups=int(attrs.groups),
    )


def legalise_conv_transpose(builder: Any, call: Any, options: Any) -> Any:
    """Transposed convolution of channels-last data by a constant; None for any other."""
    geometry, shape = geometry_of_call(call), static_shape(call.args[0])
    if geometry is None or shape is None:
        return None
    compact, dilation = constant_array(call.args[1]), ints(call.attrs.dilation)
    weight = with_holes(compact, dilation)
    name = f"{call.op.name.rsplit('.', 1)[-1]}{'_depthwise' if geometry.depthwise else ''}"
    x = call.args[0]
    plain = as_convolution(geometry, dilation, shape[1:-1])
    if plain is not None:
        return lower_conv(builder, x, shape, turned(compact, plain.groups), plain, options, name)
    if takes_taps(geometry, shape, options.lanes, options.predict_us):
        product = taps.transposed_product(geometry, options.lanes)
        return by_taps(
            builder,
            x,
            taps.transposed_columns(weight, geometry, options.lanes),
            product,
            lambda data: taps.transposed_sum(data, geometry),
            key=geometry,
            name=name,
            lanes=options.lanes,
        )
    if geometry.grouped:
        split = (*shape[:-1], geometry.groups, shape[-1] // geometry.groups)
        x = builder.emit_te(topi.reshape, x, split)
    return builder.call_te(
        lambda data, filters: conv_transpose(data, filters, geometry),
        x,
        constant(pack_transposed(weight, geometry, options.lanes)),
        primfunc_name_hint=name,
        primfunc_attrs=FUSES_EPILOGUE,
    )


def with_holes(weight: np.ndarray, dilation: tuple[int, ...]) -> np.ndarray:
    """[C, O/groups, k..] with zeros between the taps of a dilated kernel."""
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    spread = np.zeros((*weight.shape[:2], *reach), weight.dtype)
    spread[tuple(slice(None, None, step) for step in (1, 1, *dilation))] = weight
    return spread


def as_convolution(
    geometry: TransposedGeometry, dilation: tuple[int, ...], spatial: tuple[int, ...]
) -> ConvGeometry | None:
    """The convolution that one by a stride of 1 is, over data of extents `spatial`: its kernel
    turned round and without holes, its padding what is left of the kernel's reach. None if more is
    cut off."""
    if set(geometry.strides) != {1}:
        return None
    sizes = zip(geometry.kernel, geometry.pad, geometry.out_size, spatial, strict=True)
    pads = [(k - 1 - pad, out + pad - size) for k, pad, out, size in sizes]
    if min(map(min, pads)) < 0:
        return None
    before, after = zip(*pads, strict=True)
    reach = zip(geometry.kernel, dilation, strict=True)
    return ConvGeometry(
        kernel=tuple((k - 1) // d + 1 for k, d in reach),
        strides=geometry.strides,
        pad_before=before,
        pad_after=after,
        dilation=dilation,
        groups=geometry.groups,
        in_channels=geometry.in_channels,
        out_channels=geometry.out_channels,
    )


def turned(weight: np.ndarray, groups: int) -> np.ndarray:
    """[C, O/groups, k..] → [O, k.., C/groups], every kernel from its last tap to its first."""
    weight = np.flip(weight, tuple(range(2, weight.ndim)))
    apart = weight.reshape(groups, -1, *weight.shape[1:])
    return np.moveaxis(apart, 1, -1).reshape(-1, *weight.shape[2:], len(weight) // groups)


@lru_cache(maxsize=1024)
def takes_taps(
    geometry: TransposedGeometry,
    shape: tuple[int, ...],
    lanes: int,
    predict_us: Callable[[PrimFunc], float] | None,
) -> bool:
    """Whether a product with all taps and the sum of its results is predicted to be faster."""
    if predict_us is None or not taps.applies_transposed(geometry, lanes):
        return False
    direct, by_taps = programs_of(geometry, shape, lanes)
    return sum(map(predict_us, by_taps)) < predict_us(direct)


def programs_of(
    geometry: TransposedGeometry, shape: tuple[int, ...], lanes: int
) -> tuple[PrimFunc, list[PrimFunc]]:
    """The kernel of the direct algorithm, and those of the other."""
    data = te.placeholder(shape, "float32", name="data")
    block = choose_block(geometry.out_channels, lanes)
    phases = [size for axis, s in enumerate(geometry.strides) for size in (s, geometry.taps(axis))]
    order = (*phases[::2], *phases[1::2])
    packed = (-(-geometry.out_channels // block), *order, geometry.in_channels, block)
    filters = te.placeholder(packed, "float32", name="filters")
    direct = te.create_prim_func([data, filters, conv_transpose(data, filters, geometry)])
    product = taps.transposed_product(geometry, lanes)
    t = te.placeholder((*shape[:-1], product.out_channels), "float32", name="t")
    summed = te.create_prim_func([t, taps.transposed_sum(t, geometry)])
    return direct, [direct_program(data, product, lanes), summed]
