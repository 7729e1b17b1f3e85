"""A product by seven products of quarters (Strassen, 1969), by a constant.

    [C11 C12]   [A11 A12] [B11 B12]        A: rows in pairs, the reduction in halves
    [C21 C22] = [A21 A22] [B21 B22]        B: the reduction and the columns in halves

takes seven multiplications of quarters for eight, and sums of quarters: those of B at compile time,
those of A once for all columns, those of the seven products while they are in cache. In stages over
the seven products q and pairs of rows m:

    quarters  [q, m, k]    a sum of quarters of x
    product   [q, m, o]    sum over k with weights [q, o/B, k, o%B]
    results   [M, 2, o]    sums of products, by half and column of it
    strassen  [.., N]      the same, in the caller's shape

Rounding: errors are those of the quarters that are summed, so a row's depend on its neighbour's
size, and a NaN or an infinity in one is one in both; of images with an odd number of rows the
neighbour of the last one is the next image's first. Against float64, as max|error| / max|y| on
normal data with up to 4096 steps: 2e-6, directly 1e-6 (tested).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_group_block
from tvm_ext.compute.winograd import select
from tvm_ext.tvm_api import te, tirx

Tensor = Any

_LEFT = (
    {(0, 0): 1, (1, 1): 1},
    {(1, 0): 1, (1, 1): 1},
    {(0, 0): 1},
    {(1, 1): 1},
    {(0, 0): 1, (0, 1): 1},
    {(1, 0): 1, (0, 0): -1},
    {(0, 1): 1, (1, 1): -1},
)
"""Signs of the quarters of A in each product's left factor."""
_RIGHT = (
    {(0, 0): 1, (1, 1): 1},
    {(0, 0): 1},
    {(0, 1): 1, (1, 1): -1},
    {(1, 0): 1, (0, 0): -1},
    {(1, 1): 1},
    {(0, 0): 1, (0, 1): 1},
    {(1, 0): 1, (1, 1): 1},
)
"""Those of B in its right factor."""
_RESULT = {
    (0, 0): {0: 1, 3: 1, 4: -1, 6: 1},
    (0, 1): {2: 1, 4: 1},
    (1, 0): {1: 1, 3: 1},
    (1, 1): {0: 1, 1: -1, 2: 1, 5: 1},
}
"""Signs of the products in each quarter of the result."""
PRODUCTS = len(_LEFT)


def applies(inner: int, columns: int, lanes: int) -> bool:
    """Whether the reduction has halves, and those of the columns come in whole vectors."""
    return inner % 2 == 0 and columns % (2 * lanes) == 0


def packed_shape(inner: int, columns: int, lanes: int) -> tuple[int, ...]:
    """Shape of the weight that `pack_quarters` makes."""
    block = choose_group_block(columns // 2, lanes)
    return (PRODUCTS, columns // 2 // block, inner // 2, block)


def pack_quarters(weight: np.ndarray, lanes: int) -> np.ndarray:
    """[K, N] → sums of its quarters [q, N/2/B, K/2, B]."""
    inner, columns = weight.shape
    packed = np.empty(packed_shape(inner, columns, lanes), np.float32)
    quarters = weight.reshape(2, inner // 2, 2, packed.shape[1], packed.shape[-1])
    for place, signs in enumerate(_RIGHT):
        parts = [sign * quarters[half, :, side] for (half, side), sign in signs.items()]
        packed[place] = sum(parts[1:], parts[0]).transpose(1, 0, 2)
    return packed


def strassen(x: Tensor, weight: Tensor, shape: Sequence[int]) -> Tensor:
    """x [M, K] times what `pack_quarters` made of [K, N], in a `shape` [.., N] of M rows."""
    rows = int(x.shape[0])
    _, blocks, depth, block = (int(extent) for extent in weight.shape)
    half = blocks * block

    def of_rows(q: Any, m: Any, k: Any) -> Any:
        # of an odd number of rows the last one is its own neighbour
        pair = (2 * m, tirx.min(2 * m + 1, rows - 1) if rows % 2 else 2 * m + 1)
        quarters = {
            (r, side): x[row, side * depth + k] for r, row in enumerate(pair) for side in range(2)
        }
        return select(q, [_signed(signs, quarters) for signs in _LEFT])

    pairs = -(-rows // 2)
    quarters = te.compute((PRODUCTS, pairs, depth), of_rows, name="quarters")
    step = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (PRODUCTS, pairs, half),
        lambda q, m, o: te.sum(
            quarters[q, m, step] * weight[q, o // block, step, o % block], axis=step
        ),
        name="product",
    )

    def of_products(row: Any, side: Any, o: Any) -> Any:
        products = {q: product[q, row // 2, o] for q in range(PRODUCTS)}
        results = [_signed(signs, products) for signs in _RESULT.values()]
        return select(row % 2 * 2 + side, results)

    results = te.compute((rows, 2, half), of_products, name="results")

    def of_results(*at: Any) -> Any:
        *outer, column = at
        row = reduce(lambda total, place: total * shape[place] + outer[place], range(len(outer)), 0)
        return results[row, column // half, column % half]

    return te.compute(shape, of_results, name="strassen")


def _signed(signs: dict[Any, int], values: dict[Any, Any]) -> Any:
    """The sum of the values with these signs, the first of which is positive."""
    total: Any = None
    for place, sign in signs.items():
        value = values[place]
        total = value if total is None else total + value if sign > 0 else total - value
    return total
