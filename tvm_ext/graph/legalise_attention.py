"""`nn.attention` and `nn.attention_bias`: one kernel with queries in vectors.

attention(q, k, v, bias)  →  call_tir(attention, q, k, v, bias with keys before queries)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.compute.attention import attention, bias_by_keys, padded_queries
from tvm_ext.compute.open_attention import OPEN, SPARE_ROWS, by_positions
from tvm_ext.graph.legalise_norm import STANDS_ALONE, static_shape
from tvm_ext.tvm_api import constant, constant_array, relax, tirx

GUARDED = "tvm_ext.guarded_attention"
"""Attribute of a kernel of static attention that guards against queries without keys: the scale."""
ATTENTION = ("relax.nn.attention", "relax.nn.attention_bias")


class StaticAttention(NamedTuple):
    """Such a call: queries, keys and values, what is added to the scores, their factor."""

    operands: tuple[Any, ...]
    bias: Any
    scale: float


def static_attention(call: Any) -> StaticAttention | None:
    """Attention of static shapes, whose mask, if it has one, is a bias; None for other."""
    *operands, bias = (*call.args, None)[:4]
    shapes = [static_shape(operand) for operand in call.args]
    masked = call.attrs.causal_mask is not None or call.attrs.window_size is not None
    if masked or any(shape is None or len(shape) != 4 for shape in shapes):
        return None
    scale = call.attrs.scale
    factor = float(scale.value) if scale is not None else int(operands[0].ty.shape[3]) ** -0.5
    return StaticAttention(tuple(operands), bias, factor)


def legalise_attention(builder: Any, call: Any, options: Any) -> Any:
    """The call of one kernel; None for attention that is not static."""
    known = static_attention(call)
    if known is None:
        return None
    return attention_call(builder, known.operands, known.bias, known.scale, options.lanes)


def attention_call(
    builder: Any,
    operands: Sequence[Any],
    bias: Any,
    scale: float,
    lanes: int,
    *,
    guarded: bool = False,
    is_open: bool = False,
    heads_first: Sequence[bool] = (False, False, False),
) -> Any:
    """The call of `compute.attention`: queries, keys and values with positions before heads, and a
    bias of four axes, queries before keys, or None.

    is_open  whether their lengths stand for some that are not known: all else is left to the
             kernel's plan
    heads_first  which of the operands have heads before positions, if lengths are open
    """
    queries, keys = (int(operands[place].ty.shape[1 + heads_first[place]]) for place in (0, 1))
    columns = queries if is_open else padded_queries(queries, lanes)
    attrs: dict[str, Any] = dict(STANDS_ALONE)
    if guarded and not is_open:
        attrs[GUARDED] = tirx.FloatImm("float64", scale)
    if is_open:
        attrs[OPEN] = [tirx.FloatImm("float64", scale), guarded, *heads_first]
    spare = 0
    if bias is not None:
        *first, each, of_keys = map(int, bias.ty.shape)
        spare = SPARE_ROWS if is_open and each > 1 else 0
        if spare and of_keys == 1:
            full = [*first, each, keys]
            bias = builder.emit(relax.op.broadcast_to(bias, full))
    turned = biases_by_keys(builder, bias, columns, spare)

    def body(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        q, k, v = by_positions((q, k, v), heads_first)
        return attention(q, k, v, bias[0] if bias else None, scale, guarded, columns)

    return builder.call_te(
        body, *operands, *turned, primfunc_name_hint="attention", primfunc_attrs=attrs
    )


def biases_by_keys(builder: Any, bias: Any, columns: int, spare: int = 0) -> list[Any]:
    """A bias with keys before queries, these padded; worked out here if it is a constant whose
    extents are known. None is none."""
    if bias is None:
        return []
    array = None if spare else constant_array(bias)
    if array is None:
        return [builder.emit_te(bias_by_keys, bias, columns, spare, primfunc_attrs=STANDS_ALONE)]
    turned = array.swapaxes(2, 3)
    if turned.shape[3] > 1:
        after = columns - turned.shape[3]
        turned = np.pad(turned, [(0, 0), (0, 0), (0, 0), (0, after)], mode="edge")
    return [constant(turned)]
