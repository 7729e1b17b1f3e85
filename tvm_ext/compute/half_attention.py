"""Attention in bfloat16, two elements at a time (`tvm_pairs`); sums and the softmax are float32.

    q [b, i, h, d/2]  →  turned [b, h, d/2, i], scaled
    scores[b, h, j, i] = sum over pairs of d of dot_pairs(k[b, j, h, d/2], turned[b, h, d/2, i])
    top, power: softmax down the columns, two keys in a word; one beyond the last has no weight
    total[b, h, i]     = sum over pairs of j of dot_pairs((1, 1), power[b, h, j/2, i])
    values             : v[b, j, h, e] of two keys in a word
    mixed[b, h, e, i]  = sum over pairs of j of dot_pairs(values[b, h, j/2, e], power[b, h, j/2, i])
    y[b, i, h, e]      = mixed[b, h, e, i] / total[b, h, i]

What is divided by is the sum of the weights as they are multiplied, so these add up to one.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tvm_ext.compute import maths
from tvm_ext.compute.attention import keys_of, mean_of, or_last, scores_of, weight_of
from tvm_ext.compute.blocking import padded
from tvm_ext.tvm_api import opaque, te, tirx
from tvm_ext.tvm_pairs import HALF, PAIR, WORD, dot_pairs, half, paired, word

Tensor = Any
ONES = int(np.ones(PAIR, getattr(ml_dtypes, HALF)).view(WORD)[0])
"""Two of them."""


def attention_pairs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    guarded: bool,
    columns: int,
) -> Tensor:
    """q uint32 [B, I, H, D/2], k uint32 [B, J, G, D/2], v uint16 [B, J, G, E]  →  float32
    [B, I, H, E]; the rest as in `attention`."""
    batch, queries, heads, depth = (int(extent) for extent in q.shape)
    known, width = int(k.shape[1]), int(v.shape[3])
    keys = padded(known, PAIR)
    own = keys_of(k, heads)

    def turn(b: Any, h: Any, d: Any, i: Any) -> Any:
        query, factor = q(b, or_last(i, queries, columns), h, d), tirx.const(scale, "float32")
        return paired(*(half(query, place) * factor for place in range(PAIR)))

    turned = te.compute((batch, heads, depth, columns), turn, name="turned")
    weight = weight_of(scores_of(k, turned, known, dot_pairs), bias, known, maths.exp_to_half)
    words = keys // PAIR

    def weights(b: Any, h: Any, j: Any, i: Any) -> Any:
        rows = (or_last(PAIR * j + place, known, keys) for place in range(PAIR))
        low, high = (weight(b, h, row, i) for row in rows)
        if keys > known:
            high = tirx.Select(opaque(PAIR * j + 1 < known), high, tirx.const(0.0, "float32"))
        return paired(low, high)

    power = te.compute((batch, heads, words, columns), weights, name="power")
    n = te.reduce_axis((0, words), name="n")
    ones = tirx.const(ONES, WORD)
    total = te.compute(
        (batch, heads, columns),
        lambda b, h, i: te.sum(dot_pairs(ones, power[b, h, n, i]), axis=n),
        name="total",
    )

    def both(b: Any, g: Any, j: Any, e: Any) -> Any:
        return word(*(v(b, or_last(PAIR * j + place, known, keys), g, e) for place in range(PAIR)))

    values = te.compute((batch, int(v.shape[2]), words, width), both, name="values")
    r = te.reduce_axis((0, words), name="r")
    mixed = te.compute(
        (batch, heads, width, columns),
        lambda b, h, e, i: te.sum(dot_pairs(values[b, own(h), r, e], power[b, h, r, i]), axis=r),
        name="mixed",
    )
    return mean_of(mixed, total, queries, guarded)
