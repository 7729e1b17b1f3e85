"""Tensors of no elements: what makes them is left out, and what joins them to others."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import check_case

import tvm_ext


def test_a_slice_to_nothing() -> None:
    """Joined with one, with two, handed out, and cast and moved before it is."""
    places = {"zero": [0], "two": [2], "axis": [1]}
    nodes = [
        helper.make_node("Slice", ["x", "two", "two", "axis"], ["none"]),
        helper.make_node("Transpose", ["none"], ["turned"], perm=[2, 1, 0]),
        helper.make_node("Cast", ["turned"], ["moved"], to=TensorProto.FLOAT16),
        helper.make_node("Concat", ["none", "x"], ["same"], axis=1),
        helper.make_node("Slice", ["x", "zero", "two", "axis"], ["first"]),
        helper.make_node("Concat", ["x", "none", "first"], ["more"], axis=1),
        helper.make_node("Relu", ["same"], ["y"]),
    ]
    names = {"moved": TensorProto.FLOAT16, "more": TensorProto.FLOAT, "y": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "nothing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 7, 3))],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in names.items()],
        [numpy_helper.from_array(np.array(at), name) for name, at in places.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((1, 7, 3)).astype(np.float32)
    moved, more, y = tvm_ext.compile(model)(x=x)
    assert (moved.shape, moved.dtype) == ((3, 0, 1), np.float16)
    np.testing.assert_array_equal(more, np.concatenate([x, x[:, :2]], 1))
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_a_convolution_without_a_state() -> None:
    """Of one element, which is padded by none and remembers none."""
    check_case("causal_conv_with_state_kernel_size_one")
