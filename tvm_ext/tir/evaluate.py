"""Expressions evaluated in numpy, each with a bound on how far a correct kernel may be from it.

A bound is a running error analysis (Higham, Accuracy and Stability of Numerical Algorithms,
2nd ed., section 3.3): every float operation adds its unit roundoff, and errors of the arguments
pass through it, by a rule of its own or by evaluating it again at both ends of their intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.tir.expression import Node
from tvm_ext.tir.halves import dot_pairs, halves_of, paired, rounded_bits, to_half

Array = Any  # numpy array or scalar of any dtype
TRANSCENDENTAL_UNITS = 16.0
"""Unit roundoffs by which exp and its like may be off: 1e-6 in float32, as polynomials are."""
ZERO_CROSSING_UNITS = 8.0
"""The same, absolutely, where a function passes zero: tanh is often (1 - exp(-2x)) / (1 + ...)."""


class Value(NamedTuple):
    """A value; a correct kernel's is within `rel * |x| + err` of it. `err` None means zero.

    Where `x` is boolean, `err` is 1 where the kernel may have decided otherwise; where it is two
    bfloat16 in a word (`tvm_pairs.paired`), it is that of each. `alt`, of values that depend on no
    data, is what they are without intermediate rounding, if that differs.
    """

    x: Array
    rel: float = 0.0
    err: Array = None
    alt: Array = None

    def spread(self) -> Array:
        """The absolute bound, or None if the value is exact."""
        if not self.rel:
            return self.err
        own = self.rel * np.abs(self.x)
        return own if self.err is None else own + self.err


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of a TIR dtype; TypeError if there is none."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise
        return np.dtype(getattr(ml_dtypes, name))


@cache
def is_float(dtype: str) -> bool:
    """Whether the TIR dtype is a floating-point one."""
    return "float" in dtype


@cache
def unit_roundoff(dtype: str) -> float:
    """Largest relative error of rounding to the dtype; 0 for integers."""
    return float(_limits(dtype).eps) / 2 if is_float(dtype) else 0.0


@cache
def underflow(dtype: str) -> float:
    """Largest error of rounding a tiny number to the dtype; 0 if that is below float32's range."""
    smallest = float(_limits(dtype).smallest_subnormal) if is_float(dtype) else 0.0
    return smallest if smallest > np.finfo(np.float32).tiny else 0.0


def _limits(dtype: str) -> Any:
    if not _widened(dtype):
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(numpy_dtype(dtype))


def constant(value: float, dtype: str) -> Array:
    """A literal as the kernel holds it; 16-bit floats and smaller are widened to float64."""
    scalar = np.array(value).astype(numpy_dtype(dtype))
    return scalar.astype(np.float64)[()] if _widened(dtype) else scalar[()]


def _widened(dtype: str) -> bool:
    return is_float(dtype) and dtype not in ("float32", "float64")


def _divide(a: Array, b: Array) -> Array:
    if np.result_type(a, b).kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _popcount(a: Array) -> Array:
    octets = np.array(a)[..., np.newaxis].view(np.uint8)
    return np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.asarray(a).dtype)


def _dot(a: Array, b: Array) -> Array:
    """Of four bytes each, those of `a` without a sign (`tvm_dots`)."""
    unsigned, signed = (
        np.ascontiguousarray(one).astype(np.int32)[..., np.newaxis].view(octet)
        for one, octet in ((a, np.uint8), (b, np.int8))
    )
    return (unsigned.astype(np.int32) * signed).sum(axis=-1, dtype=np.int32)


def _cast(node: Node) -> Callable[[Array], Array]:
    wide = _widened(node.dtype) or (node.dynamic and is_float(node.dtype))
    target = np.dtype(np.float64) if wide else numpy_dtype(node.dtype)
    return lambda a: np.asarray(a).astype(target)


