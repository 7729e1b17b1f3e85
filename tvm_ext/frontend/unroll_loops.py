"""`Loop` and `Scan` of as many turns as are known, turn by turn.

rewrite:
    h, ys = Loop(3, true, h0)           =>   h1, y1 = body(0, h0);  h2, y2 = body(1, h1);  ..
                                             ys = Concat(y1, y2, y3), each with an axis more
    h, ys = Scan(h0, xs)                =>   the same with x = xs[t] in turn t

Turns are equal, so they share their kernels, and where one hands little on to the next they are a
loop inside a kernel again (`graph/reroll_loops.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, constant_of
from tvm_ext.frontend.nodes import opset_of, own_results
from tvm_ext.frontend.recurrent import MOST_STEPS

MOST_NODES = 1 << 16
"""Of all turns together."""


def unroll_loops(graph: ir.Graph) -> bool:
    """Unrolls every loop whose turns are known, in place; whether one was."""
    changed = False
    for node in list(graph):
        loop = _read(node) if not node.domain else None
        if loop is not None and loop.turns * len(loop.body) <= MOST_NODES:
            own_results(loop.body)
            _Unrolled(graph, node, loop).write()
            changed = True
    return changed


@dataclass(frozen=True)
class _Slices:
    """What of a scan goes along an axis, from its front or its end, a turn for an element."""

    axis: int
    reverse: bool

    def place(self, turn: int, turns: int) -> int:
        return turns - 1 - turn if self.reverse else turn


@dataclass(frozen=True)
class _Loop:
    """A node as a loop: its body takes the turn and the condition if it `counts`, the states, and
    an element of each that is scanned; it gives the condition, the states, and what is stacked."""

    body: ir.Graph
    turns: int
    counts: bool
    states: tuple[ir.Value, ...]
    scanned: tuple[tuple[ir.Value, _Slices], ...]
    stacked: tuple[_Slices, ...]


def _read(node: ir.Node) -> _Loop | None:
    """The loop that a node is; None for other nodes, and where its turns are not known."""
    if node.op_type == "Loop":
        return _loop(node)
    return _scan(node) if node.op_type == "Scan" and opset_of(node) >= 9 else None


def _loop(node: ir.Node) -> _Loop | None:
    body = node.attributes["body"].as_graph()
    limit, start, *states = node.inputs
    turns = None if limit is None else constant_of(limit)
    begins = start is None or _is_true(start)
    if turns is None or not begins or not _goes_on(body) or None in states:
        return None
    stacked = len(body.outputs) - 1 - len(states)
    count = int(turns.item())
    if not 0 < count <= MOST_STEPS:
        return None
    given = tuple(state for state in states if state is not None)
    return _Loop(body, count, True, given, (), (_Slices(0, False),) * stacked)


def _goes_on(body: ir.Graph) -> bool:
    """Whether a loop's condition stays what it is before the first turn, or is always true."""
    condition: ir.Value | None = body.outputs[0]
    while condition is not None:
        if condition is body.inputs[1] or _is_true(condition):
            return True
        maker = condition.producer()
        condition = maker.inputs[0] if maker is not None and maker.op_type == "Identity" else None
    return False


