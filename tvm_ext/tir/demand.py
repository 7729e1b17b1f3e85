"""Elements of a program's stages on demand: each reduction only where it is read, and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product, zip_longest
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.tir.evaluate import Array, Value, apply, constant, is_float, numpy_dtype, unit_roundoff
from tvm_ext.tir.expression import Node, topological
from tvm_ext.tir.stages import Program, Source, Stage

POINTS_PER_CHUNK = 2048
CHUNK_BYTES = 1 << 25
CHUNK_ELEMENTS = 1 << 16


class Order:
    """The nodes of a stage in evaluation order, split by what they change with.

    `once` for the points alone, `boxes` with the reduction as well, `steps` with a fold's state;
    `sliced` are the `boxes` that a fold reads step by step. `together`: several loads of `once`
    whose places no data say, by the stage that they read. `elements`: how large a chunk of the
    domain may be. `step_cost`: multiply-adds of one iteration, a special function being one.
    """

    def __init__(self, stage: Stage) -> None:
        moving = {var for var, _ in stage.reduce}
        folding: set[Node] = set()
        self.once: list[Node] = []
        self.boxes: list[Node] = []
        self.steps: list[Node] = []
        for node in topological((*stage.init, *stage.update)):
            if node.op == "state" or not folding.isdisjoint(node.args):
                folding.add(node)
                self.steps.append(node)
            elif node in moving or not moving.isdisjoint(node.args):
                moving.add(node)
                self.boxes.append(node)
            else:
                self.once.append(node)
        told: dict[int, list[Node]] = {}
        for node in self.once:
            staged = node.op == "load" and node.data.kind == "stage"
            if staged and not any(arg.dynamic for arg in node.args):
                told.setdefault(node.data.number, []).append(node)
        self.together = {number: loads for number, loads in told.items() if len(loads) > 1}
        needed = {arg for node in self.steps for arg in node.args} | set(stage.update)
        self.sliced = [node for node in self.boxes if node in needed]
        working = self.boxes + self.steps if stage.reduce else self.once
        floats = sum(n.dynamic and n.op != "load" and is_float(n.dtype) for n in working)
        self.step_cost = max(1, (floats + 1) // 2)
        nodes = max(1, len(self.once) + len(self.boxes))
        self.elements = max(1 << 12, min(CHUNK_ELEMENTS, CHUNK_BYTES // (16 * nodes)))


class _Memo:
    """Elements of a stage's buffers that are already known."""

    def __init__(self, stage: Stage) -> None:
        size = prod(stage.shape)
        self.known = np.zeros(size, dtype=bool)
        self.marked = np.zeros(size, dtype=bool)
        kinds = [np.float64 if is_float(d) else numpy_dtype(d) for d in stage.dtypes]
        self.values = [np.zeros(size, dtype=kind) for kind in kinds]
        self.errors = [np.zeros(size) for _ in kinds]
        self.exact = [True for _ in kinds]


