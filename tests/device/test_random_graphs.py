"""Random graphs: whatever kernels they become, results are those of numpy."""

from __future__ import annotations

import numpy as np
from random_graph import RandomGraph

import tvm_ext
from tvm_ext.tvm_api import relax


def test_random_graphs(random_graph: int) -> None:
    graph = RandomGraph(random_graph)
    mod, expected = graph.module(int(graph.rng.integers(4, 16)))
    compiled = tvm_ext.compile(mod)
    disputed = [group.name for group in compiled.manifest.groups if not group.verified]
    assert not disputed
    for got, one in zip(compiled({"x": graph.x}), expected, strict=True):
        assert got.shape == one.exact.shape
        off = np.abs(got - one.exact) - one.error - 1e-6
        worst = np.unravel_index(int(np.argmax(off)), off.shape)
        assert off[worst] <= 0, f"at {worst}: {got[worst]}, should be {one.exact[worst]}"


def test_an_expression_read_twice() -> None:
    """Its sigmoid, which binds variables, is inlined into both parts of the concatenation."""
    x = relax.Var("x", relax.TensorType((16, 3, 96), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = relax.op.nn.pad(relax.op.sigmoid(x), [2, 1, 1, 1, 0, 1])
            y = builder.emit(relax.op.reshape(relax.op.negative(y), (19, 485)))
            result = builder.emit_output(relax.op.concat([y, y], 1))
        builder.emit_func_output(result)
    compiled = tvm_ext.compile(builder.finalize())
    data = np.random.default_rng(0).standard_normal((16, 3, 96)).astype("float32")
    half = -np.pad(1 / (1 + np.exp(-data.astype("float64"))), [(2, 1), (1, 1), (0, 1)])
    (found,) = compiled({"x": data})
    exact = half.reshape(19, 485)
    np.testing.assert_allclose(found, np.concatenate([exact, exact], 1), atol=1e-6)
