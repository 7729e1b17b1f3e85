"""Products of few rows by weights that were quantised: weights stay bytes, and are read as such.

matmul(x, W)   →   call_tir(dense_by_bytes, x, w packed as int8, steps packed)

A word behind others is one row: its time is that of reading the weights once, a quarter of them as
bytes. Of many rows arithmetic takes the time, and floats need no conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.compute.byte_weights import dense_by_bytes
from tvm_ext.compute.dense import dense, pack_matrix
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.graph.weight_steps import steps_of
from tvm_ext.tvm_api import PrimFunc, constant, te

MOST_ROWS = 32
"""Of more arithmetic bounds the product on any machine."""
LEAST_ELEMENTS = 1 << 16
"""Weights that are worth it: fewer stay in a cache."""
BLOCKS = (256, 128, 64, 32, 16)
"""Elements of a column that quantisers give a step of their own; first, the whole column."""
SAMPLE = 4
"""Columns that are looked at before all of them are."""
WORTH = 0.9
"""Predicted time over that of floats, which the model knows better."""


class Stored(NamedTuple):
    """A matrix [K, N] as int8 [N, K] times steps [N, blocks]."""

    integers: np.ndarray
    steps: np.ndarray


def stored(weight: np.ndarray) -> Stored | None:
    """A matrix [K, N] as bytes with a sign times steps; None if it is not made of such."""
    inner, columns = weight.shape
    for block in (inner, *(size for size in BLOCKS if size < inner and inner % size == 0)):
        some = weight[:, :SAMPLE].T.reshape(-1, block)
        if steps_of(some) is None:
            continue
        found = steps_of(weight.T.reshape(-1, block))
        if found is not None and not found.middles.any():
            return Stored(found.integers.reshape(columns, inner), found.steps.reshape(columns, -1))
    return None


class ByBytes(NamedTuple):
    """A product by such weights, packed."""

    weight: np.ndarray
    steps: np.ndarray
    predicted_us: float


def by_bytes(
    weight: np.ndarray,
    rows: Sequence[int],
    lanes: int,
    predict_us: Callable[[PrimFunc], float] | None,
) -> ByBytes | None:
    """The product of `rows` by a matrix [K, N] that is such; None where there is no such one, or
    of more rows than could pay."""
    inner, columns = weight.shape
    few = prod(rows) <= MOST_ROWS and weight.size >= LEAST_ELEMENTS
    found = stored(weight) if few and predict_us else None
    if found is None or predict_us is None:
        return None
    packed = pack_matrix(found.integers.T, lanes)
    steps = pack_matrix(found.steps.T.astype(np.float32), lanes)
    x = te.placeholder((*rows, inner), "float32", "x")
    w = te.placeholder(packed.shape, "int8", "w")
    own = te.placeholder(steps.shape, "float32", "steps")
    func = te.create_prim_func([x, w, own, dense_by_bytes(x, w, own, columns)])
    return ByBytes(packed, steps, predict_us(func))


def legalise_byte_weights(
    builder: Any, call: Any, rows: tuple[int, ...], weight: np.ndarray, options: Any
) -> Any:
    """Such a product where the model says that it takes less time so; None elsewhere."""
    found = by_bytes(weight, rows, options.lanes, options.predict_us)
    if found is None:
        return None
    inner, columns = weight.shape
    x = te.placeholder((*rows, inner), "float32", "x")
    floats = te.placeholder(found.weight.shape, "float32", "w")
    program = te.create_prim_func([x, floats, dense(x, floats, columns)])
    if found.predicted_us > WORTH * options.predict_us(program):
        return None
    return builder.call_te(
        lambda data, matrix, factors: dense_by_bytes(data, matrix, factors, columns),
        call.args[0],
        constant(found.weight),
        constant(found.steps),
        key=columns,
        primfunc_name_hint="dense_by_bytes",
        primfunc_attrs=FUSES_EPILOGUE,
    )
