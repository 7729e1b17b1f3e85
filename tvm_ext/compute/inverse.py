"""Arc and hyperbolic functions as polynomials, so that they run in vectors; see `compute.maths`.

LLVM calls libm once per element for each of them (3 to 14 ns). Intervals and coefficients are those
of Cephes (atanf, asinf, sinhf, asinhf, acoshf, atanhf). Bounds, tested:

    tan      4 ULP below 1e6
    atan     3 ULP
    asin     3 ULP, acos 2 ULP; NaN beyond 1
    sinh     4 ULP, cosh 4 ULP
    asinh    4 ULP
    acosh    3 ULP; NaN below 1
    atanh    2 ULP; infinite at 1, NaN beyond
"""

from __future__ import annotations

from collections.abc import Callable
from math import log as natural_log
from math import pi
from typing import Any

from tvm_ext.compute.maths import bind, const, exp, horner, integer, log
from tvm_ext.compute.trigonometry import cos, sin
from tvm_ext.tvm_api import tirx

Expr = Any

_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ATAN_EIGHTH, _ATAN_THREE_EIGHTHS = 0.4142135623730950, 2.414213562373095
"""The tangents of pi/8 and 3 pi/8."""
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
_ASINH = (2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)
_ACOSH = (
    1.7596881071e-3,
    -7.5272886713e-3,
    2.6454905019e-2,
    -1.1784741703e-1,
    1.4142135263e0,
)
_ATANH = (
    1.81740078349e-1,
    8.24370301058e-2,
    1.46691431730e-1,
    1.99782164500e-1,
    3.33337300303e-1,
)
_LARGE = 1e10
"""From here on x² + 1 is x², which may not overflow."""
_LN2 = natural_log(2.0)


def _odd(x: Expr, positive: Callable[[Expr], Expr]) -> Expr:
    """A function that is odd, by its values where x is not negative; the sign of 0 stays."""

    def signed(v: Expr) -> Expr:
        sign = tirx.reinterpret("int32", v) & integer(-(2**31))
        value = bind(tirx.abs(v), positive)
        return tirx.reinterpret("float32", tirx.reinterpret("int32", value) | sign)

    return bind(x, signed)


def _series(a: Expr, coefficients: tuple[float, ...]) -> Expr:
    """a + a³ * p(a²)."""
    return bind(a * a, lambda s: a + a * s * horner(coefficients, s))


def tan(x: Expr) -> Expr:
    """tan(x) as sine over cosine."""
    return bind(x, lambda v: sin(v) / cos(v))


def atan(x: Expr) -> Expr:
    """The arc tangent: arguments beyond tan(pi/8) as differences to pi/4, beyond tan(3 pi/8) as
    what is left of pi/2."""

    def positive(a: Expr) -> Expr:
        middle, far = a > const(_ATAN_EIGHTH), a > const(_ATAN_THREE_EIGHTHS)
        top = tirx.Select(far, const(-1.0), tirx.Select(middle, a - const(1.0), a))
        bottom = tirx.Select(far, a, tirx.Select(middle, a + const(1.0), const(1.0)))
        start = tirx.Select(far, const(pi / 2), tirx.Select(middle, const(pi / 4), const(0.0)))
        return bind(top / bottom, lambda r: start + _series(r, _ATAN))

    return _odd(x, positive)


def _asin_pieces(a: Expr, near: Callable[[Expr], Expr], far: Callable[[Expr], Expr]) -> Expr:
    """`near` of asin(a) up to a half, `far` of asin(sqrt((1 - a) / 2)) from there."""
    beyond = a > const(0.5)
    argument = tirx.Select(beyond, tirx.sqrt(const(0.5) * (const(1.0) - a)), a)
    return bind(
        bind(argument, lambda v: _series(v, _ASIN)),
        lambda value: tirx.Select(beyond, far(value), near(value)),
    )


def asin(x: Expr) -> Expr:
    """The arc sine."""
    return _odd(
        x,
        lambda a: _asin_pieces(a, lambda v: v, lambda v: const(pi / 2) - (v + v)),
    )


def acos(x: Expr) -> Expr:
    """The arc cosine; near 1 not as a difference, which would cancel."""

    def whole(v: Expr) -> Expr:
        def near(value: Expr) -> Expr:
            return const(pi / 2) - tirx.Select(v < const(0.0), const(0.0) - value, value)

        def far(value: Expr) -> Expr:
            twice = value + value
            return tirx.Select(v < const(0.0), const(pi) - twice, twice)

        return bind(tirx.abs(v), lambda a: _asin_pieces(a, near, far))

    return bind(x, whole)


def _halves(a: Expr, sign: float) -> Expr:
    """(e**a + sign * e**-a) / 2, by e**(a/2): e**a leaves the range sooner than its half does."""
    root = exp(const(0.5) * a)
    return bind(root, lambda t: const(0.5) * t * t + const(0.5 * sign) / t / t)


def sinh(x: Expr) -> Expr:
    """The hyperbolic sine; a polynomial up to 1."""

    def positive(a: Expr) -> Expr:
        return tirx.Select(a > const(1.0), _halves(a, -1.0), _series(a, _SINH))

    return _odd(x, positive)


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine."""
    return bind(tirx.abs(x), lambda a: _halves(a, 1.0))


def _log_sum(a: Expr, root: Expr) -> Expr:
    """log(a + root), or log(2 a) where both are large."""
    large = a > const(_LARGE)
    value = log(tirx.Select(large, a, a + root))
    return value + tirx.Select(large, const(_LN2), const(0.0))


def asinh(x: Expr) -> Expr:
    """The inverse hyperbolic sine; a polynomial up to a half."""

    def positive(a: Expr) -> Expr:
        far = _log_sum(a, tirx.sqrt(a * a + const(1.0)))
        return tirx.Select(a > const(0.5), far, _series(a, _ASINH))

    return _odd(x, positive)


def acosh(x: Expr) -> Expr:
    """The inverse hyperbolic cosine; a polynomial up to 1.5, whose root is NaN below 1."""

    def whole(v: Expr) -> Expr:
        def by_rest(z: Expr) -> Expr:
            far = _log_sum(v, tirx.sqrt(z * (v + const(1.0))))
            return tirx.Select(z > const(0.5), far, tirx.sqrt(z) * horner(_ACOSH, z))

        return bind(v - const(1.0), by_rest)

    return bind(x, whole)


def atanh(x: Expr) -> Expr:
    """The inverse hyperbolic tangent; a polynomial up to a half."""

    def positive(a: Expr) -> Expr:
        far = const(0.5) * log((const(1.0) + a) / (const(1.0) - a))
        return tirx.Select(a > const(0.5), far, _series(a, _ATANH))

    return _odd(x, positive)