def _reinterpret(node: Node) -> Callable[[Array], Array]:
    source, target = numpy_dtype(node.args[0].dtype), numpy_dtype(node.dtype)
    wide = np.dtype(np.float64) if is_float(node.dtype) else target
    return lambda a: np.asarray(a).astype(source).view(target).astype(wide)


def _special(name: str) -> Callable[[Array], Array]:
    def apply_it(a: Array) -> Array:
        from scipy import special  # a quarter of a second, which few models need

        return getattr(special, name)(a)

    return apply_it


_EXACT: dict[str, Callable[..., Array]] = {
    "Mod": np.fmod, "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Min": np.minimum, "Max": np.maximum,
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "BitwiseNot": np.invert, "LShift": np.left_shift, "RShift": np.right_shift,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert, "shift_left": np.left_shift, "shift_right": np.right_shift,
    "fabs": np.abs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "round": np.rint, "nearbyint": np.rint, "fmod": np.fmod, "copysign": np.copysign,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "popcount": _popcount, "dot": _dot, "dot_pairs": dot_pairs, "rounded": rounded_bits,
    "paired": paired,
    "likely": np.asarray,
}  # fmt: skip
_ROUNDED: dict[str, tuple[Callable[..., Array], float]] = {
    "Div": (_divide, 2.0), "sqrt": (np.sqrt, 2.0), "rsqrt": (lambda a: 1.0 / np.sqrt(a), 4.0),
    "hypot": (np.hypot, 4.0), "ldexp": (lambda a, b: a * np.exp2(b), 1.0),
    "fma": (lambda a, b, c: a * b + c, 1.0),
}  # fmt: skip
_TRANSCENDENTAL: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda a: np.power(10.0, a), "pow": np.power,
    "sigmoid": _special("expit"), "cosh": np.cosh, "acos": np.arccos, "acosh": np.arccosh,
}  # fmt: skip
_THROUGH_ZERO: dict[str, Callable[..., Array]] = {
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh,
    "tanh": np.tanh, "asinh": np.arcsinh, "atanh": np.arctanh, "erf": _special("erf"),
}  # fmt: skip
_LINEAR = {"Add": np.add, "Sub": np.subtract}
_LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not}
_CHOICE = {"Select": np.where, "if_then_else": np.where}
_TYPED = {"Cast": _cast, "reinterpret": _reinterpret}
_UNTYPED: dict[str, Callable[..., Array]] = {
    **_EXACT,
    **{name: function for name, (function, _) in _ROUNDED.items()},
    **_TRANSCENDENTAL,
    **_THROUGH_ZERO,
    **_LINEAR,
    **_LOGIC,
    **_CHOICE,
    "Mul": np.multiply,
}
KNOWN = frozenset((*_UNTYPED, *_TYPED))
"""Every operation `apply` can evaluate."""


def apply(node: Node, args: Sequence[Value]) -> Value:
    """The value of one operation (not a leaf) on numpy arrays that broadcast together.

    Loaded floats come as float64 and stay so. Arithmetic on loop variables alone is done in the
    dtype TIR names: a reference that resolved `floor(i * scale)` better than the kernel would read
    another element. Where contraction to fused multiply-adds may change such a decision, it is in
    doubt.
    """
    op = node.op
    function = _TYPED[op](node) if op in _TYPED else _UNTYPED[op]
    if node.dynamic:
        value = _bounded(node, function, args, unit_roundoff(node.dtype))
        if value.rel and underflow(node.dtype):
            slack = underflow(node.dtype)
            value = value._replace(err=slack if value.err is None else value.err + slack)
        return value
    if not is_float(node.dtype):
        x = function(*(arg.x for arg in args))
        if all(arg.alt is None for arg in args):
            return Value(x)
        alt = function(*(arg.x if arg.alt is None else _rounded_as(arg) for arg in args))
        if np.array_equal(alt, x):
            return Value(x)
        return Value(x, 0.0, np.abs(np.subtract(alt, x, dtype=np.float64)), alt)
    # both sides round what does not depend on data, so the two errors add up
    value = _bounded(node, function, args, 2.0 * unit_roundoff(node.dtype))
    alt = function(*(_unrounded(arg) for arg in args))
    return value if np.array_equal(alt, value.x) else value._replace(alt=alt)


