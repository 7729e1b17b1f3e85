"""Of what data say the number of, how many are read at all.

NonMaxSuppression(boxes, scores, all)[:, 2][:50]   →   no more than 50 boxes need be found
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from tvm_ext.frontend.counted import extents


def ask_for_fewer(node: ir.Node) -> None:
    """NonMaxSuppression of one class, of whose boxes only the first so many are read: the others
    need not be found."""
    rows, found = node.outputs
    scores = node.inputs[1]
    assert scores is not None
    if prod(extents(scores)[:2]) != 1:
        return
    first, end = _read(rows, 0), _end(found)
    if first is not None and end is not None:
        node.attributes["first"] = ir.AttrInt64("first", max(1, first, end))


def _end(found: ir.Value) -> int | None:
    """What a number is brought down to before anything else is done with it."""
    if found.is_graph_output():
        return None
    ends = []
    for reader, _ in found.uses():
        constants = [value.const_value for value in reader.inputs if value is not None]
        known = [int(one.numpy().item()) for one in constants if one is not None and one.size == 1]
        if reader.op_type == "Min" and known:
            ends.append(known[0])
        elif reader.op_type == "Where" and (end := _end(reader.outputs[0])) is not None:
            ends.append(end)
        else:
            return None
    return max(ends, default=0)


def _read(value: ir.Value, axis: int) -> int | None:
    """How many of the first elements along an axis are read; None if that is not told."""
    if value.is_graph_output():
        return None
    ends = []
    for reader, place in value.uses():
        end = _read_by(reader, place, value, axis)
        if end is None:
            return None
        ends.append(end)
    return max(ends, default=0)


def _read_by(reader: ir.Node, place: int, value: ir.Value, axis: int) -> int | None:
    constants = [None if one is None else one.const_value for one in reader.inputs]
    if place or reader.domain:
        return None
    (result,) = reader.outputs
    if reader.op_type == "Slice" and None not in constants[1:]:
        begins, ends, axes = (one.numpy().tolist() for one in constants[1:4] if one is not None)
        if axes == [axis]:
            return int(ends[0]) if begins == [0] and ends[0] >= 0 else None
        return _read(result, axis) if axis not in axes else None
    if reader.op_type == "Gather":
        along = reader.attributes.get_int("axis", 0)
        behind = len(extents(result)) - len(extents(value))
        return None if along == axis else _read(result, axis + behind if along < axis else axis)
    if reader.op_type in ("Cast", "Identity"):
        return _read(result, axis)
    if reader.op_type in ("Squeeze", "Reshape", "Unsqueeze"):
        shape, length = extents(result), extents(value)[axis]
        places = [at for at, extent in enumerate(shape) if extent == length]
        alone = prod(shape) == prod(extents(value)) and len(places) == 1
        alone = alone and prod(shape[: places[0]]) == prod(extents(value)[:axis])
        return _read(result, places[0]) if alone else None
    return None
