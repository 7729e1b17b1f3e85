"""What small ONNX models of attention share: projections to two heads of eight, and weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

rng = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def projections() -> dict[str, np.ndarray]:
    """The weights that `heads_of` takes."""
    return {f"w{name}": weights(16, 16) for name in "qkv"}


def heads_of(turned: str) -> list[onnx.NodeProto]:
    """Queries, keys and values `qr`, `kr`, `vr` of "x", with shape "heads"; of those `turned` also
    with heads first, as `qh`."""
    return [
        *(helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        *(helper.make_node("Reshape", [name, "heads"], [f"{name}r"]) for name in "qkv"),
        *(
            helper.make_node("Transpose", [f"{name}r"], [f"{name}h"], perm=[0, 2, 1, 3])
            for name in turned
        ),
    ]


def behind_kept() -> list[onnx.NodeProto]:
    """`heads_of`, and scores with the "keys" that were kept and new ones behind
    them; all of these and of the values are results."""
    return [
        *heads_of("qkv"),
        helper.make_node("Concat", ["keys", "kh"], ["new_keys"], axis=2),
        helper.make_node("Concat", ["values", "vh"], ["new_values"], axis=2),
        helper.make_node("Transpose", ["new_keys"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["qh", "kt"], ["scores"]),
    ]


def attended() -> list[onnx.NodeProto]:
    """What follows masked scores, by heads: softmax, product with the values, heads side by side,
    and `x` added."""
    return [
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vh"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "flat"], ["joined"]),
        helper.make_node("Add", ["joined", "x"], ["y"]),
    ]
