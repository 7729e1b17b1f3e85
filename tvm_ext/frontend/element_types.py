"""Operators on elements of types that TVM's importer does not read them of.

rewrite:
    Pow(x, e) of integers    =>  x^e0 (x²)^e1 (x⁴)^e2 ..    over the bits of e, or those of a known
                                 one that are set
    ReduceMax(x) of booleans =>  Cast(ReduceMax(Cast(x)))   of bytes; so ReduceMin
    TopK(x) of integers      =>  Cast(TopK(Cast(x)))        of int64
    Elu(x), Selu(x)          =>  Where(x > 0, x, alpha (Exp(x) - 1))   of all but float32
    Mod(x, y) of floats      =>  r + y where r = fmod(x, y) is of another sign than y, else r

Integers that grow too large for their type are those of no definition, as in ONNX Runtime; halves
are worked with in float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, node_of

KIND = ir.DataType
POWERS = (KIND.INT32, KIND.INT64)
UNITS = {"Elu": (1.0, 1.0), "Selu": (1.67326319217681884765625, 1.05070102214813232421875)}
"""Alpha and gamma."""
RANKED = {KIND.INT16, KIND.UINT16, KIND.UINT32}
"""Types that TVM does not sort, and int64 holds."""
FLOATS = {KIND.FLOAT16, KIND.BFLOAT16, KIND.FLOAT, KIND.DOUBLE}


def _power(op: Any, x: Any, exponent: Any) -> Any:
    return op.Pow(x, exponent, _outputs=["y"])


def _of_integers(_: Any, x: ir.Value, exponent: ir.Value, **__: Any) -> bool:
    return x.dtype in POWERS and exponent.dtype == x.dtype


def _by_squares(op: Any, x: ir.Value, exponent: ir.Value, y: ir.Value) -> Any:
    """Exponents past the bits of the type count by whether they are odd: only -1, 0 and 1 are not
    too large then. What is 1 / x^n is 0, but for 1 and -1."""
    assert x.dtype is not None
    kind, most = x.dtype.numpy(), x.dtype.bitwidth - 2

    def number(name: str, value: int) -> Any:
        return constant(op, f"{y.name}_{name}", np.asarray(value, kind))

    one, two, zero = number("one", 1), number("two", 2), number("zero", 0)
    known = None if exponent.const_value is None else exponent.const_value.numpy()
    if known is not None and not known.ndim and 0 <= known <= most:
        return _known_power(op, x, int(known), op.Add(op.Mul(x, zero), one))
    size = op.Abs(exponent)
    size = op.Min(size, op.Add(op.Mod(size, two), number("most", most)))
    result, power = one, x
    for bit in range(most.bit_length()):
        half = op.Div(size, number(f"power_{bit}", 1 << bit))
        odd = op.Equal(op.Mod(half, two), one)
        result = op.Mul(result, op.Where(odd, power, one))
        power = op.Mul(power, power)
    fraction = op.And(op.Less(exponent, zero), op.Not(op.Equal(op.Abs(x), one)))
    return op.Where(fraction, zero, result)


def _known_power(op: Any, x: Any, exponent: int, one: Any) -> Any:
    result, power = None, x
    while exponent:
        if exponent & 1:
            result = power if result is None else op.Mul(result, power)
        exponent >>= 1
        power = op.Mul(power, power) if exponent else power
    return one if result is None else op.Identity(result)


def _reduction(name: str, op: Any, x: Any) -> Any:
    return getattr(op, name)(x, _allow_other_inputs=True, _outputs=["y"])


def _of_booleans(_: Any, x: ir.Value, **__: Any) -> bool:
    return x.dtype == KIND.BOOL


def _of_bytes(name: str, op: Any, x: ir.Value, y: ir.Value) -> Any:
    _, *axes = node_of(y).inputs
    reduced = getattr(op, name)(op.Cast(x, to=KIND.UINT8), *axes, **_attributes(y))
    return op.Cast(reduced, to=KIND.BOOL)


def _top_k(op: Any, x: Any, count: Any) -> Any:
    return op.TopK(x, count, _outputs=["y", "places"])


def _not_sorted_by_tvm(_: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    return x.dtype in RANKED or not node_of(y).attributes.get_int("sorted", 1)


def _sorted_as_int64(op: Any, x: ir.Value, count: ir.Value, y: ir.Value, **_: Any) -> Any:
    given = {**_attributes(y), "sorted": 1}
    if x.dtype not in RANKED:
        return op.TopK(x, count, **given, _outputs=2)
    best, places = op.TopK(op.Cast(x, to=KIND.INT64), count, **given, _outputs=2)
    return op.Cast(best, to=x.dtype), places


def _unit(name: str, op: Any, x: Any) -> Any:
    return getattr(op, name)(x, _outputs=["y"])


def _of_other_floats(_: Any, x: ir.Value, **__: Any) -> bool:
    return x.dtype in FLOATS - {KIND.FLOAT}


def _either_side(alpha: float, gamma: float, op: Any, x: ir.Value, y: ir.Value) -> Any:
    kind = KIND.DOUBLE if x.dtype == KIND.DOUBLE else KIND.FLOAT
    node = node_of(y)

    def number(name: str, value: float) -> Any:
        value = node.attributes.get_float(name, value)
        return constant(op, f"{y.name}_{name}", np.asarray(value, kind.numpy()))

    wide, zero, one = op.Cast(x, to=kind), number("zero", 0), number("one", 1)
    below = op.Mul(number("alpha", alpha), op.Sub(op.Exp(wide), one))
    result = op.Where(op.Greater(wide, zero), wide, below)
    return op.Cast(op.Mul(number("gamma", gamma), result), to=x.dtype)


def _rest(op: Any, x: Any, divisor: Any) -> Any:
    return op.Mod(x, divisor, _outputs=["y"])


def _of_floats(_: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    return x.dtype in FLOATS and not node_of(y).attributes.get_int("fmod", 0)


def _of_its_sign(op: Any, x: ir.Value, divisor: ir.Value, y: ir.Value) -> Any:
    assert x.dtype is not None
    zero = constant(op, f"{y.name}_zero", np.asarray(0, x.dtype.numpy()))
    rest = op.Mod(x, divisor, fmod=1)
    other = op.Or(
        op.And(op.Less(rest, zero), op.Greater(divisor, zero)),
        op.And(op.Greater(rest, zero), op.Less(divisor, zero)),
    )
    return op.Where(other, op.Add(rest, divisor), rest)


def _attributes(y: ir.Value) -> dict[str, Any]:
    return {name: given.value for name, given in node_of(y).attributes.items()}


rules = (
    RewriteRule(_power, _by_squares, _of_integers, name="PowerOfIntegers"),
    RewriteRule(_top_k, _sorted_as_int64, _not_sorted_by_tvm, name="TopKOfIntegers"),
    RewriteRule(_rest, _of_its_sign, _of_floats, name="ModOfFloats"),
    *(
        RewriteRule(partial(_reduction, n), partial(_of_bytes, n), _of_booleans, name=n)
        for n in ("ReduceMax", "ReduceMin")
    ),
    *(
        RewriteRule(partial(_unit, n), partial(_either_side, *own), _of_other_floats, name=n)
        for n, own in UNITS.items()
    ),
)
