"""Matrix multiplication of floats by a constant of bytes, where memory bounds it.

y[.., j] = sum over k of x[.., k] * w[k, j] * step[k / block, j]                        w: int8
"""

from __future__ import annotations

from typing import Any

from tvm_ext.compute.dense import crop
from tvm_ext.tvm_api import te

Tensor = Any


def dense_by_bytes(x: Tensor, weight: Tensor, steps: Tensor, columns: int) -> Tensor:
    """x float32 [.., K] times the matrix int8 [N/B, K, B], [.., columns]; the steps of blocks of
    its rows are packed the same way, [N/B, blocks, B]. One block's are the result's factors."""
    panels, inner, width = (int(extent) for extent in weight.shape)
    blocks = int(steps.shape[1])
    k = te.reduce_axis((0, inner), name="k")

    def body(*at: Any) -> Any:
        *rows, j = at
        panel, lane = j // width, j % width
        element = weight[panel, k, lane].astype("float32")
        if blocks > 1:
            element = element * steps[panel, k // (inner // blocks), lane]
        return te.sum(x(*rows, k) * element, axis=k)

    shape = (*x.shape[:-1], panels * width)
    total = crop(te.compute(shape, body, name="dense_by_bytes"), columns)
    if blocks > 1:
        return total

    def scaled(*at: Any) -> Any:
        return total(*at) * steps[at[-1] // width, 0, at[-1] % width]

    return te.compute(total.shape, scaled, name="scaled")
