"""Transposed convolution to tensor programs, the algorithm by the picker's model, weights packed
by phase on the way.

conv2d_transpose(x, W, NHWC)
    →  call_tir(conv_transpose, x, W packed [O/B, phase.., tap.., C, B])
    or call_tir(taps, call_tir(conv, x, W as [(tap.., phase.., O), 1, 1, C], packed))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_ext.compute import taps
from tvm_ext.compute.blocking import choose_block
from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose, pack_transposed
from tvm_ext.graph.legalise_conv import FUSES_EPILOGUE, by_taps, direct_program
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.tvm_api import PrimFunc, constant, constant_array, te

TRANSPOSED = {
    "relax.nn.conv1d_transpose": ("NWC", "IOW"),
    "relax.nn.conv2d_transpose": ("NHWC", "IOHW"),
    "relax.nn.conv3d_transpose": ("NDHWC", "IODHW"),
}
"""Operators with the layouts of data and weight this rule takes."""


def is_ours(call: Any) -> bool:
    """Whether a transposed convolution, in whatever layout, can be lowered by `legalise`: by a
    constant, of known shape, not dilated, of one group or one for each channel."""
    weight, shape = constant_array(call.args[1]), static_shape(call.args[0])
    if weight is None or shape is None or weight.dtype != np.float32:
        return False
    groups = int(call.attrs.groups)
    dense, depthwise = groups == 1, groups == weight.shape[0] and weight.shape[1] == 1
    return (dense or depthwise) and set(ints(call.attrs.dilation)) == {1}


def legalise_conv_transpose(builder: Any, call: Any, options: Any) -> Any:
    """Transposed convolution of channels-last data by a constant; None for any other."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
    if layouts != TRANSPOSED[str(call.op.name)] or not is_ours(call):
        return None
    if str(attrs.out_layout) not in ("", layouts[0]):
        return None
    weight, out = constant_array(call.args[1]), static_shape(call)
    assert out is not None, "a static input has a static output"
    rank = weight.ndim - 2
    depthwise = int(attrs.groups) > 1
    geometry = TransposedGeometry(
        kernel=weight.shape[2:],
        strides=ints(attrs.strides),
        pad=ints(attrs.padding)[:rank],
        out_size=out[1:-1],
        in_channels=weight.shape[0],
        out_channels=out[-1],
        depthwise=depthwise,
    )
    name = f"{call.op.name.rsplit('.', 1)[-1]}{'_depthwise' if depthwise else ''}"
    shape = static_shape(call.args[0])
    if shape is not None and takes_taps(geometry, tuple(shape), options.lanes, options.predict_us):
        product = taps.transposed_product(geometry, options.lanes)
        return by_taps(
            builder,
            call.args[0],
            taps.transposed_columns(weight, geometry, options.lanes),
            product,
            lambda data: taps.transposed_sum(data, geometry),
            key=geometry,
            name=name,
            lanes=options.lanes,
        )
    return builder.call_te(
        lambda data, filters: conv_transpose(data, filters, geometry),
        call.args[0],
        constant(pack_transposed(weight, geometry, options.lanes)),
        primfunc_name_hint=name,
        primfunc_attrs=FUSES_EPILOGUE,
    )


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
