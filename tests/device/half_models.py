"""What tests of bfloat16 share: rounding, models of a few nodes, kernels by their first plans."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import Target

HOST = resolve("cpu")
HALF = np.dtype(ml_dtypes.bfloat16)


def rounded(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 as float32."""
    return x.astype(HALF).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    given: tuple[int | str, ...],
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """The model of these nodes, from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, given)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kernel(func: Any) -> Any:
    """A function by its first plan, compiled for this machine."""
    graph = prepare(func).graph
    built = build(write(func, pick(graph, HOST)[0].plan), Target(HOST.target))
    assert isinstance(built, Built), built
    return built.main
