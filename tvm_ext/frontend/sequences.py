"""Sequences of tensors: while a model is read it is known which tensors they hold.

rewrite:
    ConcatFromSequence(SequenceInsert(SequenceConstruct(x, y), z))   =>  Concat(x, y, z)
    SequenceAt(SplitToSequence(x, 2), 1)                             =>  the second of Split(x)
    SequenceLength(SequenceConstruct(x, y))                          =>  2

They are lists of the program that was exported: pieces of a tensor, what a loop collects. A loop
over them (`SequenceMap`) has as many turns as they have members, and goes as they do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, constant_of, int_of
from tvm_ext.frontend.nodes import opset_of

AXES_ARE_INPUTS = 13
"""The operator set from which on `Split` and `Unsqueeze` read their numbers as tensors."""
PASSED_ON = ("Identity", "Optional", "OptionalGetElement")
MAKE = (
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SplitToSequence",
    *PASSED_ON,
)
READ = ("ConcatFromSequence", "SequenceAt", "SequenceLength")
Members = tuple[ir.Value, ...]


def resolve_sequences(graph: ir.Graph) -> bool:
    """Has the readers of sequences read the tensors in them, in place; whether one did.

    A sequence stays that data choose from, or that is a result of the model.
    """
    known: dict[ir.Value, Members] = {}
    resolved = False
    for node in list(graph):
        if node.domain:
            continue
        if node.op_type in MAKE:
            members = _members(graph, node, known)
            if members is not None:
                known[node.outputs[0]] = members
        elif node.op_type in READ and node.inputs[0] in known:
            resolved |= _read(graph, node, known[node.inputs[0]])
    return resolved


def _members(graph: ir.Graph, node: ir.Node, known: dict[ir.Value, Members]) -> Members | None:
    """The tensors in the sequence that a node makes; None if that is not known."""
    values = [value for value in node.inputs if value is not None]
    if node.op_type == "SequenceEmpty":
        return ()
    if node.op_type == "SequenceConstruct":
        return tuple(values)
    if node.op_type == "SplitToSequence":
        return _parts(graph, node, values)
    before = known.get(values[0]) if values else None
    if before is None or node.op_type in PASSED_ON:
        return before
    changed = list(before)
    if node.op_type == "SequenceInsert":
        place = _place(values[2], before) if len(values) > 2 else len(before)
        if place is not None:
            changed.insert(place, values[1])
    else:
        place = _place(values[1], before) if len(values) > 1 else len(before) - 1
        if place is not None and 0 <= place < len(before):
            del changed[place]
    return None if changed == list(before) else tuple(changed)


def _place(index: ir.Value, members: Members) -> int | None:
    """The place that a constant names, from the front or, below zero, from the end; the last is
    behind all members."""
    array = constant_of(index)
    if array is None:
        return None
    place = int(array.item())
    place += len(members) if place < 0 else 0
    return place if 0 <= place <= len(members) else None


def _parts(graph: ir.Graph, node: ir.Node, values: list[ir.Value]) -> Members | None:
    """A tensor in pieces: of given extents, of one extent for all but the last, or single rows."""
    whole, given = values[0], None
    if whole.shape is None:
        return None
    axis = int_of(node, "axis", 0)
    axis += len(whole.shape) if axis < 0 else 0
    extent = whole.shape[axis]
    if len(values) > 1:
        given = constant_of(values[1])
        if given is None:
            return None
    if given is not None and given.ndim:
        sizes = [int(size) for size in given]
    elif isinstance(extent, int):
        step = 1 if given is None else int(given.item())
        sizes = [min(step, extent - first) for first in range(0, extent, step)] if step > 0 else []
    else:
        return None
    if not sizes:
        return None
    name = node.outputs[0].name
    if opset_of(node) < AXES_ARE_INPUTS:
        split = ir.node("Split", [whole], {"axis": axis, "split": sizes}, num_outputs=len(sizes))
    else:
        lengths = add_initialiser(graph, f"{name}_split", np.array(sizes, np.int64))
        split = ir.node("Split", [whole, lengths], {"axis": axis}, num_outputs=len(sizes))
    for place, part in enumerate(split.outputs):
        part.name = f"{name}_{place}"
    split.name = f"{name}/parts"
    graph.insert_before(node, split)
    if given is not None or int_of(node, "keepdims", 1):
        return tuple(split.outputs)
    return tuple(_with_axis(graph, node, "Squeeze", part, axis) for part in split.outputs)


def _with_axis(graph: ir.Graph, before: ir.Node, kind: str, value: ir.Value, axis: int) -> ir.Value:
    """A tensor with an axis of one more or less."""
    name = f"{before.outputs[0].name}_{kind}_of_{value.name}"
    if opset_of(before) < AXES_ARE_INPUTS:
        node = ir.node(kind, [value], {"axes": [axis]}, name=name)
    else:
        axes = add_initialiser(graph, f"{name}_axes", np.array([axis], np.int64))
        node = ir.node(kind, [value, axes], name=name)
    node.outputs[0].name = name
    graph.insert_before(before, node)
    return node.outputs[0]


def _read(graph: ir.Graph, node: ir.Node, members: Members) -> bool:
    """Has what reads a sequence read its tensors; whether it is known which of them."""
    old = node.outputs[0]
    if node.op_type == "SequenceLength":
        new = add_initialiser(graph, f"{old.name}_known", np.array(len(members), np.int64))
    elif node.op_type == "SequenceAt":
        index = node.inputs[1]
        place = None if index is None else _place(index, members)
        if place is None or place == len(members):
            return False
        new = members[place]
    elif members:
        new = _joined(graph, node, members)
    else:
        return False
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return True


def _joined(graph: ir.Graph, node: ir.Node, members: Sequence[ir.Value]) -> ir.Value:
    axis = int_of(node, "axis", 0)
    if int_of(node, "new_axis", 0):
        alone = {one: _with_axis(graph, node, "Unsqueeze", one, axis) for one in set(members)}
        members = [alone[one] for one in members]
    joined = ir.node("Concat", list(members), {"axis": axis}, name=f"{node.name}/joined")
    graph.insert_before(node, joined)
    joined.outputs[0].name = f"{node.outputs[0].name}_joined"
    return joined.outputs[0]
