"""Random graphs: whatever kernels they become, results are those of numpy.

pytest tests/device/test_random_graphs.py --random-graphs 500
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graph import RandomGraph, assert_computed

import tvm_ext
from tvm_ext.tvm_api import relax

op = relax.op


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--random-graphs")))


def test_random_graphs(seed: int) -> None:
    graph = RandomGraph(seed)
    mod, expected = graph.module(int(graph.rng.integers(4, 16)))
    compiled = tvm_ext.compile(mod)
    disputed = [group.name for group in compiled.manifest.groups if not group.verified]
    assert not disputed
    assert_computed(compiled({"x": graph.x}), expected)


def run(shape: tuple[int, ...], make: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Random data, and what a graph of one input makes of it."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(make(x))
        builder.emit_func_output(result)
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (found,) = tvm_ext.compile(builder.finalize())({"x": data})
    return data.astype("float64"), found


def test_an_expression_read_twice() -> None:
    """Its sigmoid, which binds variables, is inlined into both parts of the concatenation."""

    def twice(x: Any) -> Any:
        y = op.nn.pad(op.sigmoid(x), [2, 1, 1, 1, 0, 1])
        y = op.reshape(op.negative(y), (19, 485))
        return op.concat([y, y], 1)

    data, found = run((16, 3, 96), twice)
    half = -np.pad(1 / (1 + np.exp(-data)), [(2, 1), (1, 1), (0, 1)]).reshape(19, 485)
    np.testing.assert_allclose(found, np.concatenate([half, half], 1), atol=1e-6)


def test_rows_that_are_made_by_two_axes() -> None:
    """The concatenation writes y[row, 3 * i + j], of which the softmax takes rows of 6."""

    def rows(x: Any) -> Any:
        y = op.reshape(op.nn.pad(x, [0, 2, 2, 2, 1, 0]), (30, 3))
        return op.nn.softmax(op.concat([y, y], 1), -1)

    data, found = run((3, 2, 2), rows)
    half = np.pad(data, [(0, 2), (2, 2), (1, 0)]).reshape(30, 3)
    power = np.exp(np.concatenate([half, half], 1))
    np.testing.assert_allclose(found, power / power.sum(-1, keepdims=True), atol=1e-6)
