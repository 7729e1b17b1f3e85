"""Extents that data say, bounded: a graph of which all tensors have as many rows as there can be.

    NonZero(x[100])               [1, n]      →  [1, 100] and n
    Gather(boxes, those)          [n, 4]      →  [100, 4] and n
    NonMaxSuppression(..)         [m, 3]      →  [classes * most, 3] and m
    Concat(boxes, others)         [n + k, 4]  →  [200, 4] and n + k, those that are there first
    the graph's output            [n, 4]      =  the first n of 100

So kernels, plans and memory are those of static shapes, and only what leaves the graph is cut. XLA
calls it bounded dynamism and has a pass that pads (`DynamicPadder`). An `If` becomes both of its
branches and a choice, since either means nothing where it is not taken.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend import counted_places, counted_rules
from tvm_ext.frontend.counted import DOMAIN, Count, Counted, Unbounded, Writer, extents, most
from tvm_ext.frontend.counted_demand import ask_for_fewer
from tvm_ext.frontend.counted_numbers import numbers_of, shape
from tvm_ext.frontend.counted_places import SHAPED

SOURCES = ("NonMaxSuppression", "NonZero")
BRANCHES = ("then_branch", "else_branch")
RULES = counted_rules.RULES | counted_places.RULES


def has_counts(model: ir.Model) -> bool:
    """Whether a model has operators of which data say how much they find."""
    return any(node.op_type in SOURCES and not node.domain for node in model.graph.all_nodes())


def bound_counts(model: ir.Model) -> None:
    """Bounds all extents that data say, in place.

    Raises Unbounded: an operator is not read, or one of its extents has no bound.
    """
    model.graph.opset_imports[DOMAIN] = 1
    walk = _Walk(Writer(model.graph))
    for node in list(model.graph):
        walk.visit(node)
    walk.cut_outputs()
    for node in model.graph:
        if node.domain == DOMAIN and node.op_type == "NonMaxSuppression":
            ask_for_fewer(node)


class _Walk:
    """Goes through a graph, each node after what it reads."""

    def __init__(self, write: Writer) -> None:
        self._write = write

    def visit(self, node: ir.Node) -> None:
        """Writes a node anew, or gives it the shapes that it has now."""
        write = self._write
        write.here = node
        numbered = any(value in write.numbers for value in node.inputs)
        for place, value in enumerate(node.inputs):
            if value is not None and (settled := write.settled(value)) is not None:
                node.replace_input_with(place, settled)
        inputs = [value for value in node.inputs if value is not None]
        counted = any(value in write.counted for value in inputs)
        if node.op_type == "Constant":
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            assert tensor is not None
            write.replace(node.outputs[0], write.constant(tensor.numpy()))
        elif node.op_type == "If":
            if self._concerned(node):
                self._choose(node)
        elif node.op_type == "NonZero":
            _non_zero(write, node)
        elif node.op_type == "NonMaxSuppression":
            _non_max(write, node)
        elif node.op_type in ("Shape", "Size") and counted:
            shape(write, node)
        elif counted or (node.op_type in SHAPED and any(v in write.numbers for v in inputs)):
            self._by_rule(node)
        elif numbered:
            if not self._by_number(node):
                write.infer(node)
        elif not all(value.shape is not None and value.shape.is_static() for value in node.outputs):
            write.infer(node)

    def _by_number(self, node: ir.Node) -> bool:
        """Gives the result its numbers, if they can be told; whether they can."""
        if node.op_type not in SHAPED:
            self._write.infer(node)
        numbers = numbers_of(self._write, node)
        if numbers is not None:
            self._write.infer(node)
            self._write.numbers[node.outputs[0]] = numbers
        return numbers is not None

    def _by_rule(self, node: ir.Node) -> None:
        own = any(value in self._write.counted for value in node.inputs)
        if not own and self._by_number(node):
            return
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule is None:
            raise Unbounded(f"{node.op_type} (node {node.name!r}) of what data say the extent of")
        rule(self._write, node)

    def _concerned(self, node: ir.Node) -> bool:
        """Whether the branches of an `If` have to do with what data say the number of, or make
        results of different shapes."""
        write = self._write
        branches = [node.attributes[name].as_graph() for name in BRANCHES]
        inner = [one for branch in branches for one in branch.all_nodes()]
        read = {value for one in inner for value in one.inputs}
        read |= {value for branch in branches for value in branch.outputs}
        shapes = [[value.shape for value in branch.outputs] for branch in branches]
        static = all(shape is not None and shape.is_static() for row in shapes for shape in row)
        return (
            not static
            or shapes[0] != shapes[1]
            or any(one.op_type in SOURCES for one in inner)
            or any(value in write.counted or value in write.numbers for value in read)
        )

    def _choose(self, node: ir.Node) -> None:
        """If: what both branches make, and of each result the one that is asked for."""
        write = self._write
        chosen = node.inputs[0]
        assert chosen is not None
        made = []
        for name in BRANCHES:
            branch = node.attributes[name].as_graph()
            results = list(branch.outputs)
            branch.outputs.clear()
            for constant in list(branch.initializers.values()):
                assert constant.const_value is not None
                write.replace(constant, write.constant(constant.const_value.numpy()))
            for inner in list(branch):
                branch.remove(inner)
                write.graph.insert_before(node, inner)
                self.visit(inner)
            made.append([write.now(value) for value in results])
        write.here = node
        for result, one, other in zip(node.outputs, *made, strict=True):
            _join(write, node, chosen, result, one, other)
        for name in BRANCHES:
            node.attributes.pop(name)

    def cut_outputs(self) -> None:
        """What leaves the graph is as long as data say."""
        write = self._write
        for place, value in enumerate(write.graph.outputs):
            if value in write.counted:
                write.graph.outputs[place] = self._cut(value, *write.counted[value])

    def _cut(self, value: ir.Value, axis: int, there: Count) -> ir.Value:
        """The first elements, of the outermost axis: that costs nothing."""
        rank = len(extents(value))
        order = [axis, *(other for other in range(rank) if other != axis)]
        if prod(extents(value)[:axis]) != 1:
            turned = self._append("Transpose", [value], value, perm=order)
            cut = self._cut(turned, 0, there)
            back = [order.index(place) for place in range(rank)]
            return self._append("Transpose", [cut], value, perm=back)
        end = self._append("Reshape", [there.value, self._write.ints(1)], there.value)
        return self._append(
            "Slice", [value, self._write.ints(0), end, self._write.ints(axis)], value
        )

    def _append(
        self, op: str, inputs: list[ir.Value | None], like: ir.Value | None, **attributes: object
    ) -> ir.Value:
        """One more node at the end of the graph; its result is of a type with another value."""
        assert like is not None
        name = f"{like.name}/cut_{len(self._write.graph)}"
        node = ir.node(op, inputs, attributes=attributes, name=name)
        (result,) = node.outputs
        result.name, result.type = name, like.type
        if op == "Transpose":
            assert like.shape is not None
            result.shape = ir.Shape(
                [like.shape[axis] for axis in node.attributes["perm"].as_ints()]
            )
        self._write.graph.append(node)
        return result


def _join(
    write: Writer, node: ir.Node, chosen: ir.Value, result: ir.Value, one: ir.Value, other: ir.Value
) -> None:
    """A result of both branches, of the longer one's extent."""
    both = [one, other]
    counts = [write.counted.get(value) for value in both]
    axes = {counted.axis for counted in counts if counted}
    shapes = [extents(value) for value in both]
    axes |= {axis for axis, pair in enumerate(zip(*shapes, strict=False)) if len(set(pair)) > 1}
    if len(shapes[0]) != len(shapes[1]) or len(axes) > 1:
        raise Unbounded(f"If (node {node.name!r}) of results that differ along several axes")
    if not axes:
        write.replace(result, write("Where", chosen, *both))
        return
    (axis,) = axes
    length = max(shape[axis] for shape in shapes)
    filled = [_filled(write, value, axis, length) for value in both]
    there = [value for value in filled if value is not None]
    numbers = [
        write.scalar(counted.there if counted else shape[axis])
        for counted, shape in zip(counts, shapes, strict=True)
    ]
    value = there[0] if len(there) == 1 else write("Where", chosen, *there)
    count = Count(length, write("Where", chosen, *numbers))
    write.replace(result, value, Counted(axis, count))


