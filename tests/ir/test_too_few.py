"""Operators that take more elements than there are are refused by name, and end no process."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, value

from tvm_ext.errors import ModelError
from tvm_ext.frontend.from_onnx import import_onnx


def gather(index: int) -> onnx.ModelProto:
    node = helper.make_node("Gather", ["x", "index"], ["y"], axis=1)
    return make_model([node], [value("x", 2, 5)], ["y"], {"index": np.array([0, index])})


def mirror(*pads: int) -> onnx.ModelProto:
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")
    return make_model([node], [value("x", 2, 5)], ["y"], {"pads": np.array(pads)})


def window(length: int) -> onnx.ModelProto:
    """A slice of a convolution's results: onnx's inference of one of less than none is an abort."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["all"], kernel_shape=[9]),
        helper.make_node("Slice", ["all", "from", "to", "axis"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "w": np.zeros((8, 8, 9), np.float32),
        "from": np.array([0]),
        "to": np.array([16]),
        "axis": np.array([2]),
    }
    return make_model(nodes, [value("x", 1, 8, length)], ["y"], constants)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (gather(5), r"^Gather .* reads element 5 of 5; give larger shapes"),
        (gather(-6), r"^Gather .* reads element -6 of 5"),
        (mirror(0, 5, 0, 0), r"^Pad .* mirrors 5 elements beside the first of 5"),
        (mirror(0, 0, 2, 0), r"^Pad .* mirrors 2 elements beside the first of 2"),
        (window(5), r"^Conv .* its result 'all' would be of shape \(1, 8, -3\)"),
    ],
)
def test_more_than_there_are(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        import_onnx(model)


@pytest.mark.parametrize("model", [gather(4), gather(-5), mirror(0, 4, 1, 4), window(9)])
def test_as_many_as_there_are(model: onnx.ModelProto) -> None:
    assert import_onnx(model).mod is not None
