"""What operators make of tensors of which the first so many elements along an axis are there.

Add(x, y), Cast(x), ..      the same axis; what means nothing stays so
Conv(x, w), Gemm(x, w), ..  rows are images, each by itself
Reshape, Transpose, ..      the axis goes with its elements, if those stay in their order
Gather(x, i)                an index that means nothing is 0
Concat(x, y) along it       one after another, then those that are there, taken to the front
ReduceMax(x) over it        what is not there is -inf
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.counted import (
    Count,
    Counted,
    Number,
    Rule,
    Unbounded,
    Writer,
    extents,
    most,
    neutral,
)

ELEMENTWISE = (
    "Abs Add And Cast Ceil Celu Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual",
    "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish",
    "Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign",
    "Sqrt Sub Sum Tan Tanh Where Xor",
)
ROWS = (
    "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace Gemm GlobalAveragePool",
    "GlobalMaxPool GroupNormalization InstanceNormalization MaxPool",
)
"""Operators on images, of which data may say the number."""
REGROUPING = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
NORMALISING = ("LayerNormalization", "LogSoftmax", "Softmax")
REDUCING = {
    "ArgMax": -np.inf,
    "ArgMin": np.inf,
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceLogSumExp": -np.inf,
    "ReduceProd": 1.0,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"), 0.0),
}
"""What an element that is not there is to a reduction."""


def elementwise(write: Writer, node: ir.Node) -> None:
    """Results have what their operands have, those broadcast."""
    rank = max(len(extents(value)) for value in node.inputs if value is not None)
    found: dict[int, Counted] = {}
    for place, value in enumerate(node.inputs):
        if value in write.counted:
            counted = write.counted[value]
            found[place] = Counted(counted.axis + rank - len(extents(value)), counted.there)
    axes = {counted.axis for counted in found.values()}
    if len(axes) != 1:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) of counts along two axes")
    (axis,) = axes
    lengths = {
        place: extents(value)[axis + len(extents(value)) - rank]
        for place, value in enumerate(node.inputs)
        if value is not None and axis + len(extents(value)) - rank >= 0
    }
    long = {place: length for place, length in lengths.items() if length > 1}
    least = min(long.values(), default=1)
    for place, length in long.items():  # data have them agree
        value = node.inputs[place]
        assert value is not None
        if length > least:
            own = axis + len(extents(value)) - rank
            node.replace_input_with(place, write.first(value, own, least))
    write.keep(node, axis, min((one.there for one in found.values()), key=most))


def rows(write: Writer, node: ir.Node) -> None:
    """Image by image."""
    source, *others = node.inputs
    if source not in write.counted or any(value in write.counted for value in others):
        raise Unbounded(f"{node.op_type} (node {node.name!r}) by what data say the extent of")
    axis, count = write.counted[source]
    if axis or node.attributes.get_int("transA", 0):
        raise Unbounded(f"{node.op_type} (node {node.name!r}) along what data say the extent of")
    write.keep(node, 0, count)


def product(write: Writer, node: ir.Node) -> None:
    """MatMul of counted rows, by columns that all are there."""
    left, right = node.inputs
    if left not in write.counted or right in write.counted or left is None:
        raise Unbounded(f"MatMul (node {node.name!r}) by what data say the extent of")
    axis, count = write.counted[left]
    if axis == len(extents(left)) - 1:
        raise Unbounded(f"MatMul (node {node.name!r}) along what data say the extent of")
    write.infer(node)
    write.counted[node.outputs[0]] = Counted(
        axis + len(extents(node.outputs[0])) - len(extents(left)), count
    )


def normalised(write: Writer, node: ir.Node) -> None:
    """Over other axes than the counted one, or with -inf for what is not there."""
    source = node.inputs[0]
    assert source is not None
    axis, count = write.counted[source]
    over = node.attributes.get_int("axis", -1) % len(extents(source))
    one = node.op_type != "LayerNormalization" and write.graph.opset_imports[""] >= 13
    if axis == over and one:
        node.replace_input_with(0, write.masked(source, -np.inf))
    elif axis >= over:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) over what data say the extent of")
    write.infer(node)
    write.counted[node.outputs[0]] = Counted(axis, count)


def reduced(write: Writer, node: ir.Node) -> None:
    """Over the counted axis: of those that are there; over others: row by row."""
    source = node.inputs[0]
    assert source is not None
    axis, count = write.counted[source]
    rank = len(extents(source))
    given = write.known(node.inputs[1]) if len(node.inputs) > 1 else None
    over = node.attributes.get_ints("axes", []) if given is None else given.reshape(-1)
    over = [node.attributes.get_int("axis", 0)] if node.op_type.startswith("Arg") else over
    axes = {int(one) % rank for one in over} or set(range(rank))
    kept = node.attributes.get_int("keepdims", 1)
    if axis not in axes:
        before = 0 if kept else sum(one < axis for one in axes)
        write.keep(node, axis - before, count)
        return
    filled = write.masked(source, neutral(source, REDUCING[node.op_type]))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    result = write(node.op_type, filled, *node.inputs[1:], **attributes)
    if node.op_type == "ReduceMean":  # of as many as there can be
        assert source.dtype is not None
        lengths = (write.scalar(extents(source)[axis]), write.scalar(count))
        length, there = (write("Cast", one, to=source.dtype) for one in lengths)
        result = write("Mul", result, write("Div", length, there))
    write.replace(node.outputs[0], result)


def regrouped(write: Writer, node: ir.Node) -> None:
    """A reshape, by a shape without counts."""
    source = node.inputs[0]
    assert source is not None
    counted, open_places = write.counted.get(source), None
    if node.op_type == "Reshape":
        shape, open_places = _target(write, node, source)
        node.replace_input_with(1, write.ints(*shape))
    write.infer(node)
    if counted is None:
        return
    moved = _moved(write, node, counted, source, node.outputs[0])
    if open_places is not None and moved.axis not in open_places:
        raise Unbounded(f"Reshape (node {node.name!r}) across what data say the extent of")
    write.counted[node.outputs[0]] = moved


def _target(write: Writer, node: ir.Node, source: ir.Value) -> tuple[list[int], set[int]]:
    """The shape that a `Reshape` gives a tensor of all elements, and the places in it of extents
    that are not told by a number."""
    known = write.known(node.inputs[1])
    if known is None:
        raise Unbounded(f"Reshape (node {node.name!r}) to a shape that data say")
    asked = list(known.reshape(-1))
    own = extents(source)
    axis = write.counted[source].axis if source in write.counted else -1
    places = {place for place, one in enumerate(asked) if isinstance(one, Count) or one == -1}
    if not node.attributes.get_int("allowzero", 0):
        places |= {axis} if 0 <= axis < len(asked) and asked[axis] == 0 else set()
        asked = [own[place] if one == 0 else one for place, one in enumerate(asked)]
    free = [place for place, one in enumerate(asked) if one == -1]
    free = free or [place for place, one in enumerate(asked) if isinstance(one, Count)][:1]
    shape = [most(one) for one in asked]
    for place in free:
        others = prod(extent for at, extent in enumerate(shape) if at != place)
        shape[place] = prod(own) // others if others else 0
    if prod(shape) != prod(own):
        raise Unbounded(f"Reshape (node {node.name!r}) of {own} to {shape}")
    return shape, places


def _moved(
    write: Writer, node: ir.Node, counted: Counted, source: ir.Value, result: ir.Value
) -> Counted:
    """Where the elements along a counted axis are after a reshape: alone, joined with those behind
    them, or the first of what they are cut into."""
    was, now = extents(source), extents(result)
    before, length = prod(was[: counted.axis]), was[counted.axis]
    for axis, extent in enumerate(now):
        if prod(now[:axis]) != before:
            continue
        if extent == length:
            return Counted(axis, counted.there)
        if extent % length == 0 and extent > 1:
            return Counted(axis, _times(write, counted.there, extent // length, "Mul"))
        if length % extent == 0 and extent > 1:
            return Counted(axis, _times(write, counted.there, length // extent, "Div"))
    raise Unbounded(f"{node.op_type} (node {node.name!r}) of {was} to {now}")


def _times(write: Writer, count: Count, factor: int, op: str) -> Count:
    value = write(op, write.scalar(count), write.scalar(factor))
    return Count(count.most * factor if op == "Mul" else count.most // factor, value)


def transposed(write: Writer, node: ir.Node) -> None:
    """The axis goes where it is sent."""
    source = node.inputs[0]
    assert source is not None
    axis, count = write.counted[source]
    rank = len(extents(source))
    write.keep(node, list(node.attributes.get_ints("perm", range(rank)[::-1])).index(axis), count)


def concatenated(write: Writer, node: ir.Node) -> None:
    """Along another axis as it is; along a counted one what is there comes first."""
    values = [value for value in node.inputs if value is not None]
    rank = len(extents(values[0]))
    along = node.attributes.get_int("axis", 0) % rank
    counts = [write.counted.get(value) for value in values]
    axes = {counted.axis for counted in counts if counted}
    if len(axes) > 1:
        raise Unbounded(f"Concat (node {node.name!r}) of counts along two axes")
    (axis,) = axes
    if axis != along:
        least = min(extents(value)[axis] for value in values)
        for place, value in enumerate(values):
            node.replace_input_with(place, write.first(value, axis, least))
        write.keep(node, axis, min((one.there for one in counts if one), key=most))
        return
    numbers: list[Number] = [
        counted.there if counted else extents(value)[axis]
        for counted, value in zip(counts, values, strict=True)
    ]
    lengths = [extents(value)[axis] for value in values]
    found, total = _to_front(write, numbers, lengths)
    result = write("Gather", write("Concat", *values, axis=axis), found, axis=axis)
    write.replace(node.outputs[0], result, Counted(axis, total))


def _to_front(
    write: Writer, numbers: Sequence[Number], lengths: Sequence[int]
) -> tuple[ir.Value, Count]:
    """Of pieces one after another, with the first so many elements of each there: where those are,
    and how many. Boxes, scores and classes come in the same pieces, so it is found once."""
    key = (*numbers, *lengths)
    if key not in write.fronts:
        each = [write.reshape(write.scalar(number), 1) for number in numbers]
        piece = np.repeat(np.arange(len(lengths)), lengths)
        within = np.concatenate([np.arange(length) for length in lengths])
        there = write("Gather", write("Concat", *each, axis=0), write.constant(piece), axis=0)
        alive = write("Less", write.constant(within), there)
        places, count = write.counting("NonZero", [alive], [[sum(lengths)], []])
        write.fronts[key] = (places, Count(sum(lengths), count))
    return write.fronts[key]


def split(write: Writer, node: ir.Node) -> None:
    """Along another axis than the counted one."""
    source = node.inputs[0]
    assert source is not None
    axis, count = write.counted[source]
    if node.attributes.get_int("axis", 0) % len(extents(source)) == axis:
        raise Unbounded(f"Split (node {node.name!r}) of what data say the extent of")
    write.keep(node, axis, count)


def summed_up(write: Writer, node: ir.Node) -> None:
    """CumSum: what means nothing comes last."""
    source = node.inputs[0]
    assert source is not None
    if node.attributes.get_int("reverse", 0):
        raise Unbounded(f"CumSum (node {node.name!r}) from the end of what data say")
    write.keep(node, *write.counted[source])


RULES: dict[str, Rule] = {
    **dict.fromkeys(" ".join(ELEMENTWISE).split(), elementwise),
    **dict.fromkeys(" ".join(ROWS).split(), rows),
    **dict.fromkeys(REGROUPING, regrouped),
    **dict.fromkeys(NORMALISING, normalised),
    **dict.fromkeys(REDUCING, reduced),
    "Concat": concatenated,
    "CumSum": summed_up,
    "MatMul": product,
    "Split": split,
    "Transpose": transposed,
}
