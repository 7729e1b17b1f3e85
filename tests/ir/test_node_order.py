"""Graphs whose nodes stand in no order, as tools leave them that add some at the end."""

from __future__ import annotations

from onnx import TensorProto, helper
from onnx_models import make_model, value

from tvm_ext.frontend.load import load_onnx
from tvm_ext.frontend.node_order import in_order

EXP = helper.make_node("Exp", ["a"], ["b"])
TANH = helper.make_node("Tanh", ["b"], ["y"])
NEG = helper.make_node("Neg", ["x"], ["a"])


def test_each_comes_after_what_it_reads() -> None:
    model = make_model([TANH, EXP, NEG], [value("x", 3)], ["y"], {})
    assert [node.op_type for node in load_onnx(model).graph.node] == ["Neg", "Exp", "Tanh"]
    assert [node.op_type for node in model.graph.node] == ["Tanh", "Exp", "Neg"]


def test_a_model_in_order_is_not_copied() -> None:
    model = make_model([NEG, EXP, TANH], [value("x", 3)], ["y"], {})
    assert load_onnx(model) is model


def test_what_branches_read_comes_before_them() -> None:
    branch = helper.make_graph(
        [helper.make_node("Exp", ["a"], ["inner"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3])],
    )
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = make_model(
        [chosen, NEG], [value("x", 3), value("c", dtype=TensorProto.BOOL)], ["y"], {}
    )
    assert [node.op_type for node in in_order(model).graph.node] == ["Neg", "If"]


def test_circles_are_left_to_the_checker() -> None:
    circle = [helper.make_node("Exp", ["b"], ["a"]), helper.make_node("Exp", ["a"], ["b"])]
    model = make_model([*circle, TANH], [value("x", 3)], ["y"], {})
    assert in_order(model) is model
