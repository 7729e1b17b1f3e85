"""Operators that are products of a tensor's own elements.

rewrite:
    CumProd(x)  =>  x times x moved by 1 element, that times itself moved by 2, by 4, ..
    Det(x)      =>  x[0, 0] Det(rest) - x[0, 1] Det(rest) ..    of `LARGEST` rows at most

Every step of the first has twice as many factors in each element. Larger determinants take pivots.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, extents_of, node_of

LARGEST = 4


def _cum_prod(op: Any, x: Any, axis: Any) -> Any:
    return op.CumProd(x, axis, _outputs=["y"])


def _along_a_known_axis(_: Any, x: ir.Value, axis: ir.Value, **__: Any) -> bool:
    return axis.const_value is not None and bool(extents_of(x)) and x.dtype is not None


def _in_steps(op: Any, x: ir.Value, axis: ir.Value, y: ir.Value) -> Any:
    assert axis.const_value is not None
    assert x.dtype is not None
    node, extents = node_of(y), extents_of(x)
    rank = len(extents)
    along = int(axis.const_value.numpy().item()) % rank
    back = bool(node.attributes.get_int("reverse", 0))
    one = constant(op, f"{y.name}_one", np.asarray(1, x.dtype.numpy()))

    def numbers(name: str, *values: int) -> Any:
        return constant(op, f"{y.name}_{name}", np.array(values, np.int64))

    def further(value: Any, count: int) -> Any:
        begin, end = (count, extents[along]) if back else (0, extents[along] - count)
        kept = op.Slice(
            value,
            numbers(f"from_{count}", begin),
            numbers(f"to_{count}", end),
            numbers("along", along),
        )
        pads = [0] * (2 * rank)
        pads[along + rank * back] = count
        return op.Pad(kept, numbers(f"ones_{count}", *pads), one)

    result, step = op.Identity(x), 1
    if node.attributes.get_int("exclusive", 0):
        if extents[along] == 1:
            return op.Expand(one, numbers("shape", *extents))
        result = further(x, 1)
    while step < extents[along]:
        result = op.Mul(result, further(result, step))
        step *= 2
    return result


def _det(op: Any, x: Any) -> Any:
    return op.Det(x, _outputs=["y"])


def _is_small(_: Any, x: ir.Value, **__: Any) -> bool:
    extents = extents_of(x)
    return len(extents) > 1 and extents[-1] == extents[-2] <= LARGEST


def _by_minors(op: Any, x: ir.Value, y: ir.Value) -> Any:
    """From below: the determinants of the last rows in all choices of as many columns."""
    size = extents_of(x)[-1]
    places = [constant(op, f"{y.name}_{n}", np.int64(n)) for n in range(size)]

    def expanded(row: list[Any], chosen: tuple[int, ...], below: Mapping[Any, Any]) -> Any:
        total = op.Mul(row[chosen[0]], below[chosen[1:]])
        for turn, column in enumerate(chosen[1:], 1):
            rest = tuple(other for other in chosen if other != column)
            term = op.Mul(row[column], below[rest])
            total = op.Sub(total, term) if turn % 2 else op.Add(total, term)
        return total

    minors: dict[tuple[int, ...], Any] = {}
    for rows in range(1, size + 1):
        whole = op.Gather(x, places[size - rows], axis=-2)
        row = [op.Gather(whole, place, axis=-1) for place in places]
        if rows == 1:
            minors = {(column,): element for column, element in enumerate(row)}
            continue
        minors = {
            chosen: expanded(row, chosen, minors) for chosen in combinations(range(size), rows)
        }
    (result,) = minors.values()
    return op.Identity(result)


rules = (
    RewriteRule(_cum_prod, _in_steps, _along_a_known_axis, name="CumProd"),
    RewriteRule(_det, _by_minors, _is_small, name="Det"),
)
