"""Simplify a model and compare it with the original; batch norms with random parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx_models import random_inputs, run_plainly

from tvm_ext.frontend.simplify import simplify
from tvm_ext.frontend.weights import attach_weights, detach_weights

RNG = np.random.default_rng(7)
"""Where all random constants come from."""

NORM = ("gamma", "beta", "mean", "variance")
"""Names of a batch norm's parameters, in its order; a prefix tells two norms apart."""


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as `simplify` leaves it, which has nothing to remark."""
    copy, weights = detach_weights(model)
    result, notes = simplify(attach_weights(ir.from_proto(copy), weights))
    assert notes == ()
    return ir.to_proto(result)


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes there are of each operator."""
    return Counter(node.op_type for node in model.graph.node)


def assert_same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """The same types and shapes, and finite values that differ by rounding alone."""
    for left, right in zip(actual, expected, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert np.isfinite(right).all()
        scale = max(1e-30, float(np.abs(right).max()))
        assert float(np.abs(left - right).max()) <= 2e-6 * scale


def check(model: onnx.ModelProto, left: Mapping[str, int]) -> onnx.ModelProto:
    """Simplify, compare on random inputs, and see that exactly the operators `left` are left."""
    result = simplified(model)
    assert operators(result) == Counter(left)
    inputs = random_inputs(model)
    assert_same(run_plainly(result, inputs), run_plainly(model, inputs))
    return result


def normal(*shape: int) -> np.ndarray:
    """Normally distributed numbers, of float32."""
    return RNG.standard_normal(shape, np.float32)


def norm_constants(channels: int, prefix: str = "") -> dict[str, np.ndarray]:
    """Scale, bias, mean and variance of a batch norm; one scale is negative and one is zero."""
    scale = normal(channels)
    scale[:2] = -1.5, 0.0
    spread = RNG.uniform(0.1, 3.0, channels).astype(np.float32)
    parameters = (scale, normal(channels), normal(channels), spread)
    return {prefix + name: array for name, array in zip(NORM, parameters, strict=True)}


def norm(source: str, result: str, prefix: str = "", **attributes: float) -> onnx.NodeProto:
    """A batch norm with the parameters that `norm_constants` makes under the same prefix."""
    names = [prefix + name for name in NORM]
    return helper.make_node("BatchNormalization", [source, *names], [result], **attributes)
