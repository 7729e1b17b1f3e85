"""A small ONNX model with every kind of kernel: convolution, pooling, softmax, norm, product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

X = np.random.default_rng(1).standard_normal((1, 3, 18, 17), dtype="float32")
BOUND = 1e-4


def tiny_model(seed: int = 0) -> onnx.ModelProto:
    """`x` (1, 3, 18, 17) → `probabilities` (1, 10) and `features` (1, 24)."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        data = rng.standard_normal(shape) * np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
        return numpy_helper.from_array(data.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Add", ["c1", "r0"], ["s"]),
        helper.make_node("Conv", ["s", "w2"], ["c2"], strides=[2, 2]),
        helper.make_node("MaxPool", ["c2"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("LayerNormalization", ["f", "scale", "shift"], ["features"]),
        helper.make_node("Gemm", ["features", "w3", "b3"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 18, 17])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 24]),
        ],
        [
            weight("w0", 16, 3, 3, 3),
            weight("b0", 16),
            weight("w1", 16, 1, 3, 3),
            weight("w2", 24, 16, 1, 1),
            weight("scale", 24),
            weight("shift", 24),
            weight("w3", 10, 24),
            weight("b3", 10),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(folder: Path) -> Path:
    """The model in a file."""
    path = folder / "tiny.onnx"
    onnx.save(tiny_model(), str(path))
    return path


def reference(model: Path) -> list[np.ndarray]:
    """What ONNX Runtime makes of `X`, nothing optimised."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(model), options).run(None, {"x": X})


def assert_close(outputs: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Every output within `BOUND` of its largest element."""
    for y, e in zip(outputs, expected, strict=True):
        assert y.shape == e.shape
        assert np.abs(y - e).max() <= BOUND * np.abs(e).max()
