"""Small tensors of integers that a graph works shapes out with, followed number by number.

    Shape(x)                     [n, 4]        n of x, which data say
    Concat(n, -1)                [n, -1]
    Where(shape == -1, 1, shape) [n, 4]        a count is never negative
    ReduceMin([200, n])          at most 200

An operator on numbers is numpy's on objects; a count says with `most` how large the result can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.counted import FEW, WHOLE, Count, Number, Numbers, Writer, extents, most

Rule = Callable[[ir.Node, Sequence[Numbers]], Any]


def numbers_of(write: Writer, node: ir.Node) -> Numbers | None:
    """What a node makes of integers that are known; None if it does something else, or if what
    it says hangs on what only data say."""
    rule = RULES.get(node.op_type) if not node.domain else None
    if rule is None:
        return None
    known = [write.known(value) for value in node.inputs if value is not None]
    given = [one for one in known if one is not None]
    if len(given) < len(known) or node.outputs[0].dtype not in WHOLE:
        return None
    try:
        found = np.asarray(rule(node, given), object)
    except _Unknown:
        return None
    return found if found.size <= FEW else None


class _Unknown(Exception):
    """A comparison that data decide."""


def _axes(node: ir.Node, given: Sequence[Numbers]) -> tuple[int, ...]:
    own = node.attributes.get_ints("axes", [])
    return tuple(int(axis) for axis in (given[1].reshape(-1) if len(given) > 1 else own))


def _least(left: Number, right: Number) -> Number:
    if isinstance(left, Count) or isinstance(right, Count):
        return Count(min(most(left), most(right)))
    return min(left, right)


def _greatest(left: Number, right: Number) -> Number:
    if isinstance(left, Count) or isinstance(right, Count):
        return Count(max(most(left), most(right)))
    return max(left, right)


def _equal(left: Number, right: Number) -> bool:
    if left is right:
        return True
    if isinstance(left, Count) or isinstance(right, Count):
        if min(left if isinstance(left, int) else 0, right if isinstance(right, int) else 0) < 0:
            return False
        raise _Unknown
    return bool(left == right)


def _sum(left: Number, right: Number) -> Number:
    if left == 0 or right == 0:
        return right if left == 0 else left
    return left + right


def _product(left: Number, right: Number) -> Number:
    if left == 1 or right == 1:
        return right if left == 1 else left
    return left * right


def _quotient(left: Number, right: Number) -> Number:
    if right == 1:
        return left
    if isinstance(left, Count) or isinstance(right, Count):
        return left // right if isinstance(left, Count) else Count(most(left))
    return int(left / right)


def _each(rule: Callable[..., Any]) -> Rule:
    return lambda _, given: np.frompyfunc(rule, len(given), 1)(*given)


def _reduced(rule: Callable[[Any, Any], Any]) -> Rule:
    def whole(node: ir.Node, given: Sequence[Numbers]) -> Any:
        if given[0].ndim != 1:
            raise _Unknown
        found = np.frompyfunc(rule, 2, 1).reduce(given[0])
        return [found] if node.attributes.get_int("keepdims", 1) else found

    return whole


def _sliced(_: ir.Node, given: Sequence[Numbers]) -> Any:
    data, *limits = given
    if any(one.size != 1 or isinstance(one.item(), Count) for one in limits) or data.ndim != 1:
        raise _Unknown
    begin, end, *rest = (int(one.item()) for one in limits)
    return data[begin : min(end, data.size) : (rest[1] if len(rest) > 1 else 1)]


def _reshaped(_: ir.Node, given: Sequence[Numbers]) -> Any:
    data, shape = given
    return data.reshape([int(extent) for extent in shape])


def _gathered(node: ir.Node, given: Sequence[Numbers]) -> Any:
    data, places = given
    return np.take(data, places.astype(np.int64), node.attributes.get_int("axis", 0))


RULES: dict[str, Rule] = {
    "Add": _each(_sum),
    "Sub": _each(lambda left, right: left if right == 0 else left - right),
    "Mul": _each(_product),
    "Div": _each(_quotient),
    "Min": _each(_least),
    "Max": _each(_greatest),
    "Equal": _each(_equal),
    "Where": _each(lambda chosen, left, right: left if chosen else right),
    "Cast": lambda _, given: given[0],
    "Identity": lambda _, given: given[0],
    "Concat": lambda node, given: np.concatenate(given, node.attributes.get_int("axis", 0)),
    "Gather": _gathered,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Squeeze": lambda node, given: np.squeeze(given[0], _axes(node, given) or None),
    "Unsqueeze": lambda node, given: np.expand_dims(given[0], _axes(node, given)),
    "ReduceMin": _reduced(_least),
    "ReduceMax": _reduced(_greatest),
    "ReduceSum": _reduced(_sum),
    "ReduceProd": _reduced(_product),
}


def shape(write: Writer, node: ir.Node) -> None:
    """Shape(x), Size(x) of a tensor whose extent data say: written number by number."""
    (source,) = node.inputs
    assert source is not None
    counted = write.counted[source]
    numbers: list[Number] = list(extents(source))
    numbers[counted.axis] = counted.there
    if node.op_type == "Size":
        others = prod(extent for extent in numbers if isinstance(extent, int))
        result = write("Mul", write.scalar(counted.there), write.scalar(others))
        write.numbers[result] = np.asarray(_product(counted.there, others), object)
    else:
        begin, end = (node.attributes.get_int(name, at) for name, at in (("start", 0), ("end", 99)))
        numbers = numbers[begin:end]
        parts = [write.reshape(write.scalar(number), 1) for number in numbers]
        result = write("Concat", *parts, axis=0)
        write.numbers[result] = np.array([*numbers, None], object)[:-1]
    write.replace(node.outputs[0], result)
