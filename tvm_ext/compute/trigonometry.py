"""Sine and cosine as polynomials, so that they run in vectors; see `compute.maths`.

    x  →  r + n * pi/2 with |r| <= pi/4  →  sin r or cos r, by the last two bits of n

The quotient is taken in float64, so that all of r's digits are right: positions in long texts and
waves of many periods are large arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_ext.compute.maths import bind, const, integer
from tvm_ext.tvm_api import tirx

Expr = Any

LARGEST = 2.0**28
"""From here on floats lie further apart than a period: the argument is taken for 0."""
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
"""On [-pi/4, pi/4] (Cephes sinf, cosf)."""
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11
"""The first 33 bits of pi/2, so that their product with n < 2**20 is exact, and the others."""
_WHOLE_64, _WHOLE_32 = 6755399441055744.0, 12582912.0
"""1.5 times 2**52 and 2**23: of what is added to them the fraction is rounded off."""


def sin(x: Expr) -> Expr:
    """sin(x)."""
    return _turned(x, 0)


def cos(x: Expr) -> Expr:
    """cos(x), a quarter of a period ahead."""
    return _turned(x, 1)


def _turned(x: Expr, quarters: int) -> Expr:
    """sin(x + quarters * pi/2)."""

    def inside(v: Expr) -> Expr:
        size = tirx.abs(v)
        beyond = tirx.Select(size < const(float("inf")), const(0.0), const(float("nan")))
        kept = tirx.Select(size < const(LARGEST), v, beyond)
        return bind(kept.astype("float64"), reduced, "float64")

    def reduced(wide: Expr) -> Expr:
        return _rounded(wide * _wide(_TWO_OVER_PI), lambda n: pieces(wide, n))

    def pieces(wide: Expr, n: Expr) -> Expr:
        rest = wide - n * _wide(_HALF_PI_HIGH) - n * _wide(_HALF_PI_LOW)
        return bind(rest.astype("float32"), lambda r: _rounded(n * _wide(0.25), placed(r, n)))

    def placed(r: Expr, n: Expr) -> Callable[[Expr], Expr]:
        def by(fours: Expr) -> Expr:
            place = (n - fours * _wide(4.0)).astype("float32") + const(_WHOLE_32 + quarters)
            return bind(place, lambda p: joined(r, p))

        return by

    def joined(r: Expr, place: Expr) -> Expr:
        bits = tirx.reinterpret("int32", place)
        odd = (bits & integer(1)) == integer(1)
        value = tirx.Select(odd, bind(r * r, _cosine), bind(r * r, lambda s: _sine(r, s)))
        sign = (bits & integer(2)) << integer(30)
        return tirx.reinterpret("float32", tirx.reinterpret("int32", value) ^ sign)

    return bind(x, inside)


def _sine(r: Expr, s: Expr) -> Expr:
    high, middle, low = map(const, _SINE)
    return r + r * s * ((high * s + middle) * s + low)


def _cosine(s: Expr) -> Expr:
    high, middle, low = map(const, _COSINE)
    return const(1.0) - const(0.5) * s + s * s * ((high * s + middle) * s + low)


def _wide(value: float) -> Expr:
    return tirx.const(value, "float64")


def _rounded(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a float64 value rounded to a whole number. TVM would take a sum and a difference of
    one statement for nothing."""

    def taken_off(shifted: Expr) -> Expr:
        return bind(shifted - _wide(_WHOLE_64), body, "float64")

    return bind(value + _wide(_WHOLE_64), taken_off, "float64")
