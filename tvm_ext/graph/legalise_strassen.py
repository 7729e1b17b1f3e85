"""Products by seven products of quarters where that pays (see `compute.strassen`).

matmul(x, W)  →  call_tir(strassen, x, sums of quarters of W [q, N/2/B, K/2, B])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_block, padded
from tvm_ext.compute.dense import dense
from tvm_ext.compute.strassen import applies, pack_quarters, packed_shape, strassen
from tvm_ext.graph.open_extent import follows
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import PrimFunc, constant, te, topi

SMALLEST = 96
"""Rows, steps and columns below which sums of quarters take what they save."""
HELD = 0.5
"""Part of a core's cache that weights of one of two layers in strips take at most."""
WORTH = 0.97
"""Part of the direct product's time from which less is worth weights of 1.75 times the size, and
errors of a neighbour's size."""


def legalise_strassen(
    builder: Any, x: Any, shape: tuple[int, ...], weight: np.ndarray, options: Any
) -> Any:
    """The product of x, of that shape, with a constant [K, N]; None where it is faster directly."""
    inner, columns = weight.shape
    if not options.strassen or options.predict_us is None or options.hardware.kind == "cuda":
        return None
    if any(follows(extent, own) for extent in shape for own in options.extents):
        return None
    if not pays(prod(shape[:-1]), inner, columns, options.lanes, options.predict_us):
        return None
    if len(shape) > 2:
        x = builder.emit_te(topi.reshape, x, (prod(shape[:-1]), inner))
    return builder.call_te(
        lambda data, sums: strassen(data, sums, (*shape[:-1], columns)),
        x,
        constant(pack_quarters(weight, options.lanes)),
        key=shape,
        primfunc_name_hint="strassen",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def strips_hold(weight: np.ndarray, hardware: HardwareModel) -> bool:
    """Whether a layer is so narrow that a core's cache holds its weights and another's: what it
    makes may then stay there as well, strip by strip (`FuseTiles`), which takes no quarters. That
    saves more (784 rows of 128 by 1024 and back 3.9 ms of a core, apart and by quarters 4.1)."""
    return weight.nbytes <= hardware.own_cache_bytes * HELD


@lru_cache(maxsize=1024)
def pays(
    rows: int,
    inner: int,
    columns: int,
    lanes: int,
    predict_us: Callable[[PrimFunc], float],
) -> bool:
    """Whether a product of so many rows, steps and columns is predicted to be faster so."""
    if not applies(inner, columns, lanes) or min(rows, inner, columns) < SMALLEST:
        return False
    block = choose_block(columns, lanes)
    x = te.placeholder((rows, inner), "float32", name="x")
    plain = te.placeholder((padded(columns, block) // block, inner, block), "float32", name="w")
    sums = te.placeholder(packed_shape(inner, columns, lanes), "float32", name="w")
    direct = te.create_prim_func([x, plain, dense(x, plain, columns)])
    by_quarters = te.create_prim_func([x, sums, strassen(x, sums, (rows, columns))])
    return predict_us(by_quarters) < WORTH * predict_us(direct)
