"""`Legalise`: Relax operators to tensor programs, with weights packed in numpy on the way.

    conv2d(x, W, NHWC)        →  call_tir(conv, x, W packed [O/B, kh, kw, C, B])
    matmul(x, W)              →  call_tir(dense, x, W packed [N/B, K, B])
    softmax, *_norm, exp, …   →  our own stages and vector maths

Everything else takes TVM's own legalisation. A rule that does not apply returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.compute import maths
from tvm_ext.compute.conv import ConvGeometry, conv, pack_weight
from tvm_ext.compute.dense import dense, matmul, pack_matrix
from tvm_ext.compute.norm import reduction, softmax
from tvm_ext.graph.legalise_norm import FUSES_PROLOGUE, NORMS, ints, static_shape
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import IRModule, constant_array, default_legalise, relax, te, tirx, topi, tvm

Rule = Callable[[Any, Any, Any], Any]
"""Called with the block builder, the call and the `Legalise` pass."""

FUSES_EPILOGUE = {"op_pattern": 4}
_LAYOUTS = {
    "relax.nn.conv1d": ("NWC", "OWI"),
    "relax.nn.conv2d": ("NHWC", "OHWI"),
    "relax.nn.conv3d": ("NDHWC", "ODHWI"),
}


@tvm.transform.module_pass(opt_level=0, name="Legalise")
@dataclass(frozen=True)
class Legalise:
    """Lowers every operator of a module. Fields: the machine (its vector width decides packing) and
    whether special functions become polynomials with the bounds of `compute.maths`."""

    hardware: HardwareModel
    fast_math: bool = True

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with call_tir in place of operators."""
        rules = dict(RULES)
        if self.fast_math:
            rules |= MATHS
        table = {name: self._with_default(name, rule) for name, rule in rules.items()}
        return relax.transform.LegalizeOps(table)(mod)

    def _with_default(self, name: str, rule: Rule) -> Callable[[Any, Any], Any]:
        def legalise(builder: Any, call: Any) -> Any:
            result = rule(builder, call, self)
            return default_legalise(name)(builder, call) if result is None else result

        return legalise

    @property
    def lanes(self) -> int:
        """Float32 elements in a vector."""
        return self.hardware.lanes(4)


