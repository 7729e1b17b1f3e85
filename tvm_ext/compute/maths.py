"""Special functions as polynomials, so that they run in vectors.

LLVM calls libm once per element for exp, tanh and erf (2.7 to 9.7 ns each); these take a fraction
of a nanosecond. Bounds hold for float32, in units in the last place of the result (ULP, 1.2e-7 of
it at most), and are tested:

    exp      2 ULP; 0 where the result would be denormal, infinite above 88.72
    log      2 ULP, denormal arguments included; -inf at 0, NaN below
    tanh     6 ULP
    erf      8 ULP
    sigmoid  3 ULP; 0 below -87.33
    softplus 4 ULP
    gelu, gelu_tanh, silu    4e-7 |x|
    selu     2e-7 |x| + 3e-7
    rsqrt    2 ULP
    power    in `compute.power`
    sin, cos 2 ULP below 1e6, 2e-7 below 2**28, from there those of 0; in `compute.trigonometry`
    others   tan, arc and hyperbolic functions in `compute.inverse`

NaN in gives NaN out; infinities give the limit, but gelu and silu of -inf are NaN, as 0 * -inf is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm_ext.tvm_api import tirx

Expr = Any

_EXP = (
    0.0013814540579915047,
    0.00836874544620514,
    0.04166838899254799,
    0.1666652113199234,
    0.4999999403953552,
    1.0,
    1.0,
)
_EXP_HALF = (0.16566746, 0.50496342, 1.00016432, 0.99992807)
"""The same within 2^-13 (minimax of the relative error)."""
_EXP_LOW, _EXP_HIGH = -87.33654, 88.72283
"""Where e**x leaves the normal numbers of float32."""
_INFINITY = float("inf")
_LOG2E = 1.44269504088896341
_ROUNDING = 12582912.0
"""1.5 * 2**23: of what is added to it the fraction is rounded off."""
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_TANH_TOP = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BOTTOM = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
_ERF_TOP = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BOTTOM = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_TANH_ONE, _ERF_ONE = 8.7, 3.84
"""From here the functions are within half a ULP of 1."""
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 1.17549435e-38


def const(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")


def integer(value: int) -> Expr:
    """An int32 constant."""
    return tirx.const(value, "int32")


def bind(value: Expr, body: Callable[[Expr], Expr], dtype: str = "float32") -> Expr:
    """`body(value)` with the value computed once."""
    name = tirx.Var("v", dtype)
    return tirx.Let(name, value, body(name))


def _bits(x: Expr) -> Expr:
    return tirx.reinterpret("int32", x)


def horner(coefficients: tuple[float, ...], x: Expr) -> Expr:
    """The polynomial of these coefficients, the highest power first."""
    total = const(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + const(coefficient)
    return total


def _exp_pieces(x: Expr, sign: int, join: Callable[[Expr, Expr], Expr], bias: int = 0) -> Expr:
    """e**(sign * x) as `join` puts it together from e**r with |r| <= ln(2)/2, a degree-6 minimax
    polynomial, and the bits of n + bias in the place of an exponent: it is e**r * 2**n.

    The polynomial goes by pairs of terms: a vector waits for itself less long than in Horner's
    order.
    """
    six, five, four, three, two, one, zero = (
        const(c * sign ** (6 - place)) for place, c in enumerate(_EXP)
    )

    def series(r: Expr) -> Expr:
        def pairs(s: Expr) -> Expr:
            high = (six * s + (five * r + four)) * s + (three * r + two)
            return high * s + one * r + zero

        return bind(r * r, pairs)

    return _by_powers_of_two(x, sign, series, (_LN2_HIGH, _LN2_LOW), join, bias)


def _by_powers_of_two(
    x: Expr,
    sign: int,
    series: Callable[[Expr], Expr],
    ln2: tuple[float, ...],
    join: Callable[[Expr, Expr], Expr],
    bias: int,
) -> Expr:
    """`join` of the series of r and the bits of n + bias, where sign * x = r + n * ln(2), which is
    the sum of its parts.

    n is rounded by adding a number whose last place is 1, so that it stands in the low bits.
    """

    def reduced(shifted: Expr) -> Expr:
        def rest(n: Expr) -> Expr:
            return reduce(lambda left, part: left - n * const(sign * part), ln2, x)

        r = bind(shifted - const(_ROUNDING + bias), rest)
        return join(bind(r, series), _bits(shifted) << integer(23))

    return bind(x * const(sign * _LOG2E) + const(_ROUNDING + bias), reduced)


def exp(x: Expr) -> Expr:
    """e**x, n added to the exponent of e**r."""

    def joined(value: Expr, exponent: Expr) -> Expr:
        return tirx.reinterpret("float32", _bits(value) + exponent)

    def whole(v: Expr) -> Expr:
        # neither comparison holds for a NaN, which the sum passes on
        above = tirx.Select(v <= const(_EXP_HIGH), _exp_pieces(v, 1, joined), v + const(_INFINITY))
        return tirx.Select(v < const(_EXP_LOW), const(0.0), above)

    return bind(x, whole)


def exp_down(x: Expr) -> Expr:
    """e**x of no positive x within 2^-23, as softmax asks for."""
    return _down(x, lambda v, joined: _exp_pieces(v, 1, joined, bias=127))


def exp_to_half(x: Expr) -> Expr:
    """e**x of no positive x within 2^-13, for what is rounded to the 8 bits of a bfloat16: a
    cubic."""
    ln2 = (_LN2_HIGH + _LN2_LOW,)

    def pieces(v: Expr, joined: Callable[[Expr, Expr], Expr]) -> Expr:
        return _by_powers_of_two(v, 1, lambda r: horner(_EXP_HALF, r), ln2, joined, bias=127)

    return _down(x, pieces)


def _down(x: Expr, pieces: Callable[[Expr, Callable[[Expr, Expr], Expr]], Expr]) -> Expr:
    """e**r times 2**n: one comparison, since a product passes a NaN on."""

    def joined(value: Expr, power: Expr) -> Expr:
        return value * tirx.reinterpret("float32", power)

    def whole(v: Expr) -> Expr:
        return tirx.Select(v < const(_EXP_LOW), const(0.0), pieces(v, joined))

    return bind(x, whole)


def _odd_rational(x: Expr, top: tuple[float, ...], bottom: tuple[float, ...], one: float) -> Expr:
    """x * top(x²) / bottom(x²), and exactly 1 or -1 from `one` on. The quotient comes first: the
    product of a tiny x with a small coefficient would be denormal."""

    def saturated(v: Expr) -> Expr:
        value = bind(v * v, lambda s: v * (horner(top, s) / horner(bottom, s)))
        below = tirx.Select(v < const(-one), const(-1.0), value)
        return tirx.Select(v > const(one), const(1.0), below)

    return bind(x, saturated)


def tanh(x: Expr) -> Expr:
    """tanh(x) by a rational approximation (Eigen)."""
    return _odd_rational(x, _TANH_TOP, _TANH_BOTTOM, _TANH_ONE)


def erf(x: Expr) -> Expr:
    """erf(x) by a rational approximation (Eigen)."""
    return _odd_rational(x, _ERF_TOP, _ERF_BOTTOM, _ERF_ONE)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x), e**r times 2**n: a product passes a NaN on."""

    def joined(value: Expr, power: Expr) -> Expr:
        return const(1.0) / (const(1.0) + value * tirx.reinterpret("float32", power))

    def whole(v: Expr) -> Expr:
        low = tirx.Select(v > const(-_EXP_LOW), const(-_EXP_LOW), v)
        value = bind(low, lambda u: _exp_pieces(u, -1, joined, bias=127))
        return tirx.Select(v < const(_EXP_LOW), const(0.0), value)

    return bind(x, whole)