def _filled(write: Writer, value: ir.Value, axis: int, length: int) -> ir.Value | None:
    """A value of so many elements along an axis; None of one that has none."""
    own = extents(value)
    if own[axis] in (0, length):
        return value if own[axis] else None
    own[axis] = length - own[axis]
    assert value.dtype is not None
    return write("Concat", value, write.constant(np.zeros(own, value.dtype.numpy())), axis=axis)


def _non_zero(write: Writer, node: ir.Node) -> None:
    """NonZero of any number of dimensions, by that of one."""
    (source,) = node.inputs
    assert source is not None
    if source.dtype != ir.DataType.BOOL:
        alive = write("Not", write("Equal", source, write.like(source, 0)))
        if source in write.counted:
            write.counted[alive] = write.counted[source]
        source = alive
    extent = extents(source)
    length = prod(extent)
    flat = write.reshape(write.masked(source), length)
    places, found = write.counting("NonZero", [flat], [[length], []])
    rows = []
    for axis, along in enumerate(extent or [1]):
        stride = prod(extent[axis + 1 :])
        row = places if stride == 1 else write("Div", places, write.scalar(stride))
        row = row if axis == 0 else write("Mod", row, write.scalar(along))
        rows.append(write.reshape(row, 1, length))
    result = rows[0] if len(rows) == 1 else write("Concat", *rows, axis=0)
    write.replace(node.outputs[0], result, Counted(1, Count(length, found)))


def _non_max(write: Writer, node: ir.Node) -> None:
    """NonMaxSuppression: boxes that are not there have the least score there is."""
    boxes, scores, *limits = node.inputs
    assert boxes is not None
    assert scores is not None
    if scores in write.counted and write.counted[scores].axis != 2:
        raise Unbounded(f"NonMaxSuppression (node {node.name!r}) of images that data say")
    known = [write.known(value) for value in limits[:1]]
    if any(one is None or isinstance(one.item(), Count) for one in known):
        raise Unbounded(f"NonMaxSuppression (node {node.name!r}) of as many as data say")
    wanted = most(known[0].item()) if known and known[0] is not None else 0
    images, classes, length = extents(scores)
    rows = images * classes * max(1, min(wanted, length))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    arguments = [boxes, write.masked(scores, -np.inf), *limits]
    result, found = write.counting("NonMaxSuppression", arguments, [[rows, 3], []], **attributes)
    write.replace(node.outputs[0], result, Counted(0, Count(rows, found)))
