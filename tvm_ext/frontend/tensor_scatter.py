"""A cache of fixed length, of which a few places are written, as a choice for every place.

rewrite:
    TensorScatter(past, update, begin)  =>  Where(0 <= at < new, Gather(update, at), past)

with `at` = p - begin, and p the places of the cache; each text of a batch has its own beginning.
What is past the end of a `circular` cache goes on at its first place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, node_of


def _scatter(op: Any, past: Any, update: Any) -> Any:
    return op.TensorScatter(past, update, _allow_other_inputs=True, _outputs=["y"])


def _is_known(_: Any, past: ir.Value, update: ir.Value, **__: Any) -> bool:
    shapes = [past.shape, update.shape]
    return all(shape is not None and shape.is_static() for shape in shapes)


def _chosen(op: Any, past: ir.Value, update: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    assert past.shape is not None
    assert update.shape is not None
    rank = len(past.shape)
    axis = node.attributes.get_int("axis", -2) % rank
    batch = int(past.shape.numpy()[0])
    places, new = int(past.shape.numpy()[axis]), int(update.shape.numpy()[axis])

    def number(name: str, *values: int) -> Any:
        return constant(op, f"{y.name}_{name}", np.array(values, np.int64))

    def along(name: str, value: Any, *, batched: bool) -> Any:
        shape = [batch if batched and n == 0 else places if n == axis else 1 for n in range(rank)]
        return op.Reshape(value, number(name, *shape))

    at = along("places", number("count", *range(places)), batched=False)
    begin = node.inputs[2] if len(node.inputs) > 2 else None
    if begin is not None:
        first = op.Reshape(begin, number("first", *[batch, *[1] * (rank - 1)]))
        at = op.Sub(at, first)
    if node.attributes.get_string("mode", "linear") == "circular":
        at = op.Mod(at, number("round", places))
    zero, end = number("zero", 0), number("end", new)
    written = op.And(op.Not(op.Less(at, zero)), op.Less(at, end))
    kept = op.Min(op.Max(at, zero), number("last", new - 1))
    if batch == 1 or begin is None:
        taken = op.Gather(update, op.Reshape(kept, number("flat", places)), axis=axis)
    else:
        whole = [places if n == axis else e for n, e in enumerate(update.shape.numpy())]
        taken = op.GatherElements(update, op.Expand(kept, number("whole", *whole)), axis=axis)
    return op.Where(written, taken, past)


rules = (RewriteRule(_scatter, _chosen, _is_known, name="TensorScatter"),)