class Run:
    """One evaluation: the inputs, and what has been computed from them so far.

    Memory stays below 200 MB plus 18 bytes for each element of the reductions that are read.
    """

    def __init__(
        self, program: Program, orders: list[Order], inputs: Sequence[NDArray[Any]]
    ) -> None:
        self._program = program
        self._orders = orders
        self._inputs = [np.ascontiguousarray(array).reshape(-1) for array in inputs]
        self._memos: dict[int, _Memo] = {}

    def compute(self, index: int, flat: Array) -> list[Value]:
        """Elements of a stage at flat indices (need not be distinct), one Value per component."""
        limit = min(POINTS_PER_CHUNK, self._orders[index].elements)
        if not self._program.stages[index].reduce:
            limit = self._orders[index].elements
        chunks = [flat[i : i + limit] for i in range(0, max(1, flat.size), limit)]
        parts = [self._chunk(index, chunk) for chunk in chunks]
        return [_concatenate(values) for values in zip(*parts, strict=True)]

    def _chunk(self, index: int, flat: Array) -> list[Value]:
        stage, order = self._program.stages[index], self._orders[index]
        memo: dict[Node, Value] = {}
        if stage.shape:
            for var, coord in zip(stage.coords, np.unravel_index(flat, stage.shape), strict=True):
                if var is not None:
                    memo[var] = Value(coord.astype(var.dtype))
        for number, loads in order.together.items():
            self._know(number, self._places(loads, memo))
        self._evaluate(order.once, memo)
        if stage.rule == "map":
            results = [memo[node] for node in stage.update]
        elif stage.rule == "fold":
            results = self._fold(stage, order, memo, flat.size)
        else:
            results = [self._combine(stage, order, memo, flat.size)]
        return [
            Value(_spread_to(v.x, flat.shape), v.rel, _spread_to(v.err, flat.shape))
            for v in results
        ]

    def _evaluate(self, nodes: Sequence[Node], memo: dict[Node, Value]) -> None:
        for node in nodes:
            if node in memo:
                continue
            if node.op == "const":
                literal = float(node.data) if is_float(node.dtype) else int(node.data)
                memo[node] = Value(constant(literal, node.dtype))
            else:
                args = [memo[arg] for arg in node.args]
                memo[node] = self._load(node.data, args) if node.op == "load" else apply(node, args)

    def _boxes(
        self, stage: Stage, order: Order, memo: dict[Node, Value], points: int
    ) -> Iterator[tuple[dict[Node, Value], tuple[int, ...]]]:
        """Evaluates the reduction domain box by box; axes lead, points are the last dimension.

        Each axis is an array dimension of its own, so that an index is only as large as the axes
        it depends on.
        """
        extents = [extent for _, extent in stage.reduce]
        steps, room = [1] * len(extents), max(1, order.elements // max(1, points))
        for axis in reversed(range(len(extents))):
            steps[axis] = min(extents[axis], room)
            room //= steps[axis]
        starts = [range(0, e, s) for e, s in zip(extents, steps, strict=True)]
        for corner in product(*starts):
            box = dict(memo)
            shape = []
            for axis, (var, extent) in enumerate(stage.reduce):
                run = np.arange(corner[axis], min(corner[axis] + steps[axis], extent))
                shape.append(run.size)
                run = run.reshape(-1, *(1 for _ in extents[axis:]))
                box[var] = Value(run.astype(var.dtype))
            self._evaluate(order.boxes, box)
            yield box, (*shape, points)

    def _combine(self, stage: Stage, order: Order, memo: dict[Node, Value], points: int) -> Value:
        """A reduction by add, max or min."""
        start = memo[stage.init[0]]
        error = start.spread()
        total = start.x if not is_float(stage.dtypes[0]) else np.float64(start.x)
        magnitude: Array = np.abs(total)
        unit, rel = unit_roundoff(stage.dtypes[0]), 0.0
        ufunc: np.ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum}[stage.rule]
        join: np.ufunc = np.add if stage.rule == "add" else np.maximum
        for box, shape in self._boxes(stage, order, memo, points):
            term = box[stage.update[0]]
            axes = tuple(range(len(shape) - 1))
            x = np.broadcast_to(term.x, shape)
            total = ufunc(total, ufunc.reduce(x, axis=axes, dtype=total.dtype))
            if stage.rule == "add":
                spread = term.err
                if unit:
                    magnitude = magnitude + np.broadcast_to(np.abs(term.x), shape).sum(axis=axes)
                rel = term.rel
            else:
                spread = term.spread()
            if spread is not None:
                moved = join.reduce(np.broadcast_to(spread, shape), axis=axes)
                error = moved if error is None else join(error, moved)
        if stage.rule == "add" and unit:
            own = (rel + 2.0 * unit * np.sqrt(stage.steps)) * magnitude
            error = own if error is None else error + own
        elif unit and np.any(nothing := np.isnan(total)):  # as of two in `evaluate`
            error = np.where(nothing, np.inf, 0.0 if error is None else error)
            total = np.where(nothing, 0.0, total)
        return Value(total, 0.0, error)

    def _fold(
        self, stage: Stage, order: Order, memo: dict[Node, Value], points: int
    ) -> list[Value]:
        """Any other reduction, one step after the other."""
        states = [n for n in order.steps if n.op == "state"]
        current = [memo[node] for node in stage.init]
        for box, shape in self._boxes(stage, order, memo, points):
            rows = {n: _rows(box[n], shape) for n in order.sliced}
            for step in range(prod(shape[:-1])):
                at = dict(memo)
                at.update((node, row(step)) for node, row in rows.items())
                at.update((node, current[node.data[1]]) for node in states)
                self._evaluate(order.steps, at)
                current = [at[node] for node in stage.update]
        return current

    def _places(self, loads: Sequence[Node], memo: dict[Node, Value]) -> Array:
        """The flat indices that loads of one stage read, all of them."""
        self._evaluate(topological([arg for load in loads for arg in load.args]), memo)
        each = [_flat_index([memo[a].x for a in one.args], one.data.shape) for one in loads]
        return np.concatenate([np.ravel(flat) for flat in each])

    def _load(self, source: Source, indices: list[Value]) -> Value:
        flat = _flat_index([index.x for index in indices], source.shape)
        value = self._gather(source, flat)
        doubts = [index.err for index in indices if index.err is not None]
        if doubts:
            # the kernel may read another element, whose value nothing bounds
            error = np.where(sum(doubts) > 0, np.inf, 0.0)
            value = Value(value.x, 0.0, error if value.err is None else error + value.err)
        return value

    def _gather(self, source: Source, flat: Array) -> Value:
        """Elements at flat indices; those out of range, in branches not taken, read anything."""
        if source.kind == "input":
            x = self._inputs[source.number].take(flat, mode="clip")
            dtype = self._program.inputs[source.number][1]
            return Value(x.astype(np.float64) if is_float(dtype) else x)
        memo = self._know(source.number, flat)
        flat, c = np.clip(flat, 0, memo.known.size - 1), source.component
        return Value(memo.values[c][flat], 0.0, None if memo.exact[c] else memo.errors[c][flat])

    def _know(self, number: int, flat: Array) -> _Memo:
        """What is known of a stage, those elements included."""
        if number not in self._memos:
            self._memos[number] = _Memo(self._program.stages[number])
        memo = self._memos[number]
        flat = np.clip(flat, 0, memo.known.size - 1)
        unknown = flat[~memo.known[flat]]
        if unknown.size:
            memo.marked[unknown] = True
            new = np.flatnonzero(memo.marked)
            memo.marked[new] = False
            for c, value in enumerate(self.compute(number, new)):
                spread = value.spread()
                memo.values[c][new] = value.x
                if spread is not None:
                    memo.errors[c][new] = spread
                    memo.exact[c] = False
            memo.known[new] = True
        return memo


