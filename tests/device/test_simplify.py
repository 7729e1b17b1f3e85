"""A simplified model computes what the original does in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx_cases import check_case
from onnx_models import (
    light,
    make_model,
    random_inputs,
    run_plainly,
    value,
    without_softmax,
)
from onnxscript.rewriter import RewritePass
from simplify_case import NORM, assert_same, check, normal, operators, simplified

import tvm_ext
from tvm_ext.frontend import rewrite
from tvm_ext.frontend.randomise import randomise

pytest.importorskip("onnxruntime")

node = helper.make_node


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


def test_a_division_before_erf_is_a_multiplication() -> None:
    model = make_model(
        [
            node("Div", ["x", "root"], ["a"]),
            node("Erf", ["a"], ["b"]),
            node("Floor", ["a"], ["c"]),
            node("Mul", ["b", "c"], ["y"]),
        ],
        [value("x", 5, 7)],
        ["y"],
        {"root": np.array(2**0.5, np.float32)},
    )
    check(model, {"Div": 1, "Mul": 2, "Erf": 1, "Floor": 1})


def test_a_division_whose_reciprocal_overflows_stays() -> None:
    model = make_model(
        [node("Div", ["x", "tiny"], ["a"]), node("Erf", ["a"], ["y"])],
        [value("x", 4)],
        ["y"],
        {"tiny": np.array(1e-40, np.float32)},
    )
    assert operators(simplified(model)) == {"Div": 1, "Erf": 1}


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


@pytest.mark.parametrize("opset", [7, 10, 11, 13])
def test_a_mask_of_inference_is_true(opset: int) -> None:
    kind = onnx.TensorProto.FLOAT if opset < 10 else onnx.TensorProto.BOOL
    model = make_model(
        [node("Dropout", ["x"], ["y", "mask"])],
        [value("x", 2, 3)],
        ["y", value("mask", 2, 3, dtype=kind)],
        opset=opset,
    )
    x = normal(2, 3)
    y, mask = tvm_ext.compile(model)(x=x)
    np.testing.assert_array_equal(y, x)
    assert mask.dtype == (np.float32 if opset < 10 else bool)
    assert mask.shape == x.shape
    assert mask.all()


@pytest.mark.parametrize("name", ["dropout_default_old", "training_dropout_zero_ratio_mask"])
def test_what_drops_nothing(name: str) -> None:
    check_case(name)


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


def test_constants_that_rules_name_alike_stay_apart() -> None:
    flattened = make_model(
        [
            node("Flatten", ["x"], ["rows"], axis=1),
            node("Flatten", ["x"], ["columns"], axis=2),
            node("MatMul", ["columns", "weights"], ["a"]),
            node("MatMul", ["rows", "others"], ["y"]),
            node("Clip", ["x", "", "one"], ["b"]),
            node("Relu", ["b"], ["z"]),
        ],
        [value("x", 2, 3, 4)],
        ["a", "y", "z"],
        {"weights": normal(4, 5), "others": normal(12, 5), "one": np.array(1, np.float32)},
    )
    check(flattened, {"Reshape": 2, "MatMul": 2, "Clip": 1})


def test_a_convolution_that_two_norms_share_has_weights_for_each() -> None:
    parameters = {f"{name}_{norm}": abs(normal(4)) for norm in "ab" for name in NORM}
    shared = make_model(
        [
            layer
            for norm in "ab"
            for layer in (
                node("Conv", [f"x{norm}", "weights", "bias"], [f"c{norm}"], pads=[1, 1, 1, 1]),
                node(
                    "BatchNormalization",
                    [f"c{norm}", *(f"{name}_{norm}" for name in NORM)],
                    [f"y{norm}"],
                ),
            )
        ],
        [value("xa", 1, 3, 8, 8), value("xb", 1, 3, 4, 4)],
        ["ya", "yb"],
        {"weights": normal(4, 3, 3, 3), "bias": normal(4), **parameters},
    )
    check(shared, {"Conv": 2})


def test_rules_tried_at_their_operators_do_what_they_do_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["b", "first"], ["c"]),
        helper.make_node("Reshape", ["c", "then"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("Softplus", ["f"], ["g"]),
        helper.make_node("Tanh", ["g"], ["y"]),
    ]
    shapes = {"first": np.array([4, -1], np.int64), "then": np.array([-1, 6], np.int64)}
    model = make_model(nodes, [value("x", 2, 3, 4)], ["y"], shapes)
    found = operators(simplified(model))
    tried: list[str] = []

    def each(rules: Iterable[Any], model: ir.Model) -> bool:
        rules = list(rules)
        tried.extend(rule.name for rule in rules)
        return bool(RewritePass(rules)(model).modified)

    monkeypatch.setattr(rewrite, "_apply", each)
    assert operators(simplified(model)) == found
    assert len(tried) > 30
    assert found["Transpose"] == found["Reshape"] == found["Relu"] == 1
    assert not found["Tanh"]
