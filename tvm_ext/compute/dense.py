"""Matrix multiplication by a constant, packed into blocks of output columns.

y[.., i, j] = sum over k of x[.., i, k] * w[j / B, k, j % B]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_block, padded
from tvm_ext.tvm_api import te

Tensor = Any


def pack_matrix(weight: np.ndarray, lanes: int) -> np.ndarray:
    """[K, N] → [N/B, K, B], N padded by zeros to whole blocks."""
    inner, outer = weight.shape
    block = choose_block(outer, lanes)
    columns = padded(outer, block)
    if columns != outer:
        weight = np.pad(weight, ((0, 0), (0, columns - outer)))
    return np.ascontiguousarray(weight.reshape(inner, columns // block, block).transpose(1, 0, 2))


def dense(x: Tensor, weight: Tensor, columns: int) -> Tensor:
    """x [.., K] times the packed matrix, [.., columns]."""
    blocks, inner, block = (int(extent) for extent in weight.shape)
    k = te.reduce_axis((0, inner), name="k")
    y = te.compute(
        (*x.shape[:-1], blocks * block),
        lambda *at: te.sum(x[(*at[:-1], k)] * weight[at[-1] // block, k, at[-1] % block], axis=k),
        name="dense",
    )
    if blocks * block == columns:
        return y
    return te.compute((*x.shape[:-1], columns), lambda *at: y[at], name="crop")
