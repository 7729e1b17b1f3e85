"""Which weights of products of few rows stay bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tvm_ext.graph.legalise import Legalise
from tvm_ext.graph.legalise_byte_weights import MOST_ROWS, stored
from tvm_ext.hardware import get
from tvm_ext.tvm_api import PrimFunc, constant, relax

RANDOM = np.random.default_rng(7)
HARDWARE = msgspec.structs.replace(get("cpu/x86-avx512"), name="cpu/test")
INNER, COLUMNS = 256, 272


def blockwise(block: int) -> np.ndarray:
    """A matrix with a step for each block of each column."""
    steps = RANDOM.uniform(1e-3, 1e-1, (INNER // block, 1, COLUMNS))
    integers = RANDOM.integers(-8, 8, (INNER // block, block, COLUMNS))
    return (integers * steps).reshape(INNER, COLUMNS).astype(np.float32)


@pytest.mark.parametrize("block", [INNER, 128, 32, 16])
def test_integers_times_steps_are_stored_as_such(block: int) -> None:
    weight = blockwise(block)
    found = stored(weight)
    assert found is not None
    assert found.integers.dtype == np.int8
    assert found.steps.shape == (COLUMNS, INNER // block)
    made = found.integers * np.repeat(found.steps, block, axis=1)
    np.testing.assert_allclose(made.T, weight, rtol=1e-6)


def test_floats_are_not() -> None:
    assert stored(RANDOM.normal(size=(INNER, COLUMNS)).astype(np.float32)) is None


def kernels(weight: np.ndarray, rows: int, worth: bool) -> list[str]:
    """Those that a product becomes, where the model says that bytes are worth it, or not."""

    def predict_us(func: PrimFunc) -> float:
        return 1.0 if worth == any("int8" in str(one.dtype) for one in func.params) else 2.0

    x = relax.Var("x", relax.TensorType((rows, INNER), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, constant(weight)))
        builder.emit_func_output(result)
    mod: Any = Legalise(HARDWARE, predict_us=predict_us)(builder.get())
    return [str(v.name_hint) for v in mod.get_global_vars() if str(v.name_hint) != "main"]


@pytest.mark.parametrize(
    ("rows", "worth", "expected"),
    [(1, True, "dense_by_bytes"), (1, False, "dense"), (MOST_ROWS + 1, True, "dense")],
)
def test_the_model_decides_where_rows_are_few(rows: int, worth: bool, expected: str) -> None:
    assert kernels(blockwise(INNER), rows, worth) == [expected]


def test_few_weights_stay_floats() -> None:
    assert kernels(blockwise(INNER)[:, :16], 1, True) == ["dense"]
