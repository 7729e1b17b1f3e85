"""Attention, queries in vectors: softmax(q kᵀ · scale + bias) v with one column a query.

    q [b, i, h, d]  →  turned [b, h, d, i]                      16 queries a vector
    scores[b, h, j, i] = sum over d of k[b, j, h, d] * turned[b, h, d, i]  (+ bias)
    top, power, total: softmax down the columns, no vector is ever reduced within itself
    mixed[b, h, e, i]  = sum over j of v[b, j, h, e] * power[b, h, j, i]
    y[b, i, h, e]      = mixed[b, h, e, i] / total[b, h, i]

Keys and values are read element by element, so they need no packing and there may be any number;
the division waits until the sum over the keys has been taken (FlashAttention, section 3.1). Queries
are padded to whole tiles by repeating the last one; what comes of these is not written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvm_ext.compute import maths
from tvm_ext.compute.blocking import padded
from tvm_ext.tvm_api import te, tirx

Tensor = Any
COLUMN_VECTORS = {2: 1.0, 3: 1.0, 1: 1.35}
"""Vectors of queries side by side in a register tile, with the time each query takes: one alone
leaves a load for every multiplication (13 vectors: 1610 us, two by two 1140)."""


def padded_queries(queries: int, lanes: int) -> int:
    """The number of queries in whole register tiles, of the width that takes the least time."""
    sizes = {vectors: padded(queries, vectors * lanes) for vectors in COLUMN_VECTORS}
    return sizes[min(sizes, key=lambda vectors: sizes[vectors] * COLUMN_VECTORS[vectors])]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    guarded: bool,
    columns: int,
    rows: int = 0,
) -> Tensor:
    """q [B, I, H, D], k [B, J, G, D], v [B, J, G, E] → [B, I, H, E]; H / G heads share keys.

    bias     added to the scores, [B or 1, H or 1, J or more or 1, `columns` or 1]: keys before
             queries
    guarded  whether a query whose keys are all masked (or whose scores are NaN) gives zeros in
             place of NaN
    columns  queries that are counted with, at least I: those beyond are the last one again
    rows     keys that are counted with, if not J: those beyond are the last one, with no weight
    """
    batch, queries, heads, depth = (int(extent) for extent in q.shape)
    known, width = int(k.shape[1]), int(v.shape[3])
    keys = rows or known
    own = keys_of(k, heads)

    def turn(b: Any, h: Any, d: Any, i: Any) -> Any:
        return q[b, or_last(i, queries, columns), h, d] * tirx.const(scale, "float32")

    turned = te.compute((batch, heads, depth, columns), turn, name="turned")
    scores = scores_of(k, turned, keys, operator.mul)
    power = te.compute(scores.shape, weight_of(scores, bias, known), name="power")
    n = te.reduce_axis((0, keys), name="n")
    total = te.compute(
        (batch, heads, columns), lambda b, h, i: te.sum(power[b, h, n, i], axis=n), name="total"
    )
    r = te.reduce_axis((0, keys), name="r")
    mixed = te.compute(
        (batch, heads, width, columns),
        lambda b, h, e, i: te.sum(
            v[b, or_last(r, known, keys), own(h), e] * power[b, h, r, i], axis=r
        ),
        name="mixed",
    )
    return mean_of(mixed, total, queries, guarded)


def keys_of(k: Tensor, heads: int) -> Callable[[Any], Any]:
    """Which of k's heads belongs to each of so many of queries."""
    shared = heads // int(k.shape[2])
    return lambda h: h // shared if shared > 1 else h


def scores_of(k: Tensor, turned: Tensor, keys: int, product: Callable[[Any, Any], Any]) -> Tensor:
    """Of `keys` keys, those beyond k's the last one, with each of `turned` queries."""
    batch, heads, depth, columns = (int(extent) for extent in turned.shape)
    known, own = int(k.shape[1]), keys_of(k, heads)
    c = te.reduce_axis((0, depth), name="c")
    return te.compute(
        (batch, heads, keys, columns),
        lambda b, h, j, i: te.sum(
            product(k[b, or_last(j, known, keys), own(h), c], turned[b, h, c, i]), axis=c
        ),
        name="scores",
    )


def weight_of(
    scores: Tensor, bias: Tensor | None, known: int, exp: Callable[[Any], Any] = maths.exp_down
) -> Callable[..., Any]:
    """What a value counts before all are divided by their sum: a function of batch, head, key and
    query. A key beyond the `known` ones counts nothing."""
    batch, heads, keys, columns = (int(extent) for extent in scores.shape)
    biased = scores if bias is None else _added(scores, bias)
    m = te.reduce_axis((0, keys), name="m")
    top = te.compute(
        (batch, heads, columns),
        lambda b, h, i: te.max(biased[b, h, m, i], axis=m),
        name="top",
    )

    def weight(b: Any, h: Any, j: Any, i: Any) -> Any:
        power = exp(biased[b, h, j, i] - top[b, h, i])
        zero = tirx.const(0.0, "float32")
        return power if keys == known else tirx.Select(j < known, power, zero)

    return weight


def mean_of(mixed: Tensor, total: Tensor, queries: int, guarded: bool) -> Tensor:
    """mixed [b, h, e, i] / total [b, h, i]  →  [b, i, h, e] of so many queries."""
    batch, heads, width, _ = (int(extent) for extent in mixed.shape)

    def last(b: Any, i: Any, h: Any, e: Any) -> Any:
        mean = mixed[b, h, e, i] / total[b, h, i]
        zero = tirx.const(0.0, "float32")
        return tirx.Select(total[b, h, i] > zero, mean, zero) if guarded else mean

    return te.compute((batch, queries, heads, width), last, name="attention")


def or_last(i: Any, known: int, counted: int) -> Any:
    """Column `i` as a query, or row as a key: beyond the last one, that one."""
    return i if counted == known else tirx.min(i, known - 1)


def _added(scores: Tensor, bias: Tensor) -> Tensor:
    """Their sum; axes of one element of the bias are repeated."""
    repeated = [int(extent) == 1 for extent in bias.shape]

    def body(*at: Any) -> Any:
        return scores[at] + bias[tuple(0 if r else i for r, i in zip(repeated, at, strict=True))]

    return te.compute(scores.shape, body, name="biased")


def bias_by_keys(bias: Tensor, columns: int, spare: int = 0) -> Tensor:
    """bias [B, H, I or 1, J or 1] → [B, H, J or 1, `columns` or 1], the last query repeated; where
    there are several, the last key as well in `spare` more rows."""
    batch, heads, queries, keys = (int(extent) for extent in bias.shape)
    if queries == 1:
        return te.compute((batch, heads, keys, 1), lambda b, h, j, i: bias[b, h, 0, j], name="keys")
    rows = keys + spare

    def turn(b: Any, h: Any, j: Any, i: Any) -> Any:
        return bias[b, h, or_last(i, queries, columns), or_last(j, keys, rows)]

    return te.compute((batch, heads, rows, columns), turn, name="keys")
