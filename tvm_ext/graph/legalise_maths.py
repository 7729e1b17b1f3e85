"""The elementwise functions lowered to `compute.maths` and `compute.power`.

gelu(x)  →  call_tir(gelu), one expression of vector operations
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext.compute import maths
from tvm_ext.compute.inverse import acos, acosh, asin, asinh, atan, atanh, cosh, sinh, tan
from tvm_ext.compute.power import pow, power
from tvm_ext.compute.trigonometry import cos, sin
from tvm_ext.graph.legalise_norm import ints, known_extents, static_shape
from tvm_ext.tvm_api import constant_array, te

Rule = Callable[[Any, Any, Any], Any]


def _pointwise(function: Callable[[Any], Any], name: str, *options: float) -> Rule:
    """A rule for an elementwise operator; `options` are the numbers its function depends on."""

    def rule(builder: Any, call: Any, _: Any) -> Any:
        if known_extents(call.args[0]) is None:
            return None

        def body(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *at: function(x[at]), name=name)

        return builder.call_te(body, call.args[0], key=options, primfunc_name_hint=name)

    return rule


def legalise_softplus(builder: Any, call: Any, options: Any) -> Any:
    """Softplus with the steepness and threshold of the call."""
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
    rule = _pointwise(lambda x: maths.softplus(x, beta, threshold), "softplus", beta, threshold)
    return rule(builder, call, options)


def legalise_power(builder: Any, call: Any, options: Any) -> Any:
    """Power of float32 tensors; one constant exponent has an expression of its own."""
    exponent, shape = constant_array(call.args[1]), known_extents(call.args[0])
    if shape is None or known_extents(call.args[1]) is None:
        return None
    if exponent is not None and exponent.size == 1 and exponent.ndim <= len(shape):
        value = float(exponent.reshape(-1)[0])
        return _pointwise(lambda x: power(x, value), "power", value)(builder, call, options)
    if static_shape(call) is None:
        return None

    def body(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute(
            ints(call.ty.shape), lambda *at: pow(x[_own(x, at)], y[_own(y, at)]), name="power"
        )

    return builder.call_te(body, *call.args, key="power", primfunc_name_hint="power")


def _own(tensor: te.Tensor, at: Sequence[Any]) -> tuple[Any, ...]:
    """The index of a broadcast operand: 0 along its axes of one element."""
    extents = [int(extent) for extent in tensor.shape]
    given = at[len(at) - len(extents) :]
    return tuple(i if extent > 1 else 0 for i, extent in zip(given, extents, strict=True))


POINTWISE: dict[str, Rule] = {
    "relax.power": legalise_power,
    "relax.rsqrt": _pointwise(maths.rsqrt, "rsqrt"),
    "relax.log": _pointwise(maths.log, "log"),
    "relax.exp": _pointwise(maths.exp, "exp"),
    "relax.tanh": _pointwise(maths.tanh, "tanh"),
    "relax.erf": _pointwise(maths.erf, "erf"),
    "relax.sin": _pointwise(sin, "sin"),
    "relax.cos": _pointwise(cos, "cos"),
    **{
        f"relax.{function.__name__}": _pointwise(function, function.__name__)
        for function in (tan, atan, asin, acos, sinh, cosh, asinh, acosh, atanh)
    },
    "relax.sigmoid": _pointwise(maths.sigmoid, "sigmoid"),
    "relax.nn.gelu": _pointwise(maths.gelu, "gelu"),
    "relax.nn.gelu_tanh": _pointwise(maths.gelu_tanh, "gelu_tanh"),
    "relax.nn.softplus": legalise_softplus,
    "relax.nn.selu": _pointwise(maths.selu, "selu"),
    "relax.nn.silu": _pointwise(lambda x: x * maths.sigmoid(x), "silu"),
}
