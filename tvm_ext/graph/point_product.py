"""Products that take the channels of each point by itself: by a constant matrix, and convolutions
of one tap. What the passes share that move and join them (`multiply_fewest`, `fold_products`)."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.channels_last import CONVOLUTIONS
from tvm_ext.graph.layout_rules import is_plain_conv
from tvm_ext.graph.straight import dtype_of
from tvm_ext.tvm_api import constant_array, op_name, static_extents

LEAST_FLOPS = 1e6
"""Arithmetic that is worth a kernel of its own: some microseconds."""


class Product(NamedTuple):
    """A product by constant weights, and the axes of operand and weights that it sums over."""

    weights: np.ndarray
    axis: int
    summed: int

    @classmethod
    def of(cls, call: Any) -> Product | None:
        """That of a call, if it takes every point of its operand by itself; None of others."""
        name = op_name(call)
        if name != "relax.matmul" and name not in CONVOLUTIONS:
            return None
        weights, shape = constant_array(call.args[1]), static_extents(call.args[0].ty)
        if weights is None or shape is None:
            return None
        if name == "relax.matmul":
            return cls(weights, len(shape) - 1, 0) if weights.ndim == 2 else None
        alone = call.attrs.groups == 1 and prod(weights.shape[2:]) == 1
        plain = is_plain_conv(call) and not any(int(pad) for pad in call.attrs.padding)
        return cls(weights, 1, 1) if alone and plain else None

    def matrix(self) -> np.ndarray:
        """The weights by channels in and out, in double precision."""
        wide = self.weights.astype(np.float64)
        return wide.reshape(len(wide), -1).T if self.summed else wide

    def shaped(self, matrix: np.ndarray) -> np.ndarray:
        """Another such matrix as weights of the same operator."""
        narrow = np.ascontiguousarray(matrix.T if self.summed else matrix, np.float32)
        return narrow.reshape(*narrow.shape, *self.weights.shape[2:])


class Biased(NamedTuple):
    """A tensor to which a constant is added for each channel; `bias` is that of the module."""

    operand: Any
    bias: Any


def with_bias(value: Any, axis: int) -> Biased | None:
    """What a value adds such constants to, channels along that axis; None where it is no such
    sum."""
    shape = static_extents(value.ty)
    if shape is None or op_name(value) != "relax.add":
        return None
    operand, bias = sorted(value.args, key=lambda one: constant_array(one) is not None)
    array = constant_array(bias)
    place = axis - len(shape) + (array.ndim if array is not None else 0)
    if array is None or place < 0 or not array.size == array.shape[place] == shape[axis]:
        return None
    return Biased(operand, bias)


def takes_all_points(call: Any) -> bool:
    """Whether a product has a result for each point of what it is given."""
    return op_name(call) == "relax.matmul" or set(map(int, call.attrs.strides)) == {1}


def is_float32(tensor: Any) -> bool:
    """Whether a tensor is of numbers that hardly change where they are summed in another order."""
    return dtype_of(tensor) == "float32"