def _is_true(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and bool(tensor.numpy().all())


def _scan(node: ir.Node) -> _Loop | None:
    body = node.attributes["body"].as_graph()
    count = node.attributes.get_int("num_scan_inputs", 0)
    values = [value for value in node.inputs if value is not None]
    if not 0 < count <= len(values) or len(values) < len(node.inputs):
        return None
    states, scanned = values[:-count], values[-count:]
    inputs = _slices(node, "scan_input", count)
    outputs = _slices(node, "scan_output", len(body.outputs) - len(states))
    turns = {_extent(value, one.axis) for value, one in zip(scanned, inputs, strict=True)}
    if len(turns) != 1:
        return None
    (known,) = turns
    if known is None or not 0 < known <= MOST_STEPS:
        return None
    pairs = tuple(zip(scanned, inputs, strict=True))
    return _Loop(body, known, False, tuple(states), pairs, outputs)


def _slices(node: ir.Node, what: str, count: int) -> tuple[_Slices, ...]:
    axes = node.attributes.get_ints(f"{what}_axes", [0] * count)
    turned = node.attributes.get_ints(f"{what}_directions", [0] * count)
    return tuple(_Slices(axis, bool(way)) for axis, way in zip(axes, turned, strict=True))


def _extent(value: ir.Value, axis: int) -> int | None:
    extent = value.shape[axis] if value.shape is not None else None
    return extent if isinstance(extent, int) else None


class _Unrolled:
    """A loop's turns, written before its node."""

    def __init__(self, graph: ir.Graph, node: ir.Node, loop: _Loop) -> None:
        self._graph, self._node, self._loop = graph, node, loop

    def write(self) -> None:
        """All of them, in the place of the node."""
        loop, states = self._loop, list(self._loop.states)
        stacks: list[list[ir.Value]] = [[] for _ in loop.stacked]
        for turn in range(loop.turns):
            states, made = self._turn(turn, states)
            for stack, value in zip(stacks, made, strict=True):
                stack.append(value)
        whole = [
            self._stacked(stack, way, place)
            for place, (stack, way) in enumerate(zip(stacks, loop.stacked, strict=True))
        ]
        for old, new in zip(self._node.outputs, [*states, *whole], strict=True):
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self._graph.remove(self._node, safe=True)

    def _turn(self, turn: int, states: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        """The states after a turn, and what it adds to each stack."""
        loop = self._loop
        body = loop.body.clone(allow_outer_scope_values=True)
        given = list(states)
        if loop.counts:
            given = [self._constant(np.int64(turn)), self._constant(np.array(True)), *given]
        for source, way in loop.scanned:
            place = self._constant(np.int64(way.place(turn, loop.turns)))
            given.append(self._add("Gather", [source, place], f"{turn}", axis=way.axis))
        results = list(body.outputs)
        body.outputs.clear()
        instead: dict[ir.Value, ir.Value] = {}
        for constant in list(body.initializers.values()):
            assert constant.const_value is not None
            instead[constant] = self._constant(constant.const_value.numpy())
        instead |= dict(zip(body.inputs, given, strict=True))
        for old, new in instead.items():
            ir.convenience.replace_all_uses_with(old, new)
        for inner in list(body):
            body.remove(inner)
            inner.name = f"{self._node.name}/{turn}/{inner.name}"
            for value in inner.outputs:
                value.name = f"{self._node.name}/{turn}/{value.name}"
            self._graph.insert_before(self._node, inner)
        made = [instead.get(value, value) for value in results][loop.counts :]
        return made[: len(states)], made[len(states) :]

    def _stacked(self, values: list[ir.Value], way: _Slices, place: int) -> ir.Value:
        """What all turns have made, along an axis of its own."""
        axis = self._constant(np.array([way.axis], np.int64))
        alone = []
        for turn, value in enumerate(values):
            name = f"{place}_{turn}"
            if opset_of(self._node) < 13:
                alone.append(self._add("Unsqueeze", [value], name, axes=[way.axis]))
            else:
                alone.append(self._add("Unsqueeze", [value, axis], name))
        if way.reverse:
            alone.reverse()
        return self._add("Concat", alone, f"{place}", axis=way.axis)

    def _add(
        self, op: str, inputs: Sequence[ir.Value], name: str, **attributes: object
    ) -> ir.Value:
        full = f"{self._node.name}/{op}_{name}"
        node = ir.node(op, list(inputs), attributes=attributes, name=full)
        node.outputs[0].name = f"{full}_out"
        self._graph.insert_before(self._node, node)
        return node.outputs[0]

    def _constant(self, array: np.ndarray | np.generic) -> ir.Value:
        name = f"{self._node.name}/constant"
        return add_initialiser(self._graph, name, np.asarray(array))
