"""A simplified model computes what the original does in ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx_models import (
    light,
    make_model,
    random_inputs,
    run_plainly,
    value,
    without_softmax,
)

from tvm_ext.frontend.randomise import randomise
from tvm_ext.frontend.simplify import simplify
from tvm_ext.frontend.weights import attach_weights, detach_weights

pytest.importorskip("onnxruntime")

node = helper.make_node


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    copy, weights = detach_weights(model)
    result, notes = simplify(attach_weights(ir.from_proto(copy), weights))
    assert notes == ()
    return ir.to_proto(result)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def assert_same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for left, right in zip(actual, expected, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert np.isfinite(right).all()
        scale = max(1e-30, float(np.abs(right).max()))
        assert float(np.abs(left - right).max()) <= 2e-6 * scale


def check(model: onnx.ModelProto, left: Mapping[str, int]) -> onnx.ModelProto:
    """Simplify, compare on random inputs, and see that exactly the operators `left` are left."""
    result = simplified(model)
    assert operators(result) == Counter(left)
    inputs = random_inputs(model)
    assert_same(run_plainly(result, inputs), run_plainly(model, inputs))
    return result


RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


NORM = ("gamma", "beta", "mean", "variance")


def norm_constants(channels: int, prefix: str = "") -> dict[str, np.ndarray]:
    """Scale, bias, mean and variance of a batch norm; one scale is negative and one is zero."""
    scale = normal(channels)
    scale[:2] = -1.5, 0.0
    spread = RNG.uniform(0.1, 3.0, channels).astype(np.float32)
    parameters = (scale, normal(channels), normal(channels), spread)
    return {prefix + name: array for name, array in zip(NORM, parameters, strict=True)}


def norm(source: str, result: str, prefix: str = "", **attributes: float) -> onnx.NodeProto:
    names = [prefix + name for name in NORM]
    return node("BatchNormalization", [source, *names], [result], **attributes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("operator", "shape", "channels", "attributes"),
    [
        ("Conv", (8, 6, 3, 3), 8, {"pads": [1, 1, 1, 1]}),
        ("Conv", (8, 3, 3, 3), 8, {"group": 2, "strides": [2, 2]}),
        ("Conv", (6, 1, 3, 3), 6, {"group": 6, "dilations": [2, 2]}),
        ("ConvTranspose", (6, 4, 3, 3), 4, {"strides": [2, 2], "output_padding": [1, 1]}),
        ("ConvTranspose", (6, 4, 3, 3), 8, {"group": 2}),
        ("ConvTranspose", (6, 1, 2, 2), 6, {"group": 6}),
    ],
)
def test_batch_norm_after_convolution(
    operator: str,
    shape: tuple[int, ...],
    channels: int,
    attributes: dict[str, object],
    bias: bool,
) -> None:
    constants = {"w": normal(*shape), **norm_constants(channels)}
    if bias:
        constants["c"] = normal(channels)
    model = make_model(
        [
            node(operator, ["x", "w", *(["c"] if bias else [])], ["a"], **attributes),
            norm("a", "y", epsilon=1e-3),
        ],
        [value("x", 2, 6, 9, 9)],
        ["y"],
        constants,
    )
    check(model, {operator: 1})


@pytest.mark.parametrize(
    ("attributes", "bias"),
    [
        ({}, (5,)),
        ({"transB": 1}, (1, 5)),
        ({"transA": 1, "alpha": 0.5, "beta": 2.0}, (4, 5)),
        ({"beta": 0.0}, ()),
        ({"alpha": 2.0}, None),
    ],
)
def test_batch_norm_after_gemm(attributes: dict[str, float], bias: tuple[int, ...] | None) -> None:
    constants = {"w": normal(5, 3) if attributes.get("transB") else normal(3, 5)}
    constants |= norm_constants(5)
    if bias is not None:
        constants["c"] = np.asarray(normal(*bias), np.float32)
    model = make_model(
        [
            node("Gemm", ["x", "w", *(["c"] if bias is not None else [])], ["a"], **attributes),
            norm("a", "y"),
        ],
        [value("x", 3, 4) if attributes.get("transA") else value("x", 4, 3)],
        ["y"],
        constants,
    )
    check(model, {"Gemm": 1})


def test_chains_of_norms_and_arithmetic_become_one_map() -> None:
    """Conv, batch norm, scale, shift (as in Caffe models); numbers and either operand order."""
    model = make_model(
        [
            node("Conv", ["x", "w"], ["a"]),
            norm("a", "b"),
            node("Unsqueeze", ["scale", "axes"], ["scale3"]),
            node("Mul", ["b", "scale3"], ["c"]),
            node("Unsqueeze", ["shift", "axes"], ["shift3"]),
            node("Add", ["shift3", "c"], ["d"]),
            node("Sub", ["half", "d"], ["e"]),
            node("Div", ["e", "scale3"], ["f"]),
            node("Sub", ["f", "shift3"], ["y"]),
        ],
        [value("x", 1, 3, 5, 5)],
        ["y"],
        {
            "w": normal(4, 3, 3, 3),
            "scale": RNG.uniform(0.5, 2, 4).astype(np.float32),
            "shift": normal(4),
            "axes": np.array([1, 2]),
            "half": np.array(0.5, np.float32),
            **norm_constants(4),
        },
    )
    check(model, {"Conv": 1})


def test_batch_norm_without_a_convolution_is_one_mul_and_one_add() -> None:
    model = make_model(
        [
            node("Concat", ["x", "x"], ["a"], axis=1),
            norm("a", "b"),
            node("Mul", ["b", "s"], ["c"]),
            node("Add", ["c", "t"], ["y"]),
        ],
        [value("x", 2, 3, 4, 4)],
        ["y"],
        {**norm_constants(6), "s": normal(6, 1, 1), "t": normal(1, 6, 1, 1)},
    )
    check(model, {"Concat": 1, "Mul": 1, "Add": 1})


def test_batch_norm_of_a_matrix() -> None:
    model = make_model(
        [node("Relu", ["x"], ["a"]), norm("a", "y")], [value("x", 4, 6)], ["y"], norm_constants(6)
    )
    check(model, {"Relu": 1, "Mul": 1, "Add": 1})


def test_batch_norm_that_changes_nothing_disappears() -> None:
    constants = {
        name: np.full(3, number, np.float32)
        for name, number in zip(NORM, (1, 0, 0, 1), strict=True)
    }
    model = make_model(
        [node("Relu", ["x"], ["a"]), norm("a", "b", epsilon=0.0), node("Neg", ["b"], ["y"])],
        [value("x", 2, 3, 4)],
        ["y"],
        constants,
    )
    check(model, {"Relu": 1, "Neg": 1})


def test_a_convolution_that_others_read_is_left_alone() -> None:
    """Two readers, or a reader and the caller, still get the convolution's own result."""
    constants = {"w": normal(4, 3, 3, 3), **norm_constants(4)}
    nodes = [node("Conv", ["x", "w"], ["a"]), norm("a", "b")]
    two_readers = make_model(
        [*nodes, node("Relu", ["a"], ["c"]), node("Sub", ["b", "c"], ["y"])],
        [value("x", 1, 3, 5, 5)],
        ["y"],
        constants,
    )
    check(two_readers, {"Conv": 1, "Mul": 1, "Add": 1, "Relu": 1, "Sub": 1})
    an_output = make_model(nodes, [value("x", 1, 3, 5, 5)], ["a", "b"], constants)
    check(an_output, {"Conv": 1, "Mul": 1, "Add": 1})