def legalise_conv(builder: Any, call: Any, options: Legalise) -> Any:
    """Channels-last convolution by a constant; None for other layouts and weights."""
    attrs = call.attrs
    data_layout, kernel_layout = _LAYOUTS[str(call.op.name)]
    weight = constant_array(call.args[1])
    shape = static_shape(call.args[0])
    if weight is None or shape is None or weight.dtype != np.float32:
        return None
    if str(attrs.data_layout) != data_layout or str(attrs.kernel_layout) != kernel_layout:
        return None
    if str(attrs.out_layout) not in ("", data_layout):
        return None
    rank = len(shape) - 2
    padding = ints(attrs.padding)
    geometry = ConvGeometry(
        kernel=weight.shape[1:-1],
        strides=ints(attrs.strides),
        pad_before=padding[:rank],
        pad_after=padding[rank:],
        dilation=ints(attrs.dilation),
        groups=int(attrs.groups),
        in_channels=shape[-1],
        out_channels=weight.shape[0],
    )
    x = call.args[0]
    if geometry.groups > 1 and not geometry.depthwise:
        groups = geometry.groups
        split = (*shape[:-1], groups, shape[-1] // groups)
        x = builder.emit_te(topi.reshape, x, split)
    packed = relax.const(pack_weight(weight, geometry, options.lanes))
    name = f"{call.op.name.rsplit('.', 1)[-1]}{'_depthwise' if geometry.depthwise else ''}"
    result = builder.call_te(
        lambda data, filters: conv(data, filters, geometry, options.lanes),
        x,
        packed,
        primfunc_name_hint=name,
        primfunc_attrs=FUSES_EPILOGUE,
    )
    if geometry.ragged(options.lanes):
        out = (shape[0], *geometry.out_size(shape[1:-1]), geometry.out_channels)
        return builder.call_te(topi.reshape, builder.emit(result), out)
    return result


def legalise_matmul(builder: Any, call: Any, options: Legalise) -> Any:
    """Product with a constant matrix on the right, or of two tensors with equal batch axes."""
    weight = constant_array(call.args[1])
    shape = static_shape(call.args[0])
    if shape is None or len(shape) < 2:
        return None
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
        return _legalise_product(builder, call, options)
    return builder.call_te(
        lambda data, matrix: dense(data, matrix, weight.shape[1]),
        call.args[0],
        relax.const(pack_matrix(weight, options.lanes)),
        primfunc_name_hint="dense",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def _legalise_product(builder: Any, call: Any, options: Legalise) -> Any:
    left, right = static_shape(call.args[0]), static_shape(call.args[1])
    if left is None or right is None or len(right) < 2 or right[-1] == 1:
        return None
    return builder.call_te(
        lambda a, b: matmul(a, b, options.lanes),
        *call.args,
        primfunc_name_hint="matmul",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def legalise_softmax(builder: Any, call: Any, options: Legalise) -> Any:
    """Softmax and log-softmax with vector exponentials."""
    shape = static_shape(call.args[0])
    if shape is None or not shape:
        return None
    axis = int(call.attrs.axis) % len(shape)
    log = str(call.op.name).endswith("log_softmax")
    return builder.call_te(
        lambda data: softmax(data, axis, options.lanes, log),
        call.args[0],
        primfunc_name_hint="log_softmax" if log else "softmax",
        primfunc_attrs=FUSES_PROLOGUE,
    )


def legalise_reduction(builder: Any, call: Any, options: Legalise) -> Any:
    """Sum, mean, max and min."""
    shape = static_shape(call.args[0])
    if not shape:
        return None
    given = call.attrs.axis
    axes = sorted(axis % len(shape) for axis in (ints(given) if given else range(len(shape))))
    how = str(call.op.name).rsplit(".", 1)[-1]
    keepdims = bool(call.attrs.keepdims)
    return builder.call_te(
        lambda x: reduction(x, axes, how, keepdims, options.lanes),
        call.args[0],
        primfunc_name_hint=how,
    )


def legalise_power(builder: Any, call: Any, options: Legalise) -> Any:
    """Power by one constant; None for any other exponent."""
    exponent, shape = constant_array(call.args[1]), static_shape(call.args[0])
    if shape is None or exponent is None or exponent.size != 1 or exponent.ndim > len(shape):
        return None
    value = float(exponent.reshape(-1)[0])
    return _pointwise(lambda x: maths.power(x, value), "power")(builder, call, options)


def _pointwise(function: Callable[[Any], Any], name: str) -> Rule:
    """A rule for an elementwise operator."""

    def rule(builder: Any, call: Any, _: Legalise) -> Any:
        if static_shape(call.args[0]) is None:
            return None

        def body(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *at: function(x[at]), name=name)

        return builder.call_te(body, call.args[0], primfunc_name_hint=name)

    return rule


def _gelu(x: Any) -> Any:
    half, root = tirx.const(0.5, "float32"), tirx.const(0.5**0.5, "float32")
    return half * x * (tirx.const(1.0, "float32") + maths.erf(x * root))


def _gelu_tanh(x: Any) -> Any:
    def const(value: float) -> Any:
        return tirx.const(value, "float32")

    inner = const(0.7978845608028654) * x * (const(1.0) + const(0.044715) * x * x)
    return const(0.5) * x * (const(1.0) + maths.tanh(inner))


RULES: dict[str, Rule] = {
    **dict.fromkeys(_LAYOUTS, legalise_conv),
    "relax.matmul": legalise_matmul,
    **NORMS,
    **dict.fromkeys(("relax.sum", "relax.mean", "relax.max", "relax.min"), legalise_reduction),
}
MATHS: dict[str, Rule] = {
    "relax.nn.softmax": legalise_softmax,
    "relax.nn.log_softmax": legalise_softmax,
    "relax.power": legalise_power,
    "relax.log": _pointwise(maths.log, "log"),
    "relax.exp": _pointwise(maths.exp, "exp"),
    "relax.tanh": _pointwise(maths.tanh, "tanh"),
    "relax.erf": _pointwise(maths.erf, "erf"),
    "relax.sigmoid": _pointwise(maths.sigmoid, "sigmoid"),
    "relax.nn.gelu": _pointwise(_gelu, "gelu"),
    "relax.nn.gelu_tanh": _pointwise(_gelu_tanh, "gelu_tanh"),
    "relax.nn.silu": _pointwise(lambda x: x * maths.sigmoid(x), "silu"),
}
