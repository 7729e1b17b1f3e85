"""Cumulative sums for GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.graph.lower_scan import LowerScan
from tvm_ext.tvm_api import IRModule, relax, tvm


def scan(shape: tuple[int, ...], axis: int, exclusive: bool = False) -> IRModule:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.cumsum(x, axis, exclusive=exclusive))
        builder.emit_func_output(y)
    return builder.finalize()


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((5, 7), 1), ((5, 7), 0), ((3, 1), -1), ((13,), 0)])
def test_every_element_is_a_sum(shape: tuple[int, ...], axis: int, exclusive: bool) -> None:
    mod = LowerScan()(scan(shape, axis, exclusive))
    assert "R.cumsum" not in mod.script()
    x = np.random.default_rng(0).standard_normal(shape, dtype="float32")
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    expected = np.cumsum(x, axis) - (x if exclusive else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_long_rows_stay() -> None:
    assert "R.cumsum" in LowerScan(longest=6)(scan((5, 7), 1)).script()
