"""What operators make that say themselves which elements they take, or how many there are.

Slice(x, 0, k) along it     as many as there are, or k
Gather(x, i)                an index that means nothing is 0
ScatterND(x, i, u)          an index that means nothing is beyond the end, and left out
TopK(x, k), k counted       the best of those that are there
Expand(x, s), Range(0, n)   as much as there can be
"""

from __future__ import annotations

from math import prod
from typing import Any

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
from tvm_ext.frontend.nodes import filler_of


def sliced(write: Writer, node: ir.Node) -> None:
    """Along other axes as it is; along the counted one from the front."""
    source, *limits = node.inputs
    assert source is not None
    known = [write.known(value) for value in limits]
    if len(known) < 2 or any(one is None for one in known):
        raise Unbounded(f"Slice (node {node.name!r}) between places that data say")
    shape, counted = extents(source), write.counted.get(source)
    begins, ends, *rest = (list(one.reshape(-1)) for one in known if one is not None)
    axes = [int(axis) % len(shape) for axis in (rest[0] if rest else range(len(begins)))]
    steps = [int(step) for step in (rest[1] if len(rest) > 1 else [1] * len(axes))]
    for place, axis in enumerate(axes):
        own = counted is not None and counted.axis == axis
        if not own and not isinstance(begins[place], Count) and not isinstance(ends[place], Count):
            continue
        if (counted is not None and not own) or steps[place] != 1 or begins[place] != 0:
            raise Unbounded(f"Slice (node {node.name!r}) of what data say, not from its front")
        assert limits[1] is not None
        end = write.picked(limits[1], place)
        if isinstance(end, int) and end < 0:
            raise Unbounded(f"Slice (node {node.name!r}) up to what is counted from the end")
        counted = Counted(axis, _fewer(write, counted.there if counted else shape[axis], end))
        ends[place] = min(shape[axis], most(end))
    arguments = [write.ints(*map(int, one)) for one in (begins, ends, axes, steps)]
    write.replace(node.outputs[0], write("Slice", source, *arguments), counted)


def _fewer(write: Writer, one: Number, other: Number) -> Count:
    """The smaller number, one of which is a count."""
    if one is other or (isinstance(one, Count) and isinstance(other, int) and one.most <= other):
        assert isinstance(one, Count)
        return one
    least = min(most(one), most(other))
    return Count(least, write("Min", write.scalar(one), write.scalar(other)))


def gathered(write: Writer, node: ir.Node) -> None:
    """Indices that mean nothing are 0; those of a counted axis count from its front."""
    source, places = node.inputs
    assert source is not None
    assert places is not None
    axis = node.attributes.get_int("axis", 0) % len(extents(source))
    counted = write.counted.get(source)
    if places in write.counted:
        if counted is not None and counted.axis != axis:
            raise Unbounded(f"Gather (node {node.name!r}) of counts along two axes")
        own, count = write.counted[places]
        node.replace_input_with(1, write.masked(places))
        write.keep(node, axis + own, count)
        return
    assert counted is not None
    if counted.axis != axis:
        behind = len(extents(places)) - 1 if counted.axis > axis else 0
        write.keep(node, counted.axis + behind, counted.there)
        return
    known = write.known(places)
    if known is None or any(isinstance(one, Count) or one < 0 for one in known.reshape(-1)):
        there = write.scalar(counted.there)
        if places.dtype != ir.DataType.INT64:
            there = write("Cast", there, to=places.dtype)
        negative = write("Less", places, write.like(places, 0))
        found = write("Where", negative, write("Add", places, there), places)
        node.replace_input_with(1, found)
    write.infer(node)


def gathered_points(write: Writer, node: ir.Node) -> None:
    """GatherND, GatherElements by counted indices."""
    source, places = node.inputs
    assert places is not None
    if places not in write.counted or node.attributes.get_int("batch_dims", 0) != 0:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) of what data say the extent of")
    axis, count = write.counted[places]
    last = axis == len(extents(places)) - 1 and node.op_type == "GatherND"
    counted = write.counted.get(source) if source is not None else None
    across = node.op_type == "GatherElements" and counted is not None and counted.axis != axis
    if last or across:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) by what data say the extent of")
    node.replace_input_with(1, write.masked(places))
    write.keep(node, axis, count)


def scattered(write: Writer, node: ir.Node) -> None:
    """ScatterElements, ScatterND: what means nothing has places that there are not, which are left
    out."""
    source, places, updates = node.inputs
    assert source is not None
    assert places is not None
    counted = write.counted.get(source)
    if places not in write.counted or updates not in write.counted:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) of what data say the extent of")
    shape = extents(source)
    axis = node.attributes.get_int("axis", 0) % len(shape)
    length = shape[axis]
    along, count = write.counted[places]
    if node.op_type == "ScatterElements" and along != axis:
        if counted is None or counted.axis != along:
            raise Unbounded(f"ScatterElements (node {node.name!r}) of counts along two axes")
        node.replace_input_with(1, write.masked(places))
        write.keep(node, along, count)
        return
    named = _rows_named(write, node, shape, places) if axis == 0 else None
    if named is not None:
        assert source.dtype is not None
        target = write.reshape(write.masked(named, length), extents(named)[0])
        arguments = [source, target, updates]
        (result,) = write.counting("ScatterND", arguments, [shape], source.dtype)
    else:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        target = write.masked(places, length)
        result = write(node.op_type, source, target, updates, **attributes)
    write.replace(node.outputs[0], result, counted)


