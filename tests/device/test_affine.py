"""Batch norms and per-channel arithmetic are folded into the operator before them, if they may."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx_models import make_model, value
from simplify_case import NORM, RNG, check, norm, norm_constants, normal

from tvm_ext.frontend.simplify import simplify

pytest.importorskip("onnxruntime")

node = helper.make_node


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


def test_weights_of_16_bits_are_folded_in_32() -> None:
    """Rounded again to 16 bits each would be off by as much as it is already."""
    half = {name: array.astype(np.float16) for name, array in norm_constants(8).items()}
    model = make_model(
        [node("Conv", ["x", "w"], ["a"]), norm("a", "y")],
        [value("x", 1, 6, 9, 9, dtype=TensorProto.FLOAT16)],
        ["y"],
        {"w": normal(8, 6, 3, 3).astype(np.float16), **half},
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    folded, _ = simplify(ir.from_proto(model))
    assert [one.op_type for one in folded.graph] == ["Cast", "Conv", "Cast"]
    weight = ir.convenience.get_const_tensor(folded.graph[1].inputs[1])
    assert weight is not None
    assert weight.dtype == ir.DataType.FLOAT
