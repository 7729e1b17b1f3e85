"""Random graphs of element-wise operators, broadcasts and reductions: whatever kernels they become,
results are those of numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvm_ext
from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
GRAPHS = 24
EXTENTS = (1, 2, 3, 7, 16, 33, 64, 96, 257)
Array = np.ndarray

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "tanh": (op.tanh, np.tanh),
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "negative": (op.negative, np.negative),
    "abs": (op.abs, np.abs),
    "sigmoid": (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
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


class Graph:
    """A Relax function and what numpy makes of the same input, built side by side."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rank = int(self.rng.integers(2, 4))
        self.shape = tuple(int(extent) for extent in self.rng.choice(EXTENTS, rank))
        self.x = self.rng.standard_normal(self.shape).astype("float32")
        self.builder = relax.BlockBuilder()
        self.param = relax.Var("x", relax.TensorType(self.shape, "float32"))
        self.known: list[tuple[Any, Array]] = [(self.param, self.x.astype("float64"))]

    def any(self, full: bool = False) -> tuple[Any, Array]:
        """A tensor made so far, `full`: of the shape of the input; recent ones more often."""
        fitting = [one for one in self.known if not full or one[1].shape == self.shape]
        last = len(fitting) - 1
        return fitting[last - min(int(self.rng.exponential(1.5)), last)]

    def step(self) -> None:
        """One more operator."""
        kind = self.rng.choice(["unary", "binary", "binary", "weight", "reduce"])
        emit = self.builder.emit
        if kind == "unary":
            make, exact = UNARY[str(self.rng.choice(list(UNARY)))]
            var, value = self.any()
            self.known.append((emit(make(var)), exact(value)))
        elif kind == "reduce":
            make, exact = REDUCE[str(self.rng.choice(list(REDUCE)))]
            var, value = self.any(full=True)
            axis = int(self.rng.choice([-1, -1, -1, 0]))
            self.known.append((emit(make(var, axis, True)), exact(value, axis, keepdims=True)))
        else:
            make, exact = BINARY[str(self.rng.choice(list(BINARY)))]
            var, value = self.any(full=True)
            other, known = self.any()
            if kind == "weight":
                array = self.rng.standard_normal(self.shape[-1:]).astype("float32")
                other, known = constant(array), array.astype("float64")
            self.known.append((emit(make(var, other)), exact(value, known)))

    def module(self, steps: int) -> tuple[IRModule, list[Array]]:
        """The function of so many operators, and its results: the last, and perhaps others."""
        with self.builder.function("main", [self.param]):
            with self.builder.dataflow():
                for _ in range(steps):
                    self.step()
                results = [self.known[-1]]
                if self.rng.random() < 0.5:
                    results.append(self.known[int(self.rng.integers(1, len(self.known)))])
                output = self.builder.emit_output(relax.Tuple([var for var, _ in results]))
            self.builder.emit_func_output(output)
        return self.builder.finalize(), [value for _, value in results]


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_graphs(seed: int) -> None:
    graph = Graph(seed)
    mod, expected = graph.module(int(graph.rng.integers(4, 16)))
    compiled = tvm_ext.compile(mod)
    disputed = [group.name for group in compiled.manifest.groups if not group.verified]
    assert not disputed
    found = compiled({"x": graph.x})
    outputs = list(found.values()) if isinstance(found, dict) else list(found)
    for got, exact in zip(outputs, expected, strict=True):
        scale = max(1.0, float(np.abs(exact).max()))
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * scale)
