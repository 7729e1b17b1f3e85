"""`LSTM`, `GRU` and `RNN` unrolled, step by step, into products and element-wise operators.

rewrite:
    Y = LSTM(X, W, R, B)  =>  p = X W^T + b                        all steps at once
                              for each step t:
                                  i, o, f, c = split(p[t] + h R^T)
                                  C = sigmoid(f) * C + sigmoid(i) * tanh(c)
                                  h = sigmoid(o) * tanh(C)
                              Y = concat(every h)

Steps are equal, so they share their kernels: a long sequence takes longer to import, hardly to
compile. Where sequences of a batch have lengths of their own, which data may say, a step keeps the
state of those that it is not a part of, and writes zeros for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser
from tvm_ext.frontend.recurrent import GATES, Layer, read_layer

Step = Callable[[ir.Value, ir.Value, ir.Value], tuple[ir.Value, ir.Value]]
"""From what the inputs give a step, the state and the cell to both of them after it."""
FEW = 8
"""Elements of constants that are looked for among those there are."""
JOINT_BYTES = 1 << 20
"""What the weights of the state take at most in two directions that are computed side by side: each
core then keeps those of one direction in its cache, where it kept half of one after another's."""


def unroll(graph: ir.Graph) -> bool:
    """Unrolls every recurrent node of known shapes and weights, in place; whether one was."""
    changed = False
    for node in list(graph):
        layer = read_layer(node)
        if layer is None:
            continue
        writer = _Writer(graph, node)
        for old, new in zip(node.outputs, _Unrolled(layer, writer).outputs(), strict=False):
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        changed = True
    return changed


