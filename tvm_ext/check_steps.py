"""What rounding decides in a quantised model: the steps of its outputs, and scales moved a little.

A sum that lies half way between two steps is rounded to either, as its last bit says; engines that
multiply and divide in another order differ by a step there, and by more behind it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tvm_ext.frontend.weights import tensors

QUANTISERS = ("Quantize", "QLinear", "QGemm", "Integer")
"""In the names of operators that round to steps."""
MOVES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"))
MOST = 1 << 14
"""Elements of a constant that is moved; larger ones are weights, which are integers."""
LARGEST = float(np.finfo(np.float32).max)
"""What masks are filled with: moved up, it would be infinite."""


def output_steps(model: onnx.ModelProto) -> list[float]:
    """The step of each output that is dequantised, 0 of others."""
    graph = model.graph
    scales = {one.name: one for one in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}

    def step(name: str) -> float:
        node = makers.get(name)
        while node is not None and node.op_type in MOVES:
            node = makers.get(node.input[0])
        if node is None or node.op_type != "DequantizeLinear" or node.input[1] not in scales:
            return 0.0
        return float(numpy_helper.to_array(scales[node.input[1]]).max())

    return [step(output.name) for output in graph.output]


def nudged_scales(model: onnx.ModelProto, seed: int, most: float) -> onnx.ModelProto | None:
    """A quantised model with other last bits in its scales and biases, each moved by `most` of
    itself at most; None of a model that is not quantised."""
    if not any(kind in node.op_type for node in model.graph.node for kind in QUANTISERS):
        return None
    result = onnx.ModelProto()
    result.CopyFrom(model)
    rng = np.random.default_rng(seed)
    for tensor in tensors(result):
        if tensor.data_type != TensorProto.FLOAT or int(np.prod(tensor.dims)) > MOST:
            continue
        values = numpy_helper.to_array(tensor)
        moved = values * (1 + rng.uniform(-most, most, values.shape))
        moved = np.where(np.abs(moved) <= LARGEST, moved, values)
        tensor.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), tensor.name))
    return result
