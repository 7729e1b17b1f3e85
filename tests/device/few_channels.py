"""A model that ends with a convolution to few channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_models import make_model, value

Case = tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]
"""Shape of the data, output channels, kernel, attributes."""


def few_channels(case: Case) -> onnx.ModelProto:
    """A convolution behind another, which leaves channels innermost, with an epilogue."""
    data, outputs, kernel, attributes = case
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, data[1], *kernel), np.float32)
    weight /= np.sqrt(weight[0].size)
    bias = rng.standard_normal(outputs, np.float32)
    first = rng.standard_normal((data[1], data[1], *(1,) * len(kernel)), np.float32) / data[1]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["z"]),
        helper.make_node("Conv", ["z", "w", "b"], ["c"], **attributes),
        helper.make_node("Tanh", ["c"], ["y"]),
    ]
    weights = {"v": first, "w": weight, "b": bias}
    return make_model(nodes, [value("x", *data)], ["y"], weights)
