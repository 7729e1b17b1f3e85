"""Gathers along an axis: what lies outside a tensor is never read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, value

import tvm_ext

ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)


def gather(axis: int) -> onnx.ModelProto:
    node = helper.make_node("Gather", ["w", "i"], ["y"], axis=axis)
    inputs = [value("i", 3, dtype=onnx.TensorProto.INT64)]
    return make_model([node], inputs, ["y"], {"w": ROWS})


@pytest.mark.parametrize("axis", [0, 1])
def test_indices_from_both_ends(axis: int) -> None:
    (y,) = tvm_ext.compile(gather(axis))({"i": np.array([0, 3, -1])})
    np.testing.assert_array_equal(y, ROWS.take([0, 3, -1], axis))


def test_indices_out_of_range_end_no_process() -> None:
    """ONNX leaves what they give undefined; it was a segmentation fault."""
    (y,) = tvm_ext.compile(gather(0))({"i": np.array([2, 1 << 40, -(1 << 40)])})
    np.testing.assert_array_equal(y[0], ROWS[2])
    assert np.isin(y, ROWS).all()
