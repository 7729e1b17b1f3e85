"""What rounding decides in a quantised model."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.check_steps import nudged_scales, output_steps


def quantised() -> onnx.ModelProto:
    """Three outputs: dequantised and reshaped, dequantised and doubled, integers."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "point"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "point"], ["f"]),
        helper.make_node("Reshape", ["f", "shape"], ["moved"]),
        helper.make_node("Add", ["f", "f"], ["doubled"]),
    ]
    constants = {
        "scale": np.float32(0.25),
        "point": np.uint8(7),
        "shape": np.array([6], np.int64),
    }
    results = {"moved": TensorProto.FLOAT, "doubled": TensorProto.FLOAT, "q": TensorProto.UINT8}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in results.items()],
        [numpy_helper.from_array(np.array(one), name) for name, one in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_the_step_of_an_output_is_its_scale() -> None:
    assert output_steps(quantised()) == [0.25, 0.0, 0.0]


def test_scales_are_moved_and_nothing_else() -> None:
    model = quantised()
    before = model.SerializeToString()
    moved = nudged_scales(model, 0, 2.0**-10)
    assert moved is not None
    assert model.SerializeToString() == before
    found = {one.name: numpy_helper.to_array(one) for one in moved.graph.initializer}
    assert 0 < abs(found["scale"] / 0.25 - 1) <= 2.0**-10
    assert found["point"] == 7
    assert found["shape"].tolist() == [6]


def test_the_largest_number_stays_one() -> None:
    model = quantised()
    largest = np.float32(-np.finfo(np.float32).max)
    model.graph.initializer.append(numpy_helper.from_array(np.array([largest] * 9), "mask"))
    moved = nudged_scales(model, 0, 2.0**-10)
    assert moved is not None
    assert np.isfinite(numpy_helper.to_array(moved.graph.initializer[-1])).all()


def test_a_model_of_floats_is_left() -> None:
    model = quantised()
    del model.graph.node[:2]
    model.graph.node[0].input[0] = model.graph.node[1].input[0] = "x"
    model.graph.node[1].input[1] = "x"
    del model.graph.output[2]
    assert nudged_scales(model, 0, 1e-6) is None
