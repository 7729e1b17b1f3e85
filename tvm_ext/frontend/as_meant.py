"""Operators as ONNX means them, where TVM's importer takes them for something else.

rewrite:
    MaxPool(x), auto_pad=SAME_*       =>  MaxPool(x), pads            so AveragePool, LpPool
    ReduceSumSquare(x) over no axes   =>  Mul(x, x)                   so the others, each for itself
    MeanVarianceNormalization(x)      =>  d / (Sqrt(ReduceMean(d d)) + 1e-9), d = x - ReduceMean(x)
    LRN(x)                            =>  x / (bias + alpha AveragePool(x x))^beta, over volumes
    ThresholdedRelu(x)                =>  Where(x > alpha, x, 0)

The first was the wrong shape for SAME_LOWER, the second was summed up over all axes, the third the
root of a difference, no number where all elements are alike; LRN took an even number of channels
for one more, and the last multiplied infinities by zero. onnxscript's own rule for a `ScatterND` of
all rows is not used: it takes one that adds for one that replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import (
    constant,
    extents_of,
    is_float,
    mean_of,
    node_of,
    parted,
)

POOLS = ("MaxPool", "AveragePool", "LpPool")
ALONE: dict[str, Callable[[Any, Any], Any]] = {
    "ReduceSumSquare": lambda op, x: op.Mul(x, x),
    "ReduceLogSum": lambda op, x: op.Log(x),
    **dict.fromkeys(("ReduceL1", "ReduceL2"), lambda op, x: op.Abs(x)),
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp"),
        lambda op, x: op.Identity(x),
    ),
}
"""What a reduction makes of one element."""


def _pool(name: str, op: Any, x: Any) -> Any:
    return getattr(op, name)(x, _outputs=["y"])


def _pads_itself(_: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    node = node_of(y)
    same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    return same and len(node.outputs) == 1 and bool(extents_of(x, 2))


def _padded(name: str, op: Any, x: ir.Value, y: ir.Value) -> Any:
    """As many outputs as strides begin, and an odd zero before or behind the rest."""
    given, extents = dict(node_of(y).attributes), extents_of(x, 2)
    late = given.pop("auto_pad").as_string() == "SAME_UPPER"
    given.pop("pads", None)
    rank = len(extents)
    sizes, strides, dilations = (
        list(given[key].as_ints()) if key in given else [1] * rank
        for key in ("kernel_shape", "strides", "dilations")
    )
    before, after = [], []
    for axis, extent in enumerate(extents):
        reach = dilations[axis] * (sizes[axis] - 1) + 1
        missing = (-(-extent // strides[axis]) - 1) * strides[axis] + reach - extent
        first, last = parted(missing, late)
        before.append(first)
        after.append(last)
    kept = {key: attribute.value for key, attribute in given.items() if key != "ceil_mode"}
    return getattr(op, name)(x, pads=[*before, *after], **kept)


def _reduction(name: str, op: Any, x: Any) -> Any:
    return getattr(op, name)(x, _allow_other_inputs=True, _outputs=["y"])


def _over_nothing(_: Any, y: ir.Value, **__: Any) -> bool:
    node = node_of(y)
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    known = axes is None or (axes.const_value is not None and not axes.const_value.size)
    return known and node.attributes.get_int("noop_with_empty_axes", 0) == 1


def _each_alone(name: str, op: Any, x: Any, **_: Any) -> Any:
    return ALONE[name](op, x)


def _normalised(op: Any, x: Any) -> Any:
    return op.MeanVarianceNormalization(x, _outputs=["y"])


def _about_its_mean(op: Any, x: Any, y: ir.Value) -> Any:
    axes = list(node_of(y).attributes.get_ints("axes", [0, 2, 3]))
    least = constant(op, f"{y.name}_least", np.float32(1e-9))
    away = op.Sub(x, mean_of(op, node_of(y), x, axes))
    deviation = op.Sqrt(mean_of(op, node_of(y), op.Mul(away, away), axes))
    return op.Div(away, op.Add(deviation, least))


def _lrn(op: Any, x: Any) -> Any:
    return op.LRN(x, _outputs=["y"])


def _is_float_of_channels(_: Any, x: ir.Value, **__: Any) -> bool:
    return is_float(_, x) and bool(extents_of(x, 1))


def _by_neighbours(op: Any, x: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    size = node.attributes.get_int("size", 1)
    channels, *places = extents_of(x, 1)
    plane = places if len(places) == 2 else [prod(places), 1]

    def number(name: str, default: float) -> Any:
        value = node.attributes.get_float(name, default)
        return constant(op, f"{y.name}_{name}", np.float32(value))

    def reshape(value: Any, name: str, *shape: int) -> Any:
        return op.Reshape(value, constant(op, f"{y.name}_{name}", np.array([0, *shape], np.int64)))

    pooled = op.AveragePool(
        reshape(op.Mul(x, x), "deep", 1, channels, *plane),
        kernel_shape=[size, 1, 1],
        pads=[(size - 1) // 2, 0, 0, size // 2, 0, 0],
        count_include_pad=1,
    )
    means = reshape(pooled, "flat", channels, *places)
    scale = op.Add(op.Mul(means, number("alpha", 1e-4)), number("bias", 1.0))
    return op.Div(x, op.Pow(scale, number("beta", 0.75)))


def _thresholded(op: Any, x: Any) -> Any:
    return op.ThresholdedRelu(x, _outputs=["y"])


def _is_any_float(_: Any, x: ir.Value, **__: Any) -> bool:
    return x.dtype is not None and x.dtype.is_floating_point()


def _above(op: Any, x: ir.Value, y: ir.Value) -> Any:
    assert x.dtype is not None
    alpha, zero = (
        constant(op, f"{y.name}_{name}", np.asarray(value, x.dtype.numpy()))
        for name, value in (("alpha", node_of(y).attributes.get_float("alpha", 1.0)), ("zero", 0))
    )
    return op.Where(op.Greater(x, alpha), x, zero)


rules = (
    RewriteRule(_thresholded, _above, _is_any_float, name="ThresholdedRelu"),
    *(RewriteRule(partial(_pool, n), partial(_padded, n), _pads_itself, name=n) for n in POOLS),
    *(
        RewriteRule(partial(_reduction, n), partial(_each_alone, n), _over_nothing, name=n)
        for n in ALONE
    ),
    RewriteRule(_normalised, _about_its_mean, is_float, name="MeanVariance"),
    RewriteRule(_lrn, _by_neighbours, _is_float_of_channels, name="Lrn"),
)