def _rounded_as(arg: Value) -> Array:
    return np.asarray(arg.alt).astype(np.asarray(arg.x).dtype)


def _unrounded(arg: Value) -> Array:
    x = np.asarray(arg.x if arg.alt is None else arg.alt)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _bounded(
    node: Node, function: Callable[..., Array], args: Sequence[Value], unit: float
) -> Value:
    op = node.op
    if op == "Mul":
        return _multiply(args[0], args[1], unit)
    if op == "Add" and any(arg.op == "const" and _rounds(arg) for arg in node.args):
        own = numpy_dtype(node.dtype)
        return _through(lambda a, b: np.add(a, b).astype(own).astype(np.float64), args, 0.0)
    if op == "dot_pairs":
        a, b = args
        return _dot_bounded(a, b, unit)
    if op == "paired":
        low, high = (_through(to_half, [arg], 0.0).err for arg in args)
        err = low if high is None else high if low is None else np.maximum(low, high)
        return Value(function(*(arg.x for arg in args)), 0.0, err)
    if op == "rounded":
        return _unbounded_around_zero(_through(function, args, 0.0), args[0])
    if op in _LINEAR:
        spreads = [spread for spread in (arg.spread() for arg in args) if spread is not None]
        return Value(function(args[0].x, args[1].x), unit, sum(spreads) if spreads else None)
    if op in _CHOICE:
        return _choose(*args)
    if op in ("Min", "Max"):
        return _extreme(function, args)
    if op in _LOGIC:
        doubts = [arg.err for arg in args if arg.err is not None]
        x = function(*(arg.x for arg in args))
        return Value(x, 0.0, np.clip(sum(doubts), 0, 1) if doubts else None)
    if op == "Cast":
        return _convert(node, function, args[0], unit)
    if op in _ROUNDED:
        value = _through(function, args, _ROUNDED[op][1] * unit)
        return _unbounded_at_zero(value, args[1]) if op == "Div" else value
    if op in _TRANSCENDENTAL:
        return _through(function, args, TRANSCENDENTAL_UNITS * unit)
    if op in _THROUGH_ZERO:
        value = _through(function, args, TRANSCENDENTAL_UNITS * unit)
        slack = ZERO_CROSSING_UNITS * unit
        return value._replace(err=slack if value.err is None else value.err + slack)
    return _through(function, args, 0.0)


def _rounds(constant: Node) -> bool:
    """Whether a constant's last place is 1: of what is added to it the fraction is rounded off, on
    purpose (exp by powers of two), and a sum that keeps it is another number."""
    if constant.dtype not in ("float32", "float64"):
        return False
    return 1.0 <= float(constant.data) * float(np.finfo(constant.dtype).eps) < 2.0


def _multiply(a: Value, b: Value, unit: float) -> Value:
    rel = (a.rel + b.rel + unit) if unit else 0.0
    err = None
    if b.err is not None:
        err = np.abs(a.x) * b.err
    if a.err is not None:
        other = np.abs(b.x) if b.err is None else np.abs(b.x) + b.err
        err = a.err * other if err is None else err + a.err * other
    return Value(a.x * b.x, rel, err)


def _dot_bounded(a: Value, b: Value, unit: float) -> Value:
    """The dot product of the halves of two words, each of which is within the word's `err`."""
    left, right = halves_of(a.x), halves_of(b.x)
    products = left * right
    err = unit * np.abs(products).sum(axis=-1)
    for one, other, halves in ((a, b, right), (b, a, left)):
        if one.err is not None:
            of_other = np.abs(halves)
            wide = of_other if other.err is None else of_other + other.err[..., np.newaxis]
            err = err + one.err * wide.sum(axis=-1)
    return Value(products.sum(axis=-1), 0.0, err)


