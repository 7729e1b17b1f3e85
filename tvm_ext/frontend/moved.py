"""Operators that move elements, or say what lies where, as gathers, transpositions and constants.

rewrite:
    ReverseSequence(x, n)      =>  Gather(rows of x, Where(t < n, n - 1 - t, t))
    SpaceToDepth(x), mode=CRD  =>  Reshape(Transpose(Reshape(x)))
    EyeLike(x)                 =>  ones on a diagonal
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, extents_of, node_of


def _reverse(op: Any, x: Any, lengths: Any) -> Any:
    return op.ReverseSequence(x, lengths, _outputs=["y"])


def _is_known(_: Any, x: ir.Value, **__: Any) -> bool:
    return bool(extents_of(x))


def _reversed(op: Any, x: ir.Value, lengths: ir.Value, y: ir.Value) -> Any:
    """Rows are counted over both axes, the first two, of times and of the batch."""
    times_last = node_of(y).attributes.get_int("time_axis", 0) == 1
    first, second, *rest = extents_of(x)
    batch, times = (first, second) if times_last else (second, first)

    def numbers(name: str, value: Any) -> Any:
        return constant(op, f"{y.name}_{name}", np.asarray(value, np.int64))

    def along(name: str, values: np.ndarray, *, of_times: bool) -> Any:
        return numbers(name, values.reshape((1, -1) if of_times == times_last else (-1, 1)))

    most = op.Min(lengths, numbers("most", times))  # no length takes what is not there
    each = op.Reshape(most, numbers("each", [-1, 1] if times_last else [1, -1]))
    at = along("times", np.arange(times), of_times=True)
    back = op.Sub(op.Sub(each, numbers("one", 1)), at)
    taken = op.Where(op.Less(at, each), back, at)
    own = along("batch", np.arange(batch) * (times if times_last else 1), of_times=False)
    row = op.Add(taken if times_last else op.Mul(taken, numbers("step", batch)), own)
    rows = op.Reshape(x, numbers("rows", [first * second, *rest]))
    moved = op.Gather(rows, op.Reshape(row, numbers("flat", [-1])), axis=0)
    return op.Reshape(moved, numbers("shape", [first, second, *rest]))


def _space_to_depth(op: Any, x: Any) -> Any:
    return op.SpaceToDepth(x, _outputs=["y"])


def _channels_first(_: Any, x: ir.Value, y: ir.Value) -> bool:
    return node_of(y).attributes.get_string("mode", "DCR") == "CRD" and bool(extents_of(x))


def _channels_before_pixels(op: Any, x: ir.Value, y: ir.Value) -> Any:
    side = node_of(y).attributes.get_int("blocksize", 1)
    batch, channels, height, width = extents_of(x)
    blocks = [height // side, width // side]

    def reshape(value: Any, name: str, *shape: int) -> Any:
        return op.Reshape(value, constant(op, f"{y.name}_{name}", np.array(shape, np.int64)))

    apart = reshape(x, "apart", batch, channels, blocks[0], side, blocks[1], side)
    turned = op.Transpose(apart, perm=[0, 1, 3, 5, 2, 4])
    return reshape(turned, "blocks", batch, channels * side * side, *blocks)


def _eye_like(op: Any, x: Any) -> Any:
    return op.EyeLike(x, _outputs=["y"])


def _diagonal(op: Any, x: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    kind = ir.DataType(node.attributes.get_int("dtype", x.dtype or ir.DataType.FLOAT))
    rows, columns = extents_of(x)
    eye = np.eye(rows, columns, node.attributes.get_int("k", 0)).astype(kind.numpy())
    return op.Identity(constant(op, f"{y.name}_eye", eye))


rules = (
    RewriteRule(_reverse, _reversed, _is_known, name="ReverseSequence"),
    RewriteRule(_space_to_depth, _channels_before_pixels, _channels_first, name="SpaceToDepth"),
    RewriteRule(_eye_like, _diagonal, _is_known, name="EyeLike"),
)
