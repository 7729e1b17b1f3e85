"""Powers in vectors: x**y for a constant y and for a tensor.

    small whole y   products: |y| roundings, 6e-8 of the result each
    small quarters  products of x, its root and the root of that: a rounding more for each root
    any other y     e**(y * log|x|): relative error <= 3e-7 * (1 + |y * log|x||), so 3e-5 at the
                    ends of the range of float32

Signs, zeros, infinities and NaN are those of C's pow: a negative x has a whole power, x**0 and 1**y
are 1 even for a NaN.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.compute.maths import bind, const, exp, log
from tvm_ext.tvm_api import tirx

Expr = Any

LARGEST_PRODUCT = 16
"""Whole powers up to here are products."""


def power(x: Expr, exponent: float) -> Expr:
    """x**exponent for a constant."""
    quarters = abs(exponent) * 4
    if not abs(exponent) <= LARGEST_PRODUCT or quarters != int(quarters):  # nor a NaN
        return pow(x, const(exponent))
    size = bind(x, lambda v: _quarters(v, int(quarters)))
    return const(1.0) / size if exponent < 0 else size


def _quarters(x: Expr, quarters: int) -> Expr:
    """x**(quarters / 4), of a variable. The normalisation of AlexNet takes x**0.75: with its sum
    and division a third of the time that the logarithm took."""
    whole, rest = divmod(quarters, 4)
    half, quarter = divmod(rest, 2)
    factors = [_product(x, whole)] if whole or not rest else []
    root = tirx.sqrt(x)
    if half and quarter:
        factors.append(bind(root, lambda r: r * tirx.sqrt(r)))
    elif rest:
        factors.append(root if half else tirx.sqrt(root))
    return factors[0] if len(factors) == 1 else factors[0] * factors[1]


def _product(x: Expr, times: int) -> Expr:
    """x multiplied by itself, by repeated squaring."""
    if times == 0:
        return const(1.0)
    if times == 1:
        return x
    square = bind(x, lambda v: _product(v * v, times // 2))
    return bind(x, lambda v: _product(v * v, times // 2) * v) if times % 2 else square


def pow(x: Expr, y: Expr) -> Expr:
    """x**y, element by element."""

    def signed(v: Expr, e: Expr) -> Expr:
        half = e * const(0.5)
        whole = tirx.floor(e).equal(e)
        odd = tirx.And(whole, tirx.Not(tirx.floor(half).equal(half)))

        def with_sign(size: Expr) -> Expr:
            finite = v > const(float("-inf"))
            improper = tirx.Select(tirx.Or(whole, tirx.Not(finite)), size, const(float("nan")))
            negative = tirx.Select(odd, const(0.0) - size, improper)
            return tirx.Select(v < const(0.0), negative, size)

        size = tirx.Select(tirx.abs(v).equal(const(1.0)), const(1.0), exp(e * log(tirx.abs(v))))
        return tirx.Select(e.equal(const(0.0)), const(1.0), bind(size, with_sign))

    return bind(x, lambda v: bind(y, lambda e: signed(v, e)))