def _choose(condition: Value, then: Value, other: Value) -> Value:
    x = np.where(condition.x, then.x, other.x)
    err = None
    if then.err is not None or other.err is not None:
        sides = (0.0 if side.err is None else side.err for side in (then, other))
        err = np.where(condition.x, *sides)
    if condition.err is not None:
        gap = np.abs(np.subtract(then.x, other.x, dtype=np.float64))
        for spread in (then.spread(), other.spread()):
            gap = gap if spread is None else gap + spread
        err = np.where(condition.err > 0, gap, 0.0 if err is None else err)
    return Value(x, max(then.rel, other.rel), err)


def _extreme(function: Callable[..., Array], args: Sequence[Value]) -> Value:
    """The larger or smaller of two. Of a number and a NaN (a root of random data) a kernel takes
    either, as the compiler has ordered the comparison: nothing bounds it."""
    value = _through(function, args, 0.0)
    a, b = (arg.x for arg in args)
    unsure = np.isnan(a) != np.isnan(b)
    if not np.any(unsure):
        return value
    err = np.where(unsure, np.inf, 0.0 if value.err is None else value.err)
    return Value(np.where(unsure, np.fmax(a, b), value.x), value.rel, err)


def _convert(node: Node, function: Callable[..., Array], arg: Value, unit: float) -> Value:
    source = node.args[0].dtype
    if is_float(source) and not is_float(node.dtype):
        return _through(function, [arg], 0.0)
    exact = unit_roundoff(node.dtype) <= unit_roundoff(source) if is_float(source) else not unit
    return Value(function(arg.x), arg.rel + (0.0 if exact or source == "bool" else unit), arg.err)


def _through(function: Callable[..., Array], args: Sequence[Value], rel: float) -> Value:
    """The generic rule: how far the result moves as each argument moves to its interval's ends."""
    values = [arg.x for arg in args]
    x = function(*values)
    err = None
    for position, arg in enumerate(args):
        spread = arg.spread()
        if spread is None:
            continue
        moved: Array = np.zeros(())
        for end in _ends(np.asarray(arg.x), np.asarray(spread)):
            at_end = function(*values[:position], end, *values[position + 1 :])
            step = np.abs(np.subtract(at_end, x, dtype=np.float64))
            # fmax: an end outside the function's domain says nothing; equal: two infinities are
            moved = np.fmax(moved, np.where(np.equal(at_end, x), 0.0, step))
        # an infinity that is exact has an infinite spread as well, and means something; that of a
        # zero times what nothing is known of is no number
        moved = np.where(np.isfinite(arg.x) & ~np.isfinite(spread), np.inf, moved)
        err = moved if err is None else err + moved
    return Value(x, rel, err)


def _unbounded_at_zero(quotient: Value, divisor: Value) -> Value:
    """A quotient of which nothing is known where the divisor may be zero: it has a pole between the
    ends of the divisor's interval."""
    spread = divisor.spread()
    if spread is None:
        return quotient
    pole = (np.abs(divisor.x) <= spread) & (np.asarray(spread) > 0)
    if not pole.any():
        return quotient
    err = 0.0 if quotient.err is None else quotient.err
    return quotient._replace(err=np.where(pole, np.inf, err))


def _unbounded_around_zero(bits: Value, number: Value) -> Value:
    """The bits of a number, of which nothing is known where it may have either sign."""
    spread = number.spread()
    if spread is None or bits.err is None:
        return bits
    return bits._replace(err=np.where(np.abs(number.x) <= spread, np.inf, bits.err))


def _ends(x: Array, spread: Array) -> tuple[Array, ...]:
    if x.dtype.kind == "f":
        return x + spread, x - spread
    if x.dtype.kind == "b":
        return (x ^ (spread > 0),)
    step = np.minimum(spread, np.iinfo(x.dtype).max // 2).astype(x.dtype)
    return x + step, x - step
