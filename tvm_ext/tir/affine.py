"""Indices of tensors as affine maps of axes.

x[h * 2 + k, c // 4]    →    h * 2 + 0 * c + k,  (0 * h + c + 0 * k) // 4
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm_ext.tile.graph import AffineDim
from tvm_ext.tvm_api import Analyzer, Call, TensorLoad, structural_walk, tirx


def children(node: Any) -> Iterator[Any]:
    """The sub-expressions of a TIR expression."""
    if isinstance(node, Call):
        yield from node.args
    elif isinstance(node, TensorLoad):
        yield from node.indices
    elif isinstance(node, tirx.Cast):
        yield node.value
    elif isinstance(node, tirx.Select):
        yield from (node.condition, node.true_value, node.false_value)
    elif isinstance(node, tirx.Let):
        yield from (node.value, node.body)
    elif isinstance(node, tirx.Not):
        yield node.a
    elif isinstance(node, tirx.Broadcast):
        yield node.value
    elif hasattr(node, "a") and hasattr(node, "b"):
        yield from (node.a, node.b)


def loads(expr: Any) -> list[Any]:
    """Every buffer load inside an expression, outermost first."""
    found: list[Any] = []
    structural_walk(expr, (TensorLoad, found.append), order="pre")
    return found


def divisions(indices: Any) -> Iterator[tuple[int, Any]]:
    """Every `variable // size` inside the indices."""
    for index in indices:
        division = isinstance(index, tirx.FloorDiv) and isinstance(index.b, tirx.IntImm)
        if division and isinstance(index.a, tirx.Var):
            yield int(index.b.value), index.a
        yield from divisions(children(index))


def operands(expr: Any, operator: Any) -> Iterator[Any]:
    """What an operator, once or again and again, joins to an expression, the last first."""
    if isinstance(expr, operator):
        yield from operands(expr.b, operator)
        yield from operands(expr.a, operator)
    else:
        yield expr


def linear(expr: Any, axes: dict[Any, int]) -> tuple[list[int], int] | None:
    """Coefficients per axis and the offset of a linear index; None if it is not linear."""
    if isinstance(expr, tirx.IntImm):
        return [0] * len(axes), int(expr.value)
    if isinstance(expr, tirx.Var):
        if expr not in axes:
            return None
        coeffs = [0] * len(axes)
        coeffs[axes[expr]] = 1
        return coeffs, 0
    if isinstance(expr, tirx.Cast):
        return linear(expr.value, axes)
    if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        left, right = linear(expr.a, axes), linear(expr.b, axes)
        if left is None or right is None:
            return None
        if isinstance(expr, tirx.Mul):
            if any(left[0]) and any(right[0]):
                return None
            (coeffs, offset), scale = (left, right[1]) if any(left[0]) else (right, left[1])
            return [c * scale for c in coeffs], offset * scale
        sign = 1 if isinstance(expr, tirx.Add) else -1
        pairs = zip(left[0], right[0], strict=True)
        return [a + sign * b for a, b in pairs], left[1] + sign * right[1]
    return None


def monomial(expr: Any) -> tuple[int, tuple[Any, ...]] | None:
    """A number times variables, each once; None of any other expression."""
    if isinstance(expr, tirx.IntImm):
        return int(expr.value), ()
    if isinstance(expr, tirx.Var):
        return 1, (expr,)
    if isinstance(expr, tirx.Cast):
        return monomial(expr.value)
    if not isinstance(expr, tirx.Mul):
        return None
    left, right = monomial(expr.a), monomial(expr.b)
    if left is None or right is None or set(left[1]) & set(right[1]):
        return None
    return left[0] * right[0], (*left[1], *right[1])


def affine(expr: Any, axes: dict[Any, int], bounds: Analyzer) -> AffineDim | None:
    """The index as an AffineDim; None if it is not `(linear // div) % mod` within the bounds."""
    if isinstance(expr, tirx.Var | tirx.IntImm):
        form = linear(expr, axes)
        return AffineDim(tuple(form[0]), form[1]) if form else None
    if loads(expr):  # data: of long ones TVM's simplifier takes milliseconds
        return None
    expr = bounds.simplify(expr)
    div, mod = 1, 0
    if isinstance(expr, tirx.FloorMod) and isinstance(expr.b, tirx.IntImm):
        mod, expr = int(expr.b.value), expr.a
    if isinstance(expr, tirx.FloorDiv) and isinstance(expr.b, tirx.IntImm):
        div, expr = int(expr.b.value), expr.a
        inner = expr.b if isinstance(expr, tirx.FloorMod) else None
        if isinstance(inner, tirx.IntImm) and not mod and int(inner.value) % div == 0:
            # (i % m) // d = (i // d) % (m / d) where d divides m
            mod, expr = int(inner.value) // div, expr.a
    parts = list(operands(expr, tirx.Add))
    whole = [part for part in parts if not _is_quotient(part)]
    if div == 1 and len(whole) == len(parts) - 1:
        # i + j // d = (i * d + j) // d
        quotient = next(part for part in parts if _is_quotient(part))
        div = int(quotient.b.value)
        forms = [*(linear(part * div, axes) for part in whole), linear(quotient.a, axes)]
    else:
        forms = [linear(expr, axes)]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    coeffs = tuple(map(sum, zip(*(form[0] for form in known), strict=True)))
    return AffineDim(coeffs, sum(form[1] for form in known), div, mod)


def _is_quotient(expr: Any) -> bool:
    return isinstance(expr, tirx.FloorDiv) and isinstance(expr.b, tirx.IntImm)
