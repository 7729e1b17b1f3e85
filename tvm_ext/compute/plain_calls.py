"""TIR's own calls of special functions, made the vector expressions of this room.

    y[i] = exp(x[i] - m) * pow(x[i], 3)   →   y[i] = <polynomial of x[i] - m> * <x * x * x>

Operators of a graph are lowered to these expressions from the start. A function that came as TIR,
by hand or from TVM's own lowering, holds calls instead, each of them a call of libm per element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_ext.compute import maths
from tvm_ext.compute.inverse import acos, acosh, asin, asinh, atan, atanh, cosh, sinh, tan
from tvm_ext.compute.power import LARGEST_PRODUCT, power
from tvm_ext.compute.trigonometry import cos, sin
from tvm_ext.tvm_api import Call, PrimFunc, ir, structural_map, tirx

Expr = Any


def _power(x: Expr, exponent: Expr) -> Expr | None:
    """A power that is a product or a reciprocal root; None for any other.

    Others stay calls, because e**(y * log x) loses more digits the larger |y * log x| is, more than
    a kernel may be off its reference. LLVM itself makes a root of x**0.5, right to the sign of 0.
    x**0 and x**1 cost nothing, and stay what the function's graph was read from: a stage that
    computes something.
    """
    if not isinstance(exponent, tirx.FloatImm):
        return None
    value = float(exponent.value)
    product = value.is_integer() and abs(value) <= LARGEST_PRODUCT and value not in (0.0, 1.0)
    return power(x, value) if product or value == -0.5 else None


_EXPRESSIONS: dict[str, Callable[..., Expr | None]] = {
    "exp": maths.exp,
    "log": maths.log,
    "tanh": maths.tanh,
    "erf": maths.erf,
    "sin": sin,
    "cos": cos,
    "sigmoid": maths.sigmoid,
    "rsqrt": maths.rsqrt,
    "pow": _power,
    **{f.__name__: f for f in (tan, atan, asin, acos, sinh, cosh, asinh, acosh, atanh)},
}


def with_vector_maths(func: PrimFunc) -> PrimFunc:
    """The function with every float32 call of a special function as a vector expression, within the
    bounds that `compute.maths` and `compute.power` state.

    Calls in other types and of functions without such an expression stay. Blocks, loops, buffers
    and what each block reads and writes stay too, so a plan made for `func` fits the result.
    Returns `func` itself if it holds no such call.
    """
    body = structural_map(func.body, [(Call, _expression)], order="post")
    return func if body.same_as(func.body) else func.with_body(body)


def _expression(call: Call) -> Expr:
    """The expression of a call whose arguments are done; the call itself if there is none."""
    name = call.op.name.rpartition(".")[2] if isinstance(call.op, ir.Op) else ""
    if name not in _EXPRESSIONS or str(call.ty.dtype) != "float32":
        return call
    found = _EXPRESSIONS[name](*call.args)
    return call if found is None else found