def _concatenate(parts: Sequence[Value]) -> Value:
    if len(parts) == 1:
        return parts[0]
    spreads = [part.spread() for part in parts]
    x = np.concatenate([part.x for part in parts])
    if all(spread is None for spread in spreads):
        return Value(x)
    zero = [np.zeros(p.x.shape) if s is None else s for p, s in zip(parts, spreads, strict=True)]
    return Value(x, 0.0, np.concatenate(zero))


def _spread_to(array: Array, shape: tuple[int, ...]) -> Array:
    return None if array is None else np.broadcast_to(array, shape)


def _rows(value: Value, shape: tuple[int, ...]) -> Callable[[int], Value]:
    """The value at each step of a box, all axes but the points flattened."""
    x = np.broadcast_to(value.x, shape).reshape(-1, shape[-1])
    if value.err is None:
        return lambda step: Value(x[step], value.rel)
    err = np.broadcast_to(value.err, shape).reshape(-1, shape[-1])
    return lambda step: Value(x[step], value.rel, err[step])


def _flat_index(indices: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Row-major flat index; the terms are added so that few sums are as large as the result."""
    terms: list[Array] = []
    stride = 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        if extent > 1:
            terms.append(np.asarray(index, dtype=np.int64) * stride)
        stride *= extent
    while len(terms) > 2:
        pairs = combinations(range(len(terms)), 2)
        i, j = min(pairs, key=lambda ij: prod(_joined(terms[ij[0]].shape, terms[ij[1]].shape)))
        joined = terms[i] + terms[j]
        terms = [term for k, term in enumerate(terms) if k not in (i, j)] + [joined]
    if len(terms) == 2:
        return terms[0] + terms[1]
    return terms[0] if terms else np.zeros((), dtype=np.int64)


def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(pair) for pair in zip_longest(reversed(a), reversed(b), fillvalue=1))
