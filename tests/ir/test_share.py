"""Constants of equal content become one; those that differ anywhere do not."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.graph.share import Known, Share, with_shared
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    constant,
    constant_array,
    in_map_order,
    relax,
    structural_walk,
)


def module(*weights: np.ndarray) -> IRModule:
    """The sum of constants."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            total = constant(weights[0])
            for weight in weights[1:]:
                total = builder.emit(relax.op.add(total, constant(weight)))
            result = builder.emit_output(total)
        builder.emit_func_output(result)
    return builder.finalize()


def distinct(mod: IRModule) -> int:
    """How many pieces of memory the constants of `main` are."""
    found: set[int] = set()
    structural_walk(mod["main"], (GenericConst, lambda c: found.add(constant_array(c).ctypes.data)))
    return len(found)


A = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
NEGATIVE_ZERO = A.copy()
A_WITH_ZERO = A.copy()
A_WITH_ZERO[63, 61], NEGATIVE_ZERO[63, 61] = 0.0, -0.0


@pytest.mark.parametrize(
    ("weights", "count"),
    [
        ([A, A.copy(), A.copy()], 1),
        ([A, A.T], 2),
        ([A_WITH_ZERO, NEGATIVE_ZERO], 2),
        ([np.full((64, 64), np.nan, "float32")] * 2, 1),
        ([A, A.reshape(1, 64, 64)], 2),
        ([A[:8, :8], A[:8, :8].copy()], 2),
    ],
    ids=["equal", "transposed", "one_bit", "nan", "shape", "small"],
)
def test_equal_constants_become_one(weights: list[np.ndarray], count: int) -> None:
    before = module(*weights)
    assert distinct(before) == len(weights)
    assert distinct(Share()(before)) == count


def test_constants_of_several_modules() -> None:
    """The weights of a model that is read once more."""
    known: Known = {}
    modules = [with_shared(module(A.copy(), A.T.copy()), known) for _ in range(2)]
    one, other = (in_map_order(mod["main"], GenericConst) for mod in modules)
    assert len(one) == len(other) == 2
    assert all(a.value.same_as(b.value) for a, b in zip(one, other, strict=True))
