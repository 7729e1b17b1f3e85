"""Equal expressions once: large constants by where they lie, small ones by content."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.graph.common_subexpr import LEAST_BYTES, eliminate_common
from tvm_ext.tvm_api import Call, IRModule, constant, constant_array, relax, structural_walk

LARGE = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
SMALL = LARGE[:2, :8].copy()


def module(first: relax.Expr, second: relax.Expr) -> IRModule:
    """x + first and x + second, both returned."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(constant_array(first).shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            one = builder.emit(relax.op.add(x, first))
            other = builder.emit(relax.op.add(x, second))
            result = builder.emit_output(relax.Tuple([one, other]))
        builder.emit_func_output(result)
    return builder.finalize()


def additions(mod: IRModule) -> list[Call]:
    """The additions that are left in `main`."""
    found: list[Call] = []
    structural_walk(mod["main"].body, (Call, found.append))
    return [call for call in found if call.op.name == "relax.add"]


def twice(array: np.ndarray) -> tuple[relax.Expr, relax.Expr]:
    """One constant, used twice."""
    made = constant(array)
    return made, made


@pytest.mark.parametrize(
    ("constants", "left"),
    [
        (twice(LARGE), 1),
        ((constant(LARGE), constant(LARGE)), 2),
        ((constant(LARGE), constant(-LARGE)), 2),
        (twice(SMALL), 1),
        ((constant(SMALL), constant(SMALL)), 1),
        ((constant(SMALL), constant(-SMALL)), 2),
    ],
    ids=["one large", "equal large", "other large", "one small", "equal small", "other small"],
)
def test_equal_calls_become_one(constants: tuple[relax.Expr, relax.Expr], left: int) -> None:
    assert LARGE.nbytes >= LEAST_BYTES > SMALL.nbytes
    after = eliminate_common(module(*constants))
    assert len(additions(after)) == left
    for call, before in zip(additions(after), constants, strict=False):
        np.testing.assert_array_equal(constant_array(call.args[1]), constant_array(before))


def test_parameters_and_memory_stay_as_they_were() -> None:
    before = module(*twice(LARGE))
    after = eliminate_common(before)
    assert [p.name for p in after["main"].params] == ["x"]
    address = constant_array(additions(before)[0].args[1]).ctypes.data
    assert constant_array(additions(after)[0].args[1]).ctypes.data == address