class _Writer:
    """Writes operators in front of a node."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph, self._before = graph, node
        self._count = 0
        self._known: dict[tuple[object, ...], ir.Value] = {}

    def __call__(self, op: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        """Adds an operator; its result."""
        self._count += 1
        name = f"{self._before.name}/{op}{self._count}"
        node = ir.node(op, list(inputs), attributes=attributes, name=name)
        node.outputs[0].name = f"{name}_out"
        self._graph.insert_before(self._before, node)
        return node.outputs[0]

    def constant(self, array: np.ndarray) -> ir.Value:
        """Adds a constant; of few elements, or finds an equal one."""
        few = array.size <= FEW
        key = (str(array.dtype), array.shape, array.tobytes() if few else len(self._known))
        if key not in self._known:
            name = f"{self._before.name}/constant{len(self._known)}"
            self._known[key] = add_initialiser(self._graph, name, array)
        return self._known[key]

    def part(self, x: ir.Value, axis: int, start: int, end: int) -> ir.Value:
        """A slice along one axis."""
        places = (start, end, axis)
        return self("Slice", x, *(self.constant(np.array([p], np.int64)) for p in places))

    def shaped(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """A reshape."""
        return self("Reshape", x, self.constant(np.array(shape, np.int64)))


@dataclass(frozen=True)
class _Unrolled:
    """A layer as operators."""

    layer: Layer
    write: _Writer

    def outputs(self) -> list[ir.Value]:
        """All outputs of the node."""
        w, layer = self.write, self.layer
        x = w("Transpose", layer.x, perm=[1, 0, 2]) if layer.batch_first else layer.x
        if self._joint:
            outputs = list(_Run(layer, w, tuple(range(len(layer.reverse)))).outputs(x))
        else:
            runs = [_Run(layer, w, (place,)).outputs(x) for place in range(len(layer.reverse))]
            outputs = [
                parts[0] if len(parts) == 1 else w("Concat", *parts, axis=axis)
                for parts, axis in zip(zip(*runs, strict=True), (1, 0, 0), strict=False)
            ]
        if layer.batch_first:
            y, *last = outputs
            turned = [w("Transpose", state, perm=[1, 0, 2]) for state in last]
            outputs = [w("Transpose", y, perm=[2, 0, 1, 3]), *turned]
        return outputs

    @property
    def _joint(self) -> bool:
        """Whether steps of both directions are computed side by side: half as many kernels."""
        layer = self.layer
        return (
            len(layer.reverse) > 1
            and layer.steps > 1
            and len(set(layer.activations)) == 1
            and layer.recurrent.nbytes <= JOINT_BYTES
        )


@dataclass(frozen=True)
class _Run:
    """One direction of a layer, or both side by side: a step is of the first step in one of them
    and of the last in the other."""

    layer: Layer
    write: _Writer
    places: tuple[int, ...]
    """Its directions."""

    def outputs(self, x: ir.Value) -> tuple[ir.Value, ...]:
        """States [steps, directions, batch, hidden], the last ones, the last cells."""
        w, layer = self.write, self.layer
        ways, size = len(self.places), GATES[layer.op] * layer.hidden
        projected = self._projected(x)
        state, cell = (self._start(value) for value in layer.starts)
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[layer.op]()
        states = [state] * layer.steps
        order = range(layer.steps)
        alone = ways == 1 and layer.reverse[self.places[0]]
        within = None if layer.lengths is None else self._within(layer.lengths)

        def at(values: ir.Value, t: int) -> ir.Value:
            if layer.steps == 1:
                return values
            # an index is an operand, and the kernel the same for all
            return w("Gather", values, w.constant(np.array([t], np.int64)), axis=0)

        for t in reversed(order) if alone else order:
            given = at(projected, t)
            if ways > 1:
                given = w.shaped(given, (ways, layer.batch, size))
            before, held = state, cell
            state, cell = step(given, state, cell)
            states[t] = state
            if within is not None:
                part = w.shaped(at(within, t), (ways, layer.batch, 1))
                states[t] = w("Where", part, state, self._number(0))
                state = w("Where", part, state, before)
                cell = w("Where", part, cell, held) if layer.op == "LSTM" else cell
        y = states[0] if layer.steps == 1 else w("Concat", *states, axis=0)
        y = w.shaped(y, (layer.steps, ways, layer.batch, layer.hidden))
        if ways > 1:
            parts = [w.part(y, 1, place, place + 1) for place in self.places]
            y = w("Concat", *map(self._in_order, parts, self.places), axis=1)
        return (y, state, cell) if layer.op == "LSTM" else (y, state)

    def _within(self, lengths: ir.Value) -> ir.Value:
        """Whether each step is one of each sequence, [steps, directions, batch, 1]."""
        w, count = self.write, self.layer.steps
        joint = len(self.places) > 1
        times = [
            np.arange(count)[:: -1 if joint and self.layer.reverse[place] else 1]
            for place in self.places
        ]
        places = np.stack(times, axis=1)[..., np.newaxis, np.newaxis].astype(np.int32)
        return w("Less", w.constant(places), w.shaped(lengths, (1, 1, self.layer.batch, 1)))

    def _projected(self, x: ir.Value) -> ir.Value:
        """The inputs' products [steps, directions * batch, gates * hidden], in the order in which
        steps are computed if those of several directions are."""
        w, found = self.write, []
        for place in self.places:
            seen = self._in_order(x, place) if len(self.places) > 1 else x
            product = w("MatMul", seen, self._matrix([self.layer.weights[place]]))
            own = self._input_bias(place)
            found.append(w("Add", product, w.constant(own)) if own.any() else product)
        return found[0] if len(found) == 1 else w("Concat", *found, axis=1)

    def _in_order(self, x: ir.Value, place: int) -> ir.Value:
        """Steps in the order of a direction; from that order back."""
        if not self.layer.reverse[place]:
            return x
        order = np.arange(self.layer.steps, dtype=np.int64)[::-1].copy()
        return self.write("Gather", x, self.write.constant(order), axis=0)

    def _input_bias(self, place: int) -> np.ndarray:
        """What is added to the inputs' product: both biases, but for the one that a GRU resets."""
        layer = self.layer
        size = GATES[layer.op] * layer.hidden
        own, other = layer.bias[place][:size].copy(), layer.bias[place][size:]
        last = size - layer.hidden if layer.op == "GRU" and layer.after else size
        own[:last] += other[:last]
        return own

    def _start(self, value: ir.Value | None) -> ir.Value:
        w, layer = self.write, self.layer
        if value is None:
            shape = (len(self.places), layer.batch, layer.hidden)
            return w.constant(np.zeros(shape, layer.weights.dtype))
        if layer.batch_first:
            value = w("Transpose", value, perm=[1, 0, 2])
        if len(self.places) == len(layer.reverse):
            return value
        return w.part(value, 0, self.places[0], self.places[0] + 1)

    def _matrix(self, rows: Sequence[np.ndarray]) -> ir.Value:
        """What a state is multiplied by, of each direction one."""
        turned = [np.ascontiguousarray(one.T) for one in rows]
        return self.write.constant(turned[0] if len(turned) == 1 else np.stack(turned))

    def _row(self, rows: Sequence[np.ndarray]) -> ir.Value:
        """What is added to each row, or multiplied by it, of each direction one."""
        alone = len(rows) == 1
        return self.write.constant(rows[0].copy() if alone else np.stack(rows)[:, np.newaxis])

    def _own(self, arrays: np.ndarray) -> list[np.ndarray]:
        """Those of the directions."""
        return [arrays[place] for place in self.places]

    def _number(self, value: float) -> ir.Value:
        return self.write.constant(np.array(value, self.layer.weights.dtype))

    def _gate(self, x: ir.Value, number: int) -> ir.Value:
        size = self.layer.hidden
        return self.write.part(x, 2, number * size, (number + 1) * size)

    def _active(self, x: ir.Value, number: int, clipped: bool = True) -> ir.Value:
        """An activation."""
        clip = self.layer.clip
        if clipped and clip is not None:
            x = self.write("Clip", x, self._number(-clip), self._number(clip))
        return self.write(self.layer.activations[self.places[0]][number], x)

    def _rnn(self) -> Step:
        w, whole = self.write, self._matrix(self._own(self.layer.recurrent))

        def step(x: ir.Value, h: ir.Value, c: ir.Value) -> tuple[ir.Value, ir.Value]:
            return self._active(w("Add", w("MatMul", h, whole), x), 0), c

        return step

    def _gru(self) -> Step:
        w, layer, size = self.write, self.layer, self.layer.hidden
        rows, one = self._own(layer.recurrent), self._number(1)
        gates = self._matrix(rows if layer.after else [own[: 2 * size] for own in rows])
        new = None if layer.after else self._matrix([own[2 * size :] for own in rows])
        bias = self._row([own[5 * size :] for own in self._own(layer.bias)])

        def gate(x: ir.Value, product: ir.Value, number: int) -> ir.Value:
            both = w("Add", self._gate(x, number), self._gate(product, number))
            return self._active(both, 0)

        def step(x: ir.Value, h: ir.Value, c: ir.Value) -> tuple[ir.Value, ir.Value]:
            product = w("MatMul", h, gates)
            z, r = gate(x, product, 0), gate(x, product, 1)
            if new is None:
                reset = w("Mul", r, w("Add", self._gate(product, 2), bias))
            else:
                reset = w("MatMul", w("Mul", r, h), new)
            fresh = self._active(w("Add", self._gate(x, 2), reset), 1)
            return w("Add", w("Mul", w("Sub", one, z), fresh), w("Mul", z, h)), c

        return step

    def _lstm(self) -> Step:
        w, layer = self.write, self.layer
        whole, one = self._matrix(self._own(layer.recurrent)), self._number(1)
        peeps: list[ir.Value] = []
        if layer.peepholes is not None:
            rows = [own.reshape(3, layer.hidden) for own in self._own(layer.peepholes)]
            peeps = [self._row([own[gate] for own in rows]) for gate in range(3)]

        def step(x: ir.Value, h: ir.Value, c: ir.Value) -> tuple[ir.Value, ir.Value]:
            sums = w("Add", w("MatMul", h, whole), x)
            i, o, f, g = (self._gate(sums, number) for number in range(4))
            if peeps:
                i, f = w("Add", i, w("Mul", peeps[0], c)), w("Add", f, w("Mul", peeps[2], c))
            i = self._active(i, 0)
            f = w("Sub", one, i) if layer.coupled else self._active(f, 0)
            c = w("Add", w("Mul", f, c), w("Mul", i, self._active(g, 1)))
            if peeps:
                o = w("Add", o, w("Mul", peeps[1], c))
            seen = self._active(c, 2, clipped=False)
            return w("Mul", self._active(o, 0), seen), c

        return step