def gelu(x: Expr) -> Expr:
    """x/2 * (1 + erf(x / sqrt(2)))."""
    return const(0.5) * x * (const(1.0) + erf(x * const(0.5**0.5)))


def gelu_tanh(x: Expr) -> Expr:
    """GELU with tanh(sqrt(2/pi) * (x + 0.044715 x³)) in place of the error function."""
    inner = const(0.7978845608028654) * x * (const(1.0) + const(0.044715) * x * x)
    return const(0.5) * x * (const(1.0) + tanh(inner))


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x): TVM's own intrinsic is no vector operation."""
    return const(1.0) / tirx.sqrt(x)


def log(x: Expr) -> Expr:
    """Natural logarithm by splitting off the exponent and a degree-9 polynomial (Cephes logf)."""

    def mantissa(bits: Expr, lift: Expr) -> Expr:
        # x = m * 2**e with m in [sqrt(1/2), sqrt(2))
        shifted = bits - integer(_SQRT_HALF_BITS)
        exponent = (shifted >> integer(23)).astype("float32") - lift
        low = shifted & integer(0x7FFFFF)
        m = tirx.reinterpret("float32", low + integer(_SQRT_HALF_BITS))
        return bind(exponent, lambda e: bind(m - const(1.0), lambda r: series(e, r)))

    def series(e: Expr, r: Expr) -> Expr:
        square = r * r
        tail = r * square * horner(_LOG, r) + e * const(_LN2_LOW)
        return r + (tail - const(0.5) * square) + e * const(_LN2_HIGH)

    def whole(v: Expr) -> Expr:
        tiny = v < const(_SMALLEST_NORMAL)
        normal = tirx.Select(tiny, v * const(2.0**23), v)
        body = mantissa(_bits(normal), tirx.Select(tiny, const(23.0), const(0.0)))
        below = tirx.Select(v < const(0.0), const(float("nan")), const(float("-inf")))
        value = tirx.Select(v > const(0.0), body, below)
        # false for a NaN too, which passes
        return tirx.Select(v < const(float("inf")), value, v)

    return bind(x, whole)


def softplus(x: Expr, beta: float, threshold: float) -> Expr:
    """log(1 + e**(beta x)) / beta; x itself where beta x exceeds the threshold.

    The exponent is taken negative, and what 1 + t loses of a small t is added again to first order.
    """

    def tail(t: Expr) -> Expr:
        return bind(const(1.0) + t, lambda u: log(u) + (t - (u - const(1.0))) / u)

    def whole(v: Expr) -> Expr:
        size = tirx.Select(v > const(0.0), v, const(0.0)) + bind(
            exp(const(0.0) - tirx.abs(v)), tail
        )
        return tirx.Select(v > const(threshold), v, size) * const(1.0 / beta)

    return bind(x * const(beta), whole)


def selu(x: Expr) -> Expr:
    """Scaled exponential linear unit (Klambauer et al. 2017, section 2)."""
    alpha, scale = const(1.6732632423543772), const(1.0507009873554805)
    return scale * bind(x, lambda v: tirx.Select(v > const(0.0), v, alpha * (exp(v) - const(1.0))))