def test_a_chain_that_others_read_midway_is_cut_there() -> None:
    model = make_model(
        [
            node("Conv", ["x", "w"], ["a"]),
            norm("a", "b"),
            node("Mul", ["b", "s"], ["c"]),
            node("Mul", ["c", "s"], ["d"]),
            node("Add", ["d", "b"], ["y"]),
        ],
        [value("x", 1, 3, 5, 5)],
        ["y"],
        {"w": normal(4, 3, 3, 3), "s": normal(4, 1, 1), **norm_constants(4)},
    )
    check(model, {"Conv": 1, "Mul": 1, "Add": 1})


def test_a_shared_weight_is_scaled_for_one_reader_only() -> None:
    model = make_model(
        [
            node("Conv", ["x", "w", "c"], ["a"]),
            norm("a", "b"),
            node("Conv", ["b", "w", "c"], ["d"]),
            norm("d", "e", "second"),
            node("Conv", ["e", "w", "c"], ["y"]),
        ],
        [value("x", 1, 4, 9, 9)],
        ["y"],
        {
            "w": normal(4, 4, 3, 3),
            "c": normal(4),
            **norm_constants(4),
            **norm_constants(4, "second"),
        },
    )
    check(model, {"Conv": 3})


@pytest.mark.parametrize(
    "operand",
    [(1, 1, 5), (4, 5, 1), (4, 5, 5), (2, 1, 1, 1), (1, 2, 4, 1, 1)],
    ids=["columns", "rows", "elements", "widens the batch", "higher rank"],
)
def test_operands_that_are_not_per_channel_are_not_folded(operand: tuple[int, ...]) -> None:
    model = make_model(
        [node("Conv", ["x", "w"], ["a"]), node("Mul", ["a", "s"], ["y"])],
        [value("x", 1, 3, 7, 7)],
        ["y"],
        {"w": normal(4, 3, 3, 3), "s": normal(*operand)},
    )
    check(model, {"Conv": 1, "Mul": 1})


