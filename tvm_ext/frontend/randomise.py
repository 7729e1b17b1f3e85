"""Random weights for models that ship without real ones, such that the signal survives.

A network with constant weights computes a constant, and hides every error of a compiler. He et
al. 2015 ("Delving Deep into Rectifiers", section 2.2) draw each weight from N(0, 1 / (n E[x^2])),
n being its fan-in, which makes the mean square of every layer's result 1. They know E[x^2] after
a ReLU; here mean and variance are carried along the graph, to meet sums, pools and the like too.
"""

from __future__ import annotations

from math import erf, exp, log, pi, prod, sqrt

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Which inputs of an operator are parameters, and how each is drawn.
PARAMETERS = {
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "Gemm": {1: "weight", 2: "bias"},
    "MatMul": {1: "weight"},
    "BatchNormalization": {1: "scale", 2: "bias", 3: "mean", 4: "variance"},
    "InstanceNormalization": {1: "scale", 2: "bias"},
    "LayerNormalization": {1: "scale", 2: "bias"},
    "Gather": {0: "table"},
    "Mul": {0: "scale", 1: "scale"},
    "Add": {0: "bias", 1: "bias"},
}
LAYERS = ("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "Mul", "Add")
RESHAPING = ("Identity", "Reshape", "Squeeze", "Unsqueeze")

Moments = tuple[float, float]
"""Mean and variance over all elements of a tensor, which is taken to be Gaussian."""

# E[s^2] and E[1/v] of scales and variances drawn from U(0.5, 1.5).
SCALE_SQUARE, VARIANCE_INVERSE = 13 / 12, log(3)
RECTIFIERS = ("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Gelu", "HardSwish")
AVERAGES = ("AveragePool", "GlobalAveragePool", "ReduceMean")
# Results whose moments do not depend on the input's, given the weights drawn here.
FIXED: dict[str, Moments] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather"), (0.0, 1.0)),
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization"), (0.0, SCALE_SQUARE)),
    "BatchNormalization": (0.0, SCALE_SQUARE * VARIANCE_INVERSE),
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "Softmax"), (0.5, 0.05)),
    "Tanh": (0.0, 0.4),
}


