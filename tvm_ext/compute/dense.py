"""Matrix multiplication: by a constant packed into blocks of output columns, or of two tensors.

y[.., i, j] = sum over k of x[.., i, k] * w[j / B, k, j % B]
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_block, padded
from tvm_ext.tvm_api import te, tirx, topi

Tensor = Any


def pack_matrix(weight: np.ndarray, lanes: int) -> np.ndarray:
    """[K, N] → a view [N/B, K, B], N padded by zeros to whole blocks."""
    inner, outer = weight.shape
    block = choose_block(outer, lanes)
    columns = padded(outer, block)
    if columns != outer:
        weight = np.pad(weight, ((0, 0), (0, columns - outer)))
    return weight.reshape(inner, columns // block, block).transpose(1, 0, 2)


def crop(x: Tensor, columns: int) -> Tensor:
    """The first `columns` of the last axis; an epilogue takes it in."""
    if int(x.shape[-1]) == columns:
        return x
    return te.compute((*x.shape[:-1], columns), lambda *at: x[at], name="crop")


def dense(
    x: Tensor,
    weight: Tensor,
    columns: int,
    product: Callable[[Any, Any], Any] = operator.mul,
) -> Tensor:
    """x [.., K] times the packed matrix, [.., columns]; `product` is that of two elements."""
    blocks, inner, block = (int(extent) for extent in weight.shape)
    k = te.reduce_axis((0, inner), name="k")

    def body(*at: Any) -> Any:
        *rows, j = at
        return te.sum(product(x(*rows, k), weight[j // block, k, j % block]), axis=k)

    return crop(te.compute((*x.shape[:-1], blocks * block), body, name="dense"), columns)


def matmul(
    a: Tensor,
    b: Tensor,
    lanes: int,
    product: Callable[[Any, Any], Any] = operator.mul,
) -> Tensor:
    """a [batch.., M, K] times b [batch.., K, N]; batch axes are equal, or 1, or missing. `product`
    is that of two elements.

    N is padded to whole vectors first: the copy of b is small beside the product, and the product
    then has no vector tail.
    """
    columns = int(b.shape[-1])
    if columns % lanes:
        after = [*(0 for _ in b.shape[:-1]), padded(columns, lanes) - columns]
        nothing = tirx.const(0, b.dtype)
        b = topi.nn.pad(b, [0] * len(b.shape), after, nothing, name="pad_columns")
    k = te.reduce_axis((0, int(b.shape[-2])), name="k")

    rank = max(len(a.shape), len(b.shape)) - 2
    places = range(-rank, 0)
    batch_shape = [_larger(_extent(a, place), _extent(b, place)) for place in places]

    def own(tensor: Tensor, batch: list[Any]) -> list[Any]:
        """The batch index of one operand: 0 where its one element is for all of the product's,
        nothing where it has none."""
        skipped = rank - (len(tensor.shape) - 2)
        whole = zip(batch[skipped:], batch_shape[skipped:], tensor.shape[:-2], strict=True)
        return [
            0 if _is_one(own_extent) and not _is_one(extent) else i
            for i, extent, own_extent in whole
        ]

    def body(*at: Any) -> Any:
        *batch, i, j = at
        return te.sum(product(a(*own(a, batch), i, k), b(*own(b, batch), k, j)), axis=k)

    shape = (*batch_shape, a.shape[-2], b.shape[-1])
    return crop(te.compute(shape, body, name="matmul"), columns)


def _extent(tensor: Tensor, place: int) -> Any:
    """Extent of the batch axis `place` (-1: the last one); 1 where the tensor has none."""
    batch = tensor.shape[:-2]
    return batch[place] if -place <= len(batch) else 1


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int | tirx.IntImm) and int(extent) == 1


def _larger(a: Any, b: Any) -> Any:
    """The extent of a result of operands of equal extents, or one of one; they may be unknown."""
    return b if _is_one(a) else a
