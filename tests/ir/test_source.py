"""What stands for an extent that is left open while a model is read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import make_model

from tvm_ext.graph.unify import EXTENTS
from tvm_ext.source import read_open


def with_mask(size: int, repeated: bool) -> onnx.ModelProto:
    """x[n, size, size] and a mask, which an exporter made for each of the n, or for all of them."""
    shape = np.array([0, size, size], np.int64)
    rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", size, size])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Expand", ["mask", "shape"], ["masks"]),
        helper.make_node("Add", ["x", "masks" if repeated else "mask"], ["sum"]),
        helper.make_node("Reshape", ["sum", "extents"], ["y"]),
    ]
    mask = np.random.default_rng(0).standard_normal((1, size, size)).astype("float32")
    return make_model(nodes, [rows], ["y"], {"mask": mask, "extents": shape})


@pytest.mark.parametrize(
    ("size", "repeated", "expected"),
    [(640, True, EXTENTS[-1]), (640, False, EXTENTS[0]), (64, True, EXTENTS[0])],
)
def test_masks_of_a_thousand_images_are_not_made(
    size: int, repeated: bool, expected: tuple[int, int]
) -> None:
    """A small Swin transformer took 11 GB to read for 982 images."""
    sources = next(read_open(with_mask(size, repeated), {"x": ("n", size, size)}))
    assert tuple(sources) == expected