def randomise(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of `model` whose constant weights are random; the same for the same `seed`.

    A weight is replaced if `ConstantOfShape` makes it or all its elements are equal. In a model
    that has such a weight all parameters of LAYERS are replaced: statistics and biases that fitted
    the lost weights would drown the signal of new ones. What else has values of its own is kept,
    as is a model that has no such weight.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    # Before version 4 every initialiser was an input as well, which a caller could override.
    result.ir_version = max(4, model.ir_version)
    graph = result.graph
    drawn = _draw_parameters(graph, np.random.default_rng(seed))
    constants = {tensor.name for tensor in graph.initializer} | drawn.keys()
    nodes = [node for node in graph.node if drawn.keys().isdisjoint(node.output)]
    read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    kept = [t for t in graph.initializer if t.name in read and t.name not in drawn]
    kept += [numpy_helper.from_array(array, name) for name, array in drawn.items()]
    inputs = [value for value in graph.input if value.name not in constants]
    for field, left in (("node", nodes), ("initializer", kept), ("input", inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(left)
    return result


def _draw_parameters(graph: onnx.GraphProto, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """New values by name, drawn along the graph so that each fits the signal that meets it."""
    blanks = _blanks(graph)
    constants = {tensor.name for tensor in graph.initializer} | blanks.keys()
    moments: dict[str, Moments] = {}
    drawn: dict[str, np.ndarray] = {}
    for node in graph.node:
        data = [moments.get(name, (0.0, 1.0)) for name in node.input if name not in constants]
        before = data[0] if data else (0.0, 1.0)
        for position, kind in PARAMETERS.get(node.op_type, {}).items():
            blank = blanks.get(node.input[position]) if position < len(node.input) else None
            if blank is not None and blank[0] not in drawn:
                name, shape, dtype = blank
                drawn[name] = _draw(rng, kind, node, shape, before).astype(dtype, copy=False)
        moments.update(dict.fromkeys(node.output, _moments_after(node.op_type, data or [before])))
    return drawn


def _moments_after(op_type: str, data: list[Moments]) -> Moments:
    """Moments of the result of an operator, by those of its inputs that are no constants."""
    (mean, variance), means, variances = data[0], [m for m, _ in data], [v for _, v in data]
    if op_type in FIXED:
        return FIXED[op_type]
    if op_type in RECTIFIERS:
        return _rectified(mean, variance)
    if op_type == "MaxPool":
        # The largest of nine independent Gaussian elements (a 3 x 3 window).
        return mean + 1.49 * sqrt(variance), 0.36 * variance
    if op_type in AVERAGES:
        return mean, 0.2 * variance
    if op_type in ("Add", "Sum"):
        return sum(means), sum(variances)
    if op_type == "Concat":
        return sum(means) / len(data), sum(variances) / len(data)
    if op_type == "Mul":
        squares = prod(m * m + v for m, v in data) * (SCALE_SQUARE if len(data) == 1 else 1.0)
        return prod(means), squares - prod(means) ** 2
    return mean, variance


def _rectified(mean: float, variance: float) -> Moments:
    """Moments of max(x, 0) for a Gaussian x."""
    deviation = sqrt(variance)
    ratio = mean / deviation
    above = 0.5 * (1 + erf(ratio / sqrt(2)))
    density = exp(-ratio * ratio / 2) / sqrt(2 * pi)
    first = mean * above + deviation * density
    second = (mean * mean + variance) * above + mean * deviation * density
    return first, second - first * first


def _draw(
    rng: np.random.Generator,
    kind: str,
    node: onnx.NodeProto,
    shape: tuple[int, ...],
    before: Moments,
) -> np.ndarray:
    """One parameter of `node`, whose data input has the moments `before`."""
    mean, variance = before
    if kind in ("scale", "variance"):
        factor = variance if kind == "variance" else 1.0
        return (rng.random(shape, np.float32) + np.float32(0.5)) * np.float32(factor)
    values = rng.standard_normal(shape, np.float32)
    if kind == "weight":
        values *= np.float32(1 / sqrt(_fan_in(node, shape) * (mean * mean + variance)))
    elif kind == "mean":
        values = values * np.float32(0.1 * sqrt(variance)) + np.float32(mean)
    elif kind == "bias":
        values *= np.float32(0.1)
    return values


def _fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    """How many products each result of a linear operator sums, for a weight of this shape."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Conv":
        return prod(shape[1:])
    if node.op_type == "ConvTranspose":
        window = prod(shape[2:]) // prod(attributes.get("strides", [1]))
        return max(1, shape[0] // attributes.get("group", 1) * window)
    return shape[-1 if attributes.get("transB") or len(shape) == 1 else -2]


def _blanks(graph: onnx.GraphProto) -> dict[str, tuple[str, tuple[int, ...], np.dtype]]:
    """Floating-point constants to be replaced, reshaped or not.

    By the name an operator reads: the name, shape and type of the constant behind it.
    """
    initialisers = {tensor.name: tensor for tensor in graph.initializer}
    layers = {
        name
        for node in graph.node
        if node.op_type in LAYERS
        for place, name in enumerate(node.input)
        if place in PARAMETERS[node.op_type]
    }
    for node in reversed(graph.node):
        if node.op_type in RESHAPING and node.output[0] in layers:
            layers.add(node.input[0])
    blanks: dict[str, tuple[str, tuple[int, ...], np.dtype]] = {}

    def add(name: str, shape: tuple[int, ...], data_type: int) -> None:
        dtype = helper.tensor_dtype_to_np_dtype(data_type)
        if prod(shape) > 1 and np.issubdtype(dtype, np.floating):
            blanks[name] = (name, shape, dtype)

    made = any(node.op_type == "ConstantOfShape" for node in graph.node)
    for tensor in graph.initializer:
        if _has_one_value(tensor) or (made and tensor.name in layers):
            add(tensor.name, tuple(tensor.dims), tensor.data_type)
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in initialisers:
            shape = numpy_helper.to_array(initialisers[node.input[0]])
            value = next((a.t.data_type for a in node.attribute), onnx.TensorProto.FLOAT)
            add(node.output[0], tuple(shape.tolist()), value)
        elif node.op_type in RESHAPING and node.input[0] in blanks:
            blanks[node.output[0]] = blanks[node.input[0]]
    return blanks


def _has_one_value(tensor: onnx.TensorProto) -> bool:
    array = numpy_helper.to_array(tensor)
    return array.size > 0 and bool((array == array.flat[0]).all())
