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
from scipy import special

from tvm_ext.tir.expression import Node

Array = Any  # numpy array or scalar of any dtype
TRANSCENDENTAL_UNITS = 16.0


class Value(NamedTuple):
    """A value; a correct kernel's is within `rel * |x| + err` of it. `err` None means zero.

    Where `x` is boolean, `err` is 1 where the kernel may have decided otherwise.
    """

    x: Array
    rel: float = 0.0
    err: Array = None

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
    if not is_float(dtype):
        return 0.0
    try:
        return float(np.finfo(dtype).eps) / 2
    except (TypeError, ValueError):
        import ml_dtypes

        return float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) / 2


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


def _round_half_away(a: Array) -> Array:
    return np.trunc(a + np.copysign(0.5, a))


def _same(a: Array) -> Array:
    return a


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
    "round": _round_half_away, "nearbyint": np.rint, "fmod": np.fmod, "copysign": np.copysign,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "popcount": np.bitwise_count, "likely": _same,
}  # fmt: skip
_ROUNDED: dict[str, tuple[Callable[..., Array], float]] = {
    "Div": (_divide, 2.0), "sqrt": (np.sqrt, 2.0), "rsqrt": (lambda a: 1.0 / np.sqrt(a), 4.0),
    "hypot": (np.hypot, 4.0), "ldexp": (lambda a, b: a * np.exp2(b), 1.0),
    "fma": (lambda a, b, c: a * b + c, 1.0),
    **{
        name: (function, TRANSCENDENTAL_UNITS)
        for name, function in {
            "exp": np.exp, "exp2": np.exp2, "exp10": lambda a: np.power(10.0, a),
            "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
            "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
            "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh,
            "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
            "erf": special.erf, "sigmoid": special.expit, "pow": np.power,
        }.items()
    },
}  # fmt: skip
_LINEAR = {"Add": np.add, "Sub": np.subtract}
_LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not}
_CHOICE = ("Select", "if_then_else")
KNOWN = frozenset((*_EXACT, *_ROUNDED, *_LINEAR, *_LOGIC, *_CHOICE, "Mul", "Cast", "reinterpret"))
"""Every operation `apply` can evaluate."""


def apply(node: Node, args: Sequence[Value]) -> Value:
    """The value of one operation (not a leaf) on numpy arrays that broadcast together.

    Loaded floats come as float64 and stay so; arithmetic on loop variables alone is done in the
    dtype TIR names, and where it ends in an integer or a decision it is exact by definition: a
    reference that resolved `floor(i * scale)` better than the kernel would read another element.
    """
    # both sides round what does not depend on data, so the two errors add up
    unit = unit_roundoff(node.dtype) * (1.0 if node.dynamic else 2.0)
    op = node.op
    if op == "Mul":
        return _multiply(args[0], args[1], unit)
    if op in _LINEAR:
        spreads = [s for s in (arg.spread() for arg in args) if s is not None]
        return Value(_LINEAR[op](args[0].x, args[1].x), unit, sum(spreads) if spreads else None)
    if op in _CHOICE:
        return _choose(*args)
    if op in _LOGIC:
        doubts = [arg.err for arg in args if arg.err is not None]
        x = _LOGIC[op](*(arg.x for arg in args))
        return Value(x, 0.0, sum(doubts).clip(0, 1) if doubts else None)
    if op == "Cast":
        return _cast(node, args[0], unit)
    if op == "reinterpret":
        source, target = numpy_dtype(node.args[0].dtype), numpy_dtype(node.dtype)
        wide = np.float64 if _widened(node.dtype) or is_float(node.dtype) else target
        return _through(
            node, lambda a: np.asarray(a).astype(source).view(target).astype(wide), args, 0.0
        )
    function, units = _ROUNDED[op] if op in _ROUNDED else (_EXACT[op], 0.0)
    return _through(node, function, args, units * unit)


def _multiply(a: Value, b: Value, unit: float) -> Value:
    rel = (a.rel + b.rel + unit) if unit else 0.0
    err = None
    if b.err is not None:
        err = np.abs(a.x) * b.err
    if a.err is not None:
        other = np.abs(b.x) if b.err is None else np.abs(b.x) + b.err
        err = a.err * other if err is None else err + a.err * other
    return Value(a.x * b.x, rel, err)


def _choose(condition: Value, then: Value, other: Value) -> Value:
    x = np.where(condition.x, then.x, other.x)
    rel = max(then.rel, other.rel)
    err = None
    if then.err is not None or other.err is not None:
        err = np.where(
            condition.x,
            0.0 if then.err is None else then.err,
            0.0 if other.err is None else other.err,
        )
    if condition.err is not None:
        gap = np.abs(np.subtract(then.x, other.x, dtype=np.float64))
        for side in (then.spread(), other.spread()):
            gap = gap if side is None else gap + side
        err = np.where(condition.err > 0, gap, 0.0 if err is None else err)
    return Value(x, rel, err)


def _cast(node: Node, arg: Value, unit: float) -> Value:
    if not is_float(node.dtype):
        target = numpy_dtype(node.dtype)
        if is_float(node.args[0].dtype):
            return _through(node, lambda a: np.asarray(a).astype(target), (arg,), 0.0)
        return Value(np.asarray(arg.x).astype(target), 0.0, arg.err)
    widens = unit <= unit_roundoff(node.args[0].dtype) and is_float(node.args[0].dtype)
    exact = node.args[0].dtype == "bool" or widens
    wide = node.dynamic or _widened(node.dtype)
    x = np.asarray(arg.x).astype(np.float64 if wide else node.dtype)
    return Value(x, arg.rel + (0.0 if exact else unit), arg.err)


def _through(
    node: Node, function: Callable[..., Array], args: Sequence[Value], rel: float
) -> Value:
    """The generic rule: how far the result moves when each argument moves to its interval's ends.

    An integer that may be wrong has no such ends: what is computed from it is unknown (inf).
    """
    values = [arg.x for arg in args]
    x = function(*values)
    if not is_float(node.dtype) and not node.dynamic:
        return Value(x)
    err = None
    for position, arg in enumerate(args):
        spread = arg.spread()
        if spread is None:
            continue
        if np.asarray(arg.x).dtype.kind == "f":
            moved = np.zeros(())
            for end in (arg.x + spread, arg.x - spread):
                at_end = function(*values[:position], end, *values[position + 1 :])
                step = np.abs(np.subtract(at_end, x, dtype=np.float64))
                # fmax: an end outside the function's domain says nothing
                moved = np.fmax(moved, np.where(np.equal(at_end, x), 0.0, step))
        else:
            moved = np.where(spread > 0, np.inf, 0.0)
        err = moved if err is None else err + moved
    return Value(x, rel, err)
