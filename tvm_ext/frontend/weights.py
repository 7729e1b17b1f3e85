"""Weights apart from the graph, so that no pass over a model copies or serialises them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from tvm_ext.errors import ModelError

HEAVY_BYTES = 1024
"""A tensor above this size is a weight, never a shape or an axis that a pass wants to know."""


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor the model holds: initialisers and tensor attributes, subgraphs included."""
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    yield attribute.t
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    graphs.append(attribute.g)


def arrays(model: onnx.ModelProto) -> Iterator[np.ndarray]:
    """Every weight that the model holds."""
    for tensor in tensors(model):
        if _nbytes(tensor) > HEAVY_BYTES:
            yield numpy_helper.to_array(tensor)


def detach_weights(
    model: onnx.ModelProto,
) -> tuple[onnx.ModelProto, dict[str, onnx.TensorProto]]:
    """A light copy of `model`, and its weights by name.

    Tensors over HEAVY_BYTES (initialisers and `Constant` nodes) become graph inputs of the copy,
    so that onnx's C++ passes, which serialise what they are given, stay fast and may be used on
    models over 2 GB. The weights are the tensors of `model` itself, not copies.
    """
    graph = model.graph
    # Before version 4 every initialiser had to be listed as an input as well.
    light = onnx.ModelProto(ir_version=max(4, model.ir_version))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    copy = light.graph
    copy.name = "graph"
    weights: dict[str, onnx.TensorProto] = {}
    for tensor in graph.initializer:
        if _nbytes(tensor) > HEAVY_BYTES:
            weights[tensor.name] = tensor
        else:
            copy.initializer.append(tensor)
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if value is not None and _nbytes(value) > HEAVY_BYTES:
                weights[node.output[0]] = value
                continue
        copy.node.append(node)
    initialisers = {tensor.name for tensor in graph.initializer}
    copy.input.extend(i for i in graph.input if i.name not in initialisers)
    copy.input.extend(
        helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in weights.items()
    )
    copy.output.extend(graph.output)
    copy.value_info.extend(graph.value_info)
    return light, weights


def attach_weights(model: ir.Model, weights: Mapping[str, onnx.TensorProto]) -> ir.Model:
    """Undo `detach_weights`: inputs that stand for weights become initialisers, uncopied."""
    graph = model.graph
    for value in list(graph.inputs):
        if value.name is None or value.name not in weights:
            continue
        proto = weights[value.name]
        graph.inputs.remove(value)
        value.const_value = ir.LazyTensor(
            partial(_read_weight, value.name, proto),
            dtype=ir.DataType(proto.data_type),
            shape=ir.Shape(proto.dims),
            name=value.name,
        )
        graph.register_initializer(value)
    return model


def check_data(tensor: onnx.TensorProto) -> None:
    """Raise ModelError if a small tensor does not fill its shape; weights are checked when read."""
    if _nbytes(tensor) <= HEAVY_BYTES:
        try:
            numpy_helper.to_array(tensor)
        except (KeyError, TypeError, ValueError) as error:
            raise _unfilled(tensor.name, tensor, error) from None


def _read_weight(name: str, tensor: onnx.TensorProto) -> ir.TensorProtocol:
    try:
        return ir.Tensor(ir.from_proto(tensor).numpy(), dtype=ir.DataType(tensor.data_type))
    except ValueError as error:
        raise _unfilled(name, tensor, error) from None


def _unfilled(name: str, tensor: onnx.TensorProto, error: Exception) -> ModelError:
    return ModelError(
        f"the data of constant {name!r} does not fill its shape {tuple(tensor.dims)}: {error}; "
        "export the model again"
    )


def _nbytes(tensor: onnx.TensorProto) -> int:
    """Size by shape and type (protobuf's `ByteSize` would serialise the tensor to tell)."""
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (TypeError, ValueError):
        # Strings, and types that onnx's checker has yet to complain of.
        return 0
    return prod(tensor.dims) * bits // 8
