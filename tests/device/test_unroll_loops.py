"""`Loop` and `Scan` of known turns, turn by turn, beside ONNX's own definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import make_model, run_plainly, value

import tvm_ext
from tvm_ext.errors import ModelError

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
node = helper.make_node


def typed(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def body(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs))


def looped(condition: str = "Identity") -> onnx.ModelProto:
    """h = tanh(h W + turn x); y = h of each turn."""
    nodes = [
        node(condition, ["going"], ["goes_on"]),
        node("MatMul", ["h", "w"], ["product"]),
        node("Cast", ["turn"], ["number"], to=FLOAT),
        node("Mul", ["x", "number"], ["scaled"]),
        node("Add", ["product", "scaled"], ["sum"]),
        node("Tanh", ["sum"], ["after"]),
        node("Neg", ["after"], ["made"]),
    ]
    inputs = [typed("turn", INT64), typed("going", BOOL), typed("h", FLOAT, 2, 8)]
    outputs = [typed("goes_on", BOOL), typed("after", FLOAT, 2, 8), typed("made", FLOAT, 2, 8)]
    loop = node("Loop", ["turns", "yes", "x"], ["h_out", "y"], body=body(nodes, inputs, outputs))
    rng = np.random.default_rng(0)
    constants = {
        "turns": np.array(7, np.int64),
        "yes": np.array(True),
        "w": rng.standard_normal((8, 8)).astype("float32") / 3,
    }
    return make_model([loop], [value("x", 2, 8)], ["h_out", "y"], constants)


def scanned(**attributes: Any) -> onnx.ModelProto:
    """h = h x_t + h; y = h of each turn, along axes and in directions that are said."""
    nodes = [
        node("Mul", ["h", "x_t"], ["product"]),
        node("Add", ["product", "h"], ["after"]),
        node("Identity", ["after"], ["made"]),
    ]
    inputs, outputs = (
        [typed(name, FLOAT, 3, 5) for name in names] for names in (("h", "x_t"), ("after", "made"))
    )
    scan = node(
        "Scan",
        ["start", "x"],
        ["h_out", "y"],
        num_scan_inputs=1,
        body=body(nodes, inputs, outputs),
        **attributes,
    )
    shape = [3, 5]
    shape.insert(attributes.get("scan_input_axes", [0])[0], 6)
    return make_model([scan], [value("start", 3, 5), value("x", *shape)], ["h_out", "y"], {})


def nested() -> onnx.ModelProto:
    """Adds turn * inner turn to x, and changes its sign."""
    inner_nodes = [
        node("Identity", ["inner_going"], ["inner_on"]),
        node("Mul", ["inner_turn", "turn"], ["both"]),
        node("Cast", ["both"], ["number"], to=FLOAT),
        node("Add", ["z", "number"], ["z_after"]),
    ]
    inner = body(
        inner_nodes,
        [typed("inner_turn", INT64), typed("inner_going", BOOL), typed("z", FLOAT, 4)],
        [typed("inner_on", BOOL), typed("z_after", FLOAT, 4)],
    )
    nodes = [
        node("Identity", ["going"], ["goes_on"]),
        node("Loop", ["turns", "yes", "h"], ["added"], body=inner),
        node("Neg", ["added"], ["after"]),
    ]
    inputs = [typed("turn", INT64), typed("going", BOOL), typed("h", FLOAT, 4)]
    outputs = [typed("goes_on", BOOL), typed("after", FLOAT, 4)]
    loop = node("Loop", ["turns", "", "x"], ["y"], body=body(nodes, inputs, outputs))
    constants = {"turns": np.array(3, np.int64), "yes": np.array(True)}
    return make_model([loop], [value("x", 4)], ["y"], constants)


MODELS = {
    "a loop": looped(),
    "a scan": scanned(),
    "a scan from its end": scanned(scan_input_directions=[1], scan_output_directions=[1]),
    "a scan along other axes": scanned(scan_input_axes=[2], scan_output_axes=[1]),
    "a loop in a loop": nested(),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_turns(model: onnx.ModelProto) -> None:
    rng = np.random.default_rng(1)
    data = {
        one.name: rng.standard_normal(
            [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        ).astype("float32")
        for one in model.graph.input
    }
    compiled = tvm_ext.compile(model, num_threads=2)
    expected = run_plainly(model, data)
    for one, other in zip(compiled(data), expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_turns_that_data_say_are_refused() -> None:
    with pytest.raises(ModelError, match="Loop"):
        tvm_ext.compile(looped(condition="Not"))
