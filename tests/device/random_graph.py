"""Random graphs of operators, with what they compute and how far float32 may be off, side by side.

Shapes hold ones, primes and powers of two; tensors have several readers, are broadcast, moved
about, joined, and are results at any place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
EXTENTS = (1, 2, 3, 7, 16, 33, 64, 96, 257)
LARGEST = 1 << 17
"""Elements of a tensor at most, if the input has no more."""
ROUNDING = 2e-6
"""What one operator may be off by, relative to what it adds up: vector maths keep within 1e-6."""
Array = np.ndarray


class Tensor(NamedTuple):
    """A value of the graph: its exact elements, and a bound for the error of each."""

    var: Any
    exact: Array
    error: Array


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "tanh": (op.tanh, np.tanh),
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "negative": (op.negative, np.negative),
    "abs": (op.abs, np.abs),
    "sigmoid": (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
"""None of them changes faster than its argument."""
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]] = {
    "add": (op.add, np.add),
    "subtract": (op.subtract, np.subtract),
    "multiply": (op.multiply, np.multiply),
    "maximum": (op.maximum, np.maximum),
}
REDUCE: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "mean": (op.mean, np.mean),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
}


def assert_computed(found: list[Array], expected: list[Tensor]) -> None:
    """Every result of a graph near its exact value."""
    for got, one in zip(found, expected, strict=True):
        assert got.shape == one.exact.shape
        scale = max(1.0, float(np.abs(one.exact).max()))
        np.testing.assert_allclose(got, one.exact, rtol=1e-4, atol=1e-5 * scale)


class RandomGraph:
    """A Relax function of one parameter and what it computes, built side by side."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rank = int(self.rng.integers(2, 4))
        shape = tuple(int(extent) for extent in self.rng.choice(EXTENTS, rank))
        self.x = self.rng.standard_normal(shape).astype("float32")
        self.builder = relax.BlockBuilder()
        self.param = relax.Var("x", relax.TensorType(shape, "float32"))
        self.known = [Tensor(self.param, self.x.astype("float64"), np.zeros(shape))]
        self.steps = (
            self.unary,
            self.binary,
            self.binary,
            self.weight,
            self.reduce,
            self.softmax,
            self.matmul,
            self.permute,
            self.reshape,
            self.cut,
            self.join,
            self.pad,
            self.repeat,
        )

    def module(self, steps: int) -> tuple[IRModule, list[Tensor]]:
        """The function of so many operators, and its results: the last, and perhaps others."""
        with self.builder.function("main", [self.param]):
            with self.builder.dataflow():
                while len(self.known) <= steps:
                    self.steps[int(self.rng.integers(len(self.steps)))]()
                results = [self.known[-1]]
                if self.rng.random() < 0.5:
                    results.append(self.known[int(self.rng.integers(1, len(self.known)))])
                output = self.builder.emit_output(relax.Tuple([one.var for one in results]))
            self.builder.emit_func_output(output)
        return self.builder.finalize(), results

    def any(self, fits: Callable[[Tensor], bool] = lambda one: True) -> Tensor | None:
        """A tensor made so far, recent ones more often; None if none fits."""
        fitting = [one for one in self.known if fits(one)]
        last = len(fitting) - 1
        return fitting[last - min(int(self.rng.exponential(1.5)), last)] if fitting else None

    def put(self, call: Any, exact: Array, error: Array) -> None:
        """One more tensor, unless it is too large."""
        if exact.size <= max(LARGEST, self.x.size):
            self.known.append(Tensor(self.builder.emit(call), exact, error))

    def move(self, one: Tensor, call: Any, how: Callable[[Array], Array]) -> None:
        """One more tensor of elements that another has."""
        self.put(call, how(one.exact), how(one.error))

    def unary(self) -> None:
        make, exact = UNARY[str(self.rng.choice(list(UNARY)))]
        one = self.any()
        value = exact(one.exact)
        self.put(make(one.var), value, one.error + ROUNDING * np.abs(value))

    def binary(self) -> None:
        one = self.any()
        self.combine(one, self.any(lambda other: _broadcast(one.exact, other.exact)))

    def weight(self) -> None:
        one = self.any()
        array = self.rng.standard_normal(one.exact.shape[-1:]).astype("float32")
        self.combine(one, Tensor(constant(array), array.astype("float64"), np.zeros(array.shape)))

    def combine(self, one: Tensor, other: Tensor) -> None:
        name = str(self.rng.choice(list(BINARY)))
        make, exact = BINARY[name]
        value = exact(one.exact, other.exact)
        error = one.error + other.error
        if name == "multiply":
            error = np.abs(other.exact) * one.error + np.abs(one.exact) * other.error
        error = error + ROUNDING * np.abs(value)
        self.put(make(one.var, other.var), value, error)

    def reduce(self) -> None:
        make, exact = REDUCE[str(self.rng.choice(list(REDUCE)))]
        one = self.any()
        rank = one.exact.ndim
        axes = sorted({int(axis) for axis in self.rng.integers(0, rank, 2)})
        if self.rng.random() < 0.5:
            axes = [rank - 1]
        keep = bool(self.rng.random() < 0.7) or len(axes) == rank
        at = {"axis": tuple(axes), "keepdims": keep}
        value = exact(one.exact, **at)
        carried = np.mean if make is op.mean else np.max
        error = carried(one.error, **at) + ROUNDING * np.mean(np.abs(one.exact), **at)
        self.put(make(one.var, axes, keep), value, error + ROUNDING * np.abs(value))

    def softmax(self) -> None:
        one = self.any()
        power = np.exp(one.exact - one.exact.max(-1, keepdims=True))
        value = power / power.sum(-1, keepdims=True)
        # exp doubles what its argument is off by, and so does the sum it is divided by
        factor = np.expm1(2 * np.minimum(one.error.max(-1, keepdims=True), 1.0))
        rounding = ROUNDING * (1 + np.abs(one.exact).max(-1, keepdims=True))
        self.put(op.nn.softmax(one.var, -1), value, value * (factor + rounding) + 1e-30)

    def matmul(self) -> None:
        one = self.any(lambda one: one.exact.ndim >= 2)
        if one is None:
            return
        depth, width = one.exact.shape[-1], int(self.rng.choice(EXTENTS))
        array = (self.rng.standard_normal((depth, width)) / depth**0.5).astype("float32")
        weight = array.astype("float64")
        error = (one.error + depth**0.5 * ROUNDING * np.abs(one.exact)) @ np.abs(weight)
        self.put(op.matmul(one.var, constant(array)), one.exact @ weight, error)

    def permute(self) -> None:
        one = self.any()
        axes = [int(axis) for axis in self.rng.permutation(one.exact.ndim)]
        self.move(one, op.permute_dims(one.var, axes), lambda a: a.transpose(axes))

    def reshape(self) -> None:
        """Two axes joined, or one cut in two."""
        one = self.any()
        shape = list(one.exact.shape)
        axis = int(self.rng.integers(len(shape)))
        factors = [f for f in range(2, shape[axis]) if shape[axis] % f == 0]
        if factors and self.rng.random() < 0.5 and len(shape) < 5:
            factor = int(self.rng.choice(factors))
            shape[axis : axis + 1] = [factor, shape[axis] // factor]
        elif axis + 1 < len(shape) and len(shape) > 2:
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        else:
            return
        self.move(one, op.reshape(one.var, shape), lambda a: a.reshape(shape))

    def cut(self) -> None:
        one = self.any()
        axis = int(self.rng.integers(one.exact.ndim))
        extent = one.exact.shape[axis]
        begin = int(self.rng.integers(extent))
        end, step = int(self.rng.integers(begin, extent)) + 1, int(self.rng.integers(1, 3))
        part = (*(slice(None) for _ in range(axis)), slice(begin, end, step))
        self.move(one, op.strided_slice(one.var, [axis], [begin], [end], [step]), lambda a: a[part])

    def join(self) -> None:
        one = self.any()
        axis = int(self.rng.integers(one.exact.ndim))

        def rest(tensor: Tensor) -> tuple[Any, ...]:
            """What must agree: the rank, and the extents of the other axes."""
            shape = tensor.exact.shape
            return len(shape), shape[:axis], shape[axis + 1 :]

        both = one, self.any(lambda other: rest(other) == rest(one))
        exact = np.concatenate([t.exact for t in both], axis)
        error = np.concatenate([t.error for t in both], axis)
        self.put(op.concat([t.var for t in both], axis), exact, error)

    def pad(self) -> None:
        one = self.any()
        widths = [(int(b), int(a)) for b, a in self.rng.integers(0, 3, (one.exact.ndim, 2))]
        flat = [width for pair in widths for width in pair]
        self.move(one, op.nn.pad(one.var, flat), lambda a: np.pad(a, widths))

    def repeat(self) -> None:
        """Broadcast to a shape of its own."""
        one = self.any(lambda one: 1 in one.exact.shape)
        if one is None:
            return
        shape = [e if e > 1 else int(self.rng.choice(EXTENTS)) for e in one.exact.shape]
        call = op.broadcast_to(one.var, shape)
        self.move(one, call, lambda a: np.broadcast_to(a, shape))


def _broadcast(one: Array, other: Array) -> bool:
    """Whether shapes fit each other, the first as large as any."""
    try:
        return np.broadcast_shapes(one.shape, other.shape) == one.shape
    except ValueError:
        return False