def test_an_operand_that_widens_one_channel_is_not_folded() -> None:
    model = make_model(
        [node("Conv", ["x", "w"], ["a"]), node("Add", ["a", "s"], ["y"])],
        [value("x", 1, 3, 7, 7)],
        ["y"],
        {"w": normal(1, 3, 3, 3), "s": normal(6, 1, 1)},
    )
    check(model, {"Conv": 1, "Add": 1})


def test_numbers_on_a_tensor_of_rank_zero_keep_its_rank() -> None:
    model = make_model(
        [
            node("ReduceSum", ["x"], ["a"], keepdims=0),
            node("Mul", ["a", "number"], ["b"]),
            node("Div", ["b", "number"], ["c"]),
            node("Sub", ["number", "c"], ["y"]),
        ],
        [value("x", 2, 3)],
        ["y"],
        {"number": np.array(0.3, np.float32)},
    )
    check(model, {"ReduceSum": 1, "Mul": 1, "Add": 1})


def test_integers_are_left_alone() -> None:
    model = make_model(
        [
            node("Cast", ["x"], ["a"], to=onnx.TensorProto.INT32),
            node("Div", ["a", "two"], ["b"]),
            node("Mul", ["b", "two"], ["c"]),
            node("Cast", ["c"], ["y"], to=onnx.TensorProto.FLOAT),
        ],
        [value("x", 50)],
        ["y"],
        {"two": np.array(2, np.int32)},
    )
    check(model, {"Cast": 2, "Div": 1, "Mul": 1})


def test_a_scale_that_would_overflow_is_not_composed() -> None:
    model = make_model(
        [node("Mul", ["x", "big"], ["a"]), node("Mul", ["a", "big"], ["y"])],
        [value("x", 4)],
        ["y"],
        {"big": np.array(1e30, np.float32)},
    )
    assert operators(simplified(model)) == {"Mul": 2}


