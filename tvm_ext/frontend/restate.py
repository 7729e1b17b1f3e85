"""Operators in the terms of others: cheaper ones, or those that the importer reads.

rewrite:
    Tanh(Softplus(x))      =>   e (e + 2) / (e (e + 2) + 2),   e = exp(x)
    LpNormalization(x)     =>   x / Sqrt(ReduceSum(x x)), or ReduceSum(Abs(x)); 0 where that is 0

The first is half of Mish, with one exponential instead of two and a logarithm, for tanh(log(1 + e))
= ((1 + e)² - 1) / ((1 + e)² + 1). Nothing cancels; from `FLAT` on it is 1 to the last digit, and e²
would leave the range later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

FLAT = 20.0


def _tanh_of_softplus(op: Any, x: Any) -> Any:
    return op.Tanh(op.Softplus(x))


def _rational(op: Any, x: ir.Value) -> Any:
    flat = _constant(op, f"{x.name}_flat", np.float32(FLAT))
    two = _constant(op, f"{x.name}_two", np.float32(2))
    e = op.Exp(op.Where(op.Greater(x, flat), flat, x))  # what is no number is not greater
    product = op.Mul(e, op.Add(e, two))
    return op.Div(product, op.Add(product, two))


def _is_float(_: Any, x: ir.Value, **__: Any) -> bool:
    return x.dtype == ir.DataType.FLOAT


def _lp_normalization(op: Any, x: Any) -> Any:
    return op.LpNormalization(x, _outputs=["y"])


def _divided(op: Any, x: ir.Value, y: ir.Value) -> Any:
    node = y.producer()
    assert node is not None
    axis = node.attributes.get_int("axis", -1)
    manhattan = node.attributes.get_int("p", 2) == 1
    axes = _constant(op, f"{x.name}_axes", np.array([axis], np.int64))
    zero = _constant(op, f"{x.name}_zero", np.float32(0))
    one = _constant(op, f"{x.name}_one", np.float32(1))
    summed = op.ReduceSum(op.Abs(x) if manhattan else op.Mul(x, x), axes, keepdims=1)
    norm = summed if manhattan else op.Sqrt(summed)
    return op.Div(x, op.Where(op.Equal(norm, zero), one, norm))


def _constant(op: Any, name: str, value: Any) -> ir.Value:
    constant: ir.Value = op.initializer(ir.tensor(np.asarray(value), name=name))
    return constant


rules = (
    RewriteRule(_tanh_of_softplus, _rational, _is_float, name="TanhOfSoftplus"),
    RewriteRule(_lp_normalization, _divided, _is_float, name="LpNormalization"),
)
