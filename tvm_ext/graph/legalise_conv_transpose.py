"""Transposed convolution to tensor programs, weights packed by phase on the way.

conv2d_transpose(x, W, NHWC)
    →  call_tir(conv_transpose, x, W packed [O/B, phase.., tap.., C, B])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_ext.compute.conv_transpose import TransposedGeometry, conv_transpose, pack_transposed
from tvm_ext.graph.legalise_conv import FUSES_EPILOGUE
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.tvm_api import constant, constant_array

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
    return builder.call_te(
        lambda data, filters: conv_transpose(data, filters, geometry),
        call.args[0],
        constant(pack_transposed(weight, geometry, options.lanes)),
        primfunc_name_hint=name,
        primfunc_attrs=FUSES_EPILOGUE,
    )
