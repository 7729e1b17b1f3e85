"""Small ONNX models made by hand, the light models of the onnx package, and a way to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_NAMES = tuple(sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx")))


def light(name: str) -> onnx.ModelProto:
    """One of the nine models that the onnx package carries; its weights are constant."""
    return onnx.load(LIGHT / f"light_{name}.onnx")


def value(
    name: str, *dims: int | str | None, dtype: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    """An input or output."""
    return helper.make_tensor_value_info(name, dtype, list(dims))


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto | str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    **attributes: object,
) -> onnx.ModelProto:
    """A model; an output given by its name alone has no declared shape, and is float32."""
    graph = helper.make_graph(
        nodes,
        "made",
        inputs,
        [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
            if isinstance(output, str)
            else output
            for output in outputs
        ],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **attributes)


def conv_relu(
    data: Sequence[int], outputs: int, kernel: Sequence[int], **attributes: object
) -> onnx.ModelProto:
    """relu(Conv(x, w, b)) with weights of random numbers that keep the size of what they sum."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, data[1], *kernel), np.float32)
    weight /= np.sqrt(weight[0].size)
    bias = rng.standard_normal(outputs, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return make_model(nodes, [value("x", *data)], ["y"], {"w": weight, "b": bias})


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal random values for every input that is no initialiser; its shape must be static."""
    rng = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        entry.name: rng.standard_normal(
            [dim.dim_value for dim in entry.type.tensor_type.shape.dim], np.float32
        )
        for entry in model.graph.input
        if entry.name not in constants
    }


def run_plainly(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes with its own optimisations off, which would hide a wrong one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(inputs)))


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model cut before a final `Softmax`, which would hide all but the largest logits."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    if cut.graph.node[-1].op_type == "Softmax":
        logits = cut.graph.node.pop().input[0]
        del cut.graph.output[:]
        cut.graph.output.append(helper.make_tensor_value_info(logits, TensorProto.FLOAT, None))
    return cut