def _rows_named(
    write: Writer, node: ir.Node, shape: list[int], places: ir.Value
) -> ir.Value | None:
    """A place for each row that is written as a whole; None if more than rows are named."""
    if node.attributes.get_string("reduction", "none") != "none":
        return None
    if node.op_type == "ScatterND":
        return places if extents(places)[1:] == [1] else None
    if len(shape) == 1:
        return places if places.dtype == ir.DataType.INT64 else None
    expand = places.producer()
    if extents(places)[1:] != shape[1:] or expand is None or expand.op_type != "Expand":
        return None
    named = expand.inputs[0]
    if named is None or named not in write.counted or prod(extents(named)[1:]) != 1:
        return None
    same = len(extents(named)) == len(shape) and extents(named)[0] == extents(places)[0]
    return named if same and named.dtype == ir.DataType.INT64 else None


def _numpy(value: ir.Value) -> Any:
    assert value.dtype is not None
    return value.dtype.numpy()


def best(write: Writer, node: ir.Node) -> None:
    """TopK of those that are there, as many as data say."""
    source, wanted = node.inputs
    assert source is not None
    assert wanted is not None
    axis = node.attributes.get_int("axis", -1) % len(extents(source))
    if write.known(wanted) is None:
        raise Unbounded(f"TopK (node {node.name!r}) of as many as data say")
    count = write.picked(wanted, 0)
    counted = write.counted.get(source)
    if counted is not None and counted.axis != axis:
        if isinstance(count, Count):
            raise Unbounded(f"TopK (node {node.name!r}) of counts along two axes")
        write.keep(node, *counted)
        return
    if counted is not None:
        last = -np.inf if node.attributes.get_int("largest", 1) else np.inf
        node.replace_input_with(0, write.masked(source, neutral(source, last)))
    node.replace_input_with(1, write.ints(min(most(count), extents(source)[axis])))
    if isinstance(count, Count):
        write.keep(node, axis, count)
    else:
        write.infer(node)


def aligned(write: Writer, node: ir.Node) -> None:
    """RoiAlign: regions that mean nothing are those of no extent in the first image."""
    image, *regions = node.inputs
    if image in write.counted or any(value not in write.counted for value in regions):
        raise Unbounded(f"RoiAlign (node {node.name!r}) of what data say the number of")
    for place, value in enumerate(regions):
        assert value is not None
        node.replace_input_with(place + 1, write.masked(value))
    assert regions[0] is not None
    write.keep(node, 0, write.counted[regions[0]].there)


def sampled(write: Writer, node: ir.Node) -> None:
    """GridSample: points that mean nothing lie in the middle."""
    image, grid = node.inputs
    if image in write.counted or grid not in write.counted or grid is None:
        raise Unbounded(f"GridSample (node {node.name!r}) of what data say the extent of")
    axis, count = write.counted[grid]
    if not 0 < axis < len(extents(grid)) - 1:
        raise Unbounded(f"GridSample (node {node.name!r}) of as many images as data say")
    node.replace_input_with(1, write.masked(grid))
    write.keep(node, axis + 1, count)


def counted_up(write: Writer, node: ir.Node) -> None:
    """Range from 0 in steps of 1: as far as can be."""
    known = [write.known(value) for value in node.inputs]
    begin, _, step = (None if one is None else one.item() for one in known)
    limit = node.inputs[1]
    if begin != 0 or step != 1 or limit is None or known[1] is None:
        raise Unbounded(f"Range (node {node.name!r}) of what data say, not from 0")
    count = write.picked(limit, 0)
    steps = write.constant(np.arange(most(count), dtype=_numpy(node.outputs[0])))
    counted = Counted(0, count) if isinstance(count, Count) else None
    write.replace(node.outputs[0], steps, counted)


def shaped(write: Writer, node: ir.Node) -> None:
    """Expand, ConstantOfShape: as many elements as there can be."""
    target = node.inputs[-1]
    known = write.known(target)
    if known is None or target is None:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) to a shape that data say")
    numbers = list(known.reshape(-1))
    shape = write.ints(*map(most, numbers))
    counted = None
    if node.op_type == "ConstantOfShape":
        result = write("Expand", write.constant(filler_of(node)), shape)
    else:
        source = node.inputs[0]
        assert source is not None
        result = write("Expand", source, shape)
        if source in write.counted:
            axis, count = write.counted[source]
            counted = Counted(axis + len(extents(result)) - len(extents(source)), count)
    behind = len(extents(result)) - len(numbers)
    axes = {place + behind for place, one in enumerate(numbers) if isinstance(one, Count)}
    if len(axes | ({counted.axis} if counted else set())) != 1:
        raise Unbounded(f"{node.op_type} (node {node.name!r}) of counts along several axes")
    if counted is None:
        (axis,) = axes
        number = write.picked(target, axis - behind)
        assert isinstance(number, Count)
        counted = Counted(axis, number)
    write.replace(node.outputs[0], result, counted)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Expand", "ConstantOfShape"), shaped),
    **dict.fromkeys(("ScatterElements", "ScatterND"), scattered),
    **dict.fromkeys(("GatherND", "GatherElements"), gathered_points),
    "Gather": gathered,
    "GridSample": sampled,
    "Range": counted_up,
    "RoiAlign": aligned,
    "Slice": sliced,
    "TopK": best,
}
SHAPED = frozenset(("ConstantOfShape", "Expand", "Range", "Reshape", "Slice", "TopK"))
"""Operators that a count may tell how much to make."""
