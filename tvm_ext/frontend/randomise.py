"""Random weights for models that ship without real ones, such that the signal survives.

A network with constant weights computes a constant, and hides every error of a compiler. He et
al. 2015 ("Delving Deep into Rectifiers", section 2.2) draw each weight from N(0, 1 / (n E[x^2])),
n its fan-in: the mean square of every layer's result is then 1. They know E[x^2] to be 1/2 after
a ReLU; here it is estimated along the graph, so that pools, sums and concatenations are met too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import onnx
from onnx import helper, numpy_helper

# What an operator does to the mean square of its input, for a roughly Gaussian one.
GAIN = {
    "Relu": 0.5,
    "Clip": 0.5,
    "LeakyRelu": 0.5,
    "PRelu": 0.5,
    "Elu": 0.6,
    "Gelu": 0.4,
    "HardSwish": 0.3,
    "MaxPool": 2.5,
    "AveragePool": 0.5,
    "GlobalAveragePool": 0.3,
    "ReduceMean": 0.3,
}
# Operators whose result has a mean square of its own, whatever the input's.
FIXED = {
    "Sigmoid": 0.3,
    "HardSigmoid": 0.3,
    "Tanh": 0.4,
    "Softmax": 0.1,
    "LayerNormalization": 1.0,
    "InstanceNormalization": 1.0,
    "GroupNormalization": 1.0,
}
# Which inputs are parameters, and how each is drawn.
PARAMETERS = {
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "Gemm": {1: "weight", 2: "bias"},
    "MatMul": {1: "weight"},
    "BatchNormalization": {1: "scale", 2: "bias", 3: "mean", 4: "variance"},
    "InstanceNormalization": {1: "scale", 2: "bias"},
    "LayerNormalization": {1: "scale", 2: "bias"},
    "GroupNormalization": {1: "scale", 2: "bias"},
    "Gather": {0: "table"},
    "Mul": {0: "scale", 1: "scale"},
    "Add": {0: "bias", 1: "bias"},
}
RESHAPING = ("Identity", "Reshape", "Unsqueeze", "Squeeze")


def randomise(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of `model` whose constant weights are random; deterministic by `seed`.

    A weight is replaced if `ConstantOfShape` makes it, or if all its elements are equal; weights
    with values of their own are kept, and so is everything that is no parameter of an operator in
    PARAMETERS. Batch norm statistics follow the signal, as after training.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _Randomiser(result.graph, np.random.default_rng(seed)).run()
    return result
