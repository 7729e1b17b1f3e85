"""Constants that onnxscript takes for zero: its rewriting compares with a tolerance of 1e-8.

    sqrt(variance + 1e-12)   must not become   sqrt(variance)

which is what keeps a layer norm of equal elements (a class token that is all zeros) from dividing
by zero. While it works such constants are inputs of the graph, of which it knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser

LARGEST = 1e-6
"""Larger numbers are never taken for zero."""
_NAME = "tvm_ext_tiny_"


@contextmanager
def hidden_tiny_constants(graph: ir.Graph) -> Iterator[None]:
    """Makes every tiny number that is added or subtracted an input of the graph meanwhile."""
    inputs: dict[tuple[object, ...], ir.Value] = {}
    tensors: dict[str, np.ndarray] = {}
    for node in graph:
        for place, value in enumerate(node.inputs if node.op_type in ("Add", "Sub") else ()):
            array = None if value is None else _tiny(value)
            if value is None or array is None:
                continue
            key = (value.dtype, array.shape, array.tobytes())
            if key not in inputs:
                name = f"{_NAME}{len(inputs)}"
                inputs[key] = ir.Value(name=name, type=value.type, shape=value.shape)
                graph.inputs.append(inputs[key])
                tensors[name] = array
            node.replace_input_with(place, inputs[key])
    yield
    for value in list(graph.inputs):
        array = tensors.get(value.name or "")
        if array is not None:
            known = add_initialiser(graph, value.name or "", array)
            ir.convenience.replace_all_uses_with(value, known)
            graph.inputs.remove(value)


def _tiny(value: ir.Value) -> np.ndarray | None:
    """The constant, if it is one tiny number that is not zero."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_floating_point():
        return None
    array = tensor.numpy()
    return array if 0 < abs(float(array.reshape(()))) < LARGEST else None