def test_made_weights_dropout_and_identity_are_gone() -> None:
    model = make_model(
        [
            node("ConstantOfShape", ["s"], ["w"], value=helper.make_tensor("v", 1, [1], [0.25])),
            node("Identity", ["w"], ["w2"]),
            node("MatMul", ["x", "w2"], ["a"]),
            node("Dropout", ["a"], ["b", "mask"]),
            node("Identity", ["b"], ["c"]),
            node("Relu", ["c"], ["y"]),
        ],
        [value("x", 2, 30)],
        ["y"],
        {"s": np.array([30, 40])},
        opset=9,
    )
    check(model, {"MatMul": 1, "Relu": 1})


def test_shape_arithmetic_is_folded() -> None:
    model = make_model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Slice", ["shape", "zero", "two"], ["head"]),
            node("Concat", ["head", "minus"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["y"]),
        ],
        [value("x", 2, 3, 4, 5)],
        ["y"],
        {"zero": np.array([0]), "two": np.array([2]), "minus": np.array([-1])},
    )
    check(model, {"Reshape": 1})


@pytest.mark.parametrize("epsilon", [1e-12, 1e-8, 1e-5])
def test_an_epsilon_is_not_taken_for_zero(epsilon: float) -> None:
    """Elements that are all equal have no variance: their norm is zero, not NaN."""
    model = make_model(
        [
            node("ReduceMean", ["x"], ["m"], axes=[-1]),
            node("Sub", ["x", "m"], ["d"]),
            node("Mul", ["d", "d"], ["s"]),
            node("ReduceMean", ["s"], ["v"], axes=[-1]),
            node("Add", ["v", "e"], ["w"]),
            node("Sqrt", ["w"], ["r"]),
            node("Div", ["d", "r"], ["a"]),
            node("Sub", ["m", "e"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [value("x", 3, 8)],
        ["y"],
        {"e": np.array(epsilon, np.float32)},
        opset=14,
    )
    result = simplified(model)
    assert operators(result) == operators(model)
    assert [given.name for given in result.graph.input] == ["x"]
    inputs = {"x": np.zeros((3, 8), np.float32)}
    assert_same(run_plainly(result, inputs), run_plainly(model, inputs))


def test_shapes_that_are_known_only_when_others_are() -> None:
    """A class token repeated for a batch whose size is that of a reshape by -1: the sizes left to
    the data are known once the reshape's own are constants (PVT, Swin)."""
    numbers = {"zero": [0], "minus": [-1], "three": [3]}
    model = make_model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["first"], axis=0),
            node("Concat", ["first", "three", "minus"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["rows"]),
            node("Transpose", ["rows"], ["a"], perm=[0, 2, 1]),
            node("Shape", ["a"], ["t"]),
            node("Gather", ["t", "zero"], ["batch"], axis=0),
            node("Concat", ["batch", "minus", "minus"], ["asked"], axis=0),
            node("Reshape", ["asked", "minus"], ["flat"]),
            node("Shape", ["flat"], ["u"]),
            node("ConstantOfShape", ["u"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])),
            node("Mul", ["ones", "minus"], ["unasked"]),
            node("Equal", ["flat", "unasked"], ["kept"]),
            node("Where", ["kept", "ones", "flat"], ["wide"]),
            node("Expand", ["token", "wide"], ["e"]),
            node("Add", ["a", "e"], ["y"]),
        ],
        [value("x", 2, 4, 6)],
        ["y"],
        {"token": normal(1, 1, 3)} | {name: np.array(n) for name, n in numbers.items()},
    )
    result = simplified(model)
    assert not {"Shape", "Where", "Equal"} & set(operators(result))
    inputs = random_inputs(model)
    assert_same(run_plainly(result, inputs), run_plainly(model, inputs))


@pytest.mark.parametrize("name", ["inception_v2", "shufflenet"])
def test_light_models(name: str) -> None:
    model = without_softmax(randomise(light(name)))
    result = simplified(model)
    assert not operators(result).keys() & {"BatchNormalization", "Unsqueeze", "Mul", "Add"}
    inputs = random_inputs(model)
    assert_same(run_plainly(result, inputs), run_plainly(model, inputs))
    assert simplified(model).SerializeToString() == result.SerializeToString()
