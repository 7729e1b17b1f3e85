"""Operators on quantised tensors: ONNX Runtime's results, to a step of their scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import check_case

import tvm_ext
from tvm_ext.check import check_model
from tvm_ext.errors import ModelError
from tvm_ext.frontend.quantised import FORMS, MICROSOFT, dequantised

RNG = np.random.default_rng(0)
SCALE, POINT = "scale", "point"


def step(name: str, scale: Any, point: Any) -> list[onnx.TensorProto]:
    """A scale and a zero point by their names."""
    return [
        numpy_helper.from_array(np.array(scale, np.float32), f"{name}_{SCALE}"),
        numpy_helper.from_array(np.array(point), f"{name}_{POINT}"),
    ]


def case(name: str) -> tuple[list[str], dict[str, Any], list[onnx.TensorProto], tuple[int, ...]]:
    """An operator's inputs, its attributes, its constants, and the shape of `x`."""
    point = np.int8(-3)
    own = ["x", f"x_{SCALE}", f"x_{POINT}"]
    result = [f"y_{SCALE}", f"y_{POINT}"]
    second = ["w", f"w_{SCALE}", f"w_{POINT}"]
    x, y = step("x", 0.02, point), step("y", 0.05, np.int8(5))

    def weight(*shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(RNG.integers(-100, 100, shape).astype(np.int8), "w")

    bias = numpy_helper.from_array(RNG.integers(-900, 900, 6).astype(np.int32), "b")
    each = step("w", RNG.uniform(0.005, 0.02, 6), np.zeros(6, np.int8))
    one = step("w", 0.01, np.int8(2))
    match name:
        case "QLinearConv":
            inputs, attributes = [*own, *second, *result, "b"], {"pads": [1] * 4}
            return inputs, attributes, [*x, *y, *each, weight(6, 4, 3, 3), bias], (1, 4, 7, 5)
        case "QLinearMatMul":
            return [*own, *second, *result], {}, [*x, *y, *each, weight(9, 6)], (5, 9)
        case "QGemm":
            inputs = [*own, *second, "b", *result]
            attributes = {"transB": 1, "alpha": 0.5}
            return inputs, attributes, [*x, *y, *one, weight(6, 9), bias], (5, 9)
        case "QLinearAdd" | "QLinearMul":
            return [*own, *second, *result], {}, [*x, *y, *one, weight(5, 9)], (5, 9)
        case "QLinearWhere":
            chosen = numpy_helper.from_array(RNG.random((5, 9)) < 0.5, "chosen")
            inputs = ["chosen", *own, *second, *result]
            return inputs, {}, [*x, *y, *one, weight(5, 9), chosen], (5, 9)
        case "QLinearConcat":
            return [*result, *own, *second], {"axis": 1}, [*x, *y, *one, weight(5, 4)], (5, 9)
        case "QLinearLeakyRelu":
            return [*own, *result], {"alpha": 0.1}, [*x, *y], (5, 9)
        case "QLinearSoftmax":
            small = step("y", 1 / 256, np.int8(-128))
            return [*own, *result], {"axis": -1, "opset": 13}, [*x, *small], (5, 9)
        case "QLinearAveragePool":
            return [*own, *result], {"kernel_shape": [2, 2]}, [*x, *y], (1, 4, 7, 5)
        case "QLinearGlobalAveragePool":
            return [*own, *result], {"channels_last": 0}, [*x, *y], (1, 4, 7, 5)
        case _:
            return [*own, *result], {}, [*x, *y], (5, 9)


def model(name: str, domain: str) -> tuple[onnx.ModelProto, np.ndarray]:
    inputs, attributes, constants, shape = case(name)
    node = helper.make_node(name, inputs, ["y"], name=name, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info("x", TensorProto.INT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT8, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return made, RNG.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize(("domain", "name"), FORMS)
def test_operators_are_those_of_floats(domain: str, name: str) -> None:
    made, x = model(name, domain)
    (expected,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    (found,) = tvm_ext.compile(made)(x)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert (found != expected).mean() <= 0.1, "a step is off where a sum is half way"


@pytest.mark.parametrize(("opset", "same"), [(18, True), (13, True), (12, False)])
def test_a_softmax_of_one_axis_is_restated(opset: int, same: bool) -> None:
    made, _ = model("QLinearSoftmax", MICROSOFT)
    (given,) = (a for a in made.graph.node[0].attribute if a.name == "opset")
    given.i = opset
    kinds = {node.op_type for node in dequantised(made).graph.node}
    assert kinds == (
        {"DequantizeLinear", "Softmax", "QuantizeLinear"} if same else {made.graph.name}
    )


def test_channels_last_is_not_restated() -> None:
    made, _ = model("QLinearGlobalAveragePool", MICROSOFT)
    made.graph.node[0].attribute[0].i = 1
    with pytest.raises(ModelError, match="QLinearGlobalAveragePool"):
        tvm_ext.compile(made)


def test_a_model_that_rounds_is_judged_by_its_steps() -> None:
    """One step of 8 bits is more than the bound: the other engine's own answer moves as far."""
    made, _ = model("QLinearConv", "")
    floats = [
        helper.make_node("QuantizeLinear", ["given", f"x_{SCALE}", f"x_{POINT}"], ["x"]),
        *made.graph.node,
        helper.make_node("DequantizeLinear", ["y", f"y_{SCALE}", f"y_{POINT}"], ["out"]),
    ]
    graph = helper.make_graph(
        floats,
        "floats",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, (1, 4, 7, 5))],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        made.graph.initializer,
    )
    whole = helper.make_model(graph, opset_imports=made.opset_import, ir_version=9)
    assert check_model(tvm_ext.compile(whole), whole) is not None


def summed(op_type: str, readers: list[onnx.NodeProto], shape: tuple[int, ...]) -> onnx.ModelProto:
    """Sums of products of what is quantised within the model, as `quantize_dynamic` leaves them;
    `readers` make `out` of the integers `sums`."""
    weights = RNG.integers(0, 256, (6, 4, 3, 3) if len(shape) == 4 else (9, 6)).astype(np.uint8)
    constants = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.uint8(120), "w_point"),
    ]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "x_scale", "x_point"]),
        helper.make_node(op_type, ["q", "w", "x_point", "w_point"], ["sums"], op_type),
        *readers,
    ]
    kinds = {"Cast": TensorProto.FLOAT, "Identity": TensorProto.INT32}
    outputs = [
        helper.make_tensor_value_info(node.output[0], kinds[node.op_type], None) for node in readers
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, op_type, [given], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FLOATS = helper.make_node("Cast", ["sums"], ["out"], to=TensorProto.FLOAT)
ITSELF = helper.make_node("Identity", ["sums"], ["same"])


@pytest.mark.parametrize(
    ("op_type", "shape"), [("ConvInteger", (1, 4, 7, 5)), ("MatMulInteger", (5, 9))]
)
@pytest.mark.parametrize("readers", [[FLOATS], [ITSELF], [FLOATS, ITSELF]], ids=["f", "i", "fi"])
def test_sums_of_integers(
    op_type: str, shape: tuple[int, ...], readers: list[onnx.NodeProto]
) -> None:
    """So few products that floats are exact."""
    made = summed(op_type, readers, shape)
    x = RNG.standard_normal(shape, dtype=np.float32)
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    for found, wanted in zip(tvm_ext.compile(made)(x), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    kinds = [node.op_type for node in dequantised(made).graph.node]
    assert op_type not in kinds
    back = kinds.count("Cast") - 4 - (FLOATS in readers)  # of operands, of their points, the reader
    assert back == (ITSELF in readers)


@pytest.mark.parametrize("fed", [["x_zero_point"], []])
def test_convolutions_of_integers_pad_with_their_zero_point(fed: list[str]) -> None:
    check_case("convinteger_with_padding", fed)


def test_zero_points_of_rows_are_left_to_the_importer() -> None:
    made = summed("MatMulInteger", [ITSELF], (5, 9))
    points = np.arange(5, dtype=np.uint8)
    made.graph.initializer.append(numpy_helper.from_array(points, "points"))
    made.graph.node[1].input[0], made.graph.node[1].input[2] = "x", "points"
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    del made.graph.node[0]
    weights = numpy_helper.to_array(made.graph.initializer[0]).astype(int)
    x = RNG.integers(0, 256, (5, 9)).astype(np.uint8)
    (found,) = tvm_ext.compile(made)(x)
    np.testing.assert_array_equal(found, (x.astype(int) - points[:, np.newaxis]) @ (weights - 120))


@pytest.mark.parametrize("point", [np.int8(-3), np.uint16(30000)])
def test_operators_of_both_domains_are_the_same(point: Any) -> None:
    """ONNX Runtime's quantiser writes them in its own for 4 and 16 bits."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s_scale", "s_point"], ["q"], domain=MICROSOFT),
        helper.make_node("DequantizeLinear", ["q", "s_scale", "s_point"], ["y"], domain=MICROSOFT),
    ]
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (5, 9)) for name in ("x", "y")
    )
    graph = helper.make_graph(nodes, "rounded", [given], [made], step("s", 0.02, point))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    x = RNG.standard_normal((5, 9), dtype=np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(tvm_ext.compile(model)(x)[0], expected, rtol=0, atol=1e-6)
    assert model.graph.node[0].domain == MICROSOFT


@pytest.mark.parametrize("point", [np.uint8(3), np.int8(-3), np.uint16(30000), np.int16(-5)])
def test_layers_of_other_scales_share_a_kernel(point: Any) -> None:
    nodes, given, made, constants = [], [], [], []
    for name, scale in (("a", 0.02), ("b", 0.03)):
        own = [f"{name}_{SCALE}", f"{name}_{POINT}"]
        nodes += [
            helper.make_node("QuantizeLinear", [name, *own], [f"{name}_steps"]),
            helper.make_node("DequantizeLinear", [f"{name}_steps", *own], [f"{name}_made"]),
        ]
        given.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (5, 9)))
        made.append(helper.make_tensor_value_info(f"{name}_made", TensorProto.FLOAT, (5, 9)))
        constants += step(name, scale, point)
    graph = helper.make_graph(nodes, "rounded", given, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    inputs = {name: RNG.standard_normal((5, 9), dtype=np.float32) for name in "ab"}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    compiled = tvm_ext.compile(model)
    for found, wanted in zip(compiled(inputs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    assert len(compiled.manifest.groups) == 1
