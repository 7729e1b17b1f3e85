"""Powers in vectors: x**y for a constant y and for a tensor.

    small whole y   products: |y| roundings, 6e-8 of the result each
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
    if exponent == 0.5:
        return tirx.sqrt(x)
    if exponent == -0.5:
        return const(1.0) / tirx.sqrt(x)
    whole = exponent == int(exponent) if abs(exponent) < 2.0**31 else False
    if whole and abs(exponent) <= LARGEST_PRODUCT:
        if exponent < 0:
            return const(1.0) / _product(x, -int(exponent))
        return _product(x, int(exponent))
    return pow(x, const(exponent))


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
