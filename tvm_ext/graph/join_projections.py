"""Queries, keys and values of one tensor as one product, of which attention reads slices.

    attention(heads(x Wq + bq), heads(x Wk + bk), heads(x Wv + bv))
        →
    y = heads(x [Wq Wk Wv] + [bq bk bv]); attention(y[:, :, :h], y[:, :, h:2h], y[:, :, 2h:])

Here `heads` is the reshape of columns to heads. Where a model splits such a product itself (GPT-2),
the reshape goes before the split: only then is what attention reads a view of what is there, which
`AbsorbViews` makes of it. TVM's CombineParallelMatmul joins whatever shares an operand, gates of
feed-forward layers included: those are epilogues of each other here, and would be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.lower_split import part_of
from tvm_ext.tvm_api import (
    bound,
    constant,
    constant_array,
    op_name,
    relax,
    static_extents,
)

HEADS = 2
"""The axis of heads, behind the batch and the positions."""


class _Projection(NamedTuple):
    """`x @ weight + bias`."""

    x: Any
    weight: np.ndarray
    bias: np.ndarray | None


def joined(mutator: Any, operands: Sequence[Any], once: Callable[[Any], bool]) -> list[Any]:
    """The operands of attention, [b, n, h, d] each, as slices of one product wherever several are
    products of one tensor by constants, or are columns of one already.

    mutator  of the function they are in
    once     whether a variable has a single reader: what others read as well would be computed
             twice
    """
    found = [_columns_of_whole(mutator, operand) for operand in operands]
    groups: dict[Any, list[int]] = {}
    projections: dict[int, _Projection] = {}
    for place, operand in enumerate(operands):
        made = None if found[place] is not None else _projection(mutator, operand, once)
        if made is not None:
            projections[place] = made
            batch, positions, _, width = _shape(operand)
            groups.setdefault((made.x, batch, positions, width), []).append(place)
    for places in groups.values():
        if len({operands[place] for place in places}) == len(places) > 1:
            whole = _one_product(mutator, [projections[place] for place in places])
            begin = 0
            for place in places:
                found[place] = (whole, begin)
                begin += projections[place].weight.shape[1]
    return [
        operand if columns is None else _heads(mutator, *columns, _shape(operand))
        for operand, columns in zip(operands, found, strict=True)
    ]


def _shape(expr: Any) -> tuple[int, ...]:
    return static_extents(expr.ty) or ()


def _flat(mutator: Any, operand: Any) -> Any:
    """What an operand of attention is a reshape of, by heads; None if it is none."""
    shape, expr = _shape(operand), operand
    while op_name(made := bound(mutator, expr)) == "relax.reshape":
        expr = made.args[0]
    columns = _shape(expr)[-1:]
    return expr if len(shape) == 4 and columns == (shape[2] * shape[3],) else None


def _columns_of_whole(mutator: Any, operand: Any) -> tuple[Any, int] | None:
    """The tensor of which an operand is some whole heads, and the first of their columns."""
    flat = _flat(mutator, operand)
    if flat is None:
        return None
    part, width = part_of(bound(mutator, flat)), _shape(operand)[-1]
    if part is None or part.axis != len(_shape(part.whole)) - 1:
        return None
    aligned = part.begin % width == 0 and _shape(part.whole)[-1] % width == 0
    return (part.whole, part.begin) if aligned else None


def _projection(mutator: Any, operand: Any, once: Callable[[Any], bool]) -> _Projection | None:
    """The product by a constant matrix that an operand is, perhaps with a constant bias."""
    flat = _flat(mutator, operand)
    made, bias = bound(mutator, flat), None
    if flat is None or not once(flat):
        return None
    if op_name(made) == "relax.add":
        sides = [constant_array(bound(mutator, side)) for side in made.args]
        known = [place for place, side in enumerate(sides) if side is not None]
        if len(known) != 1 or not once(made.args[1 - known[0]]):
            return None
        bias, made = sides[known[0]], bound(mutator, made.args[1 - known[0]])
    if op_name(made) != "relax.matmul":
        return None
    weight = constant_array(bound(mutator, made.args[1]))
    if weight is None or weight.ndim != 2 or not isinstance(made.args[0], relax.Var):
        return None
    if bias is not None and bias.size != weight.shape[1]:
        return None
    return _Projection(made.args[0], weight, None if bias is None else bias.reshape(-1))


def _one_product(mutator: Any, parts: Sequence[_Projection]) -> Any:
    """All products at once, column by column."""
    weight = np.concatenate([part.weight for part in parts], axis=1)
    whole = mutator.builder_.emit(relax.op.matmul(parts[0].x, constant(weight)))
    if all(part.bias is None for part in parts):
        return whole
    biases = [
        np.zeros(part.weight.shape[1], part.weight.dtype) if part.bias is None else part.bias
        for part in parts
    ]
    return mutator.builder_.emit(relax.op.add(whole, constant(np.concatenate(biases))))


def _heads(mutator: Any, whole: Any, begin: int, shape: Sequence[int]) -> Any:
    """Heads of `shape` from a column of a tensor on."""
    batch, positions, heads, width = shape
    count = _shape(whole)[-1] // width
    emit = mutator.builder_.emit
    every = emit(relax.op.reshape(whole, (batch, positions, count, width)))
    first = begin // width
    return emit(relax.op.strided_slice(every, [HEADS], [first], [first + heads]))
