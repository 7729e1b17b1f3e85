"""Fourier transforms, of whole axes and of frames, against their definition in onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tvm_ext.errors import ModelError

WINDOW = np.hanning(64).astype(np.float32)


def model(
    op_type: str,
    shape: tuple[int, ...],
    given: dict[str, Any],
    opset: int = 20,
    **attributes: int,
) -> onnx.ModelProto:
    """The operator of "x" and of constants; those that are None are left out."""
    known = {name: value for name, value in given.items() if value is not None}
    names = ["x", *(name if name in known else "" for name in given)]
    while not names[-1]:
        names.pop()
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in known.items()]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    return helper.make_model(
        helper.make_graph([node], "fourier", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=9,
    )


def dft(shape: tuple[int, ...], axis: int, size: int | None = None, **asked: int) -> Any:
    return model("DFT", shape, {"size": size, "axis": axis}, **asked)


def stft(shape: tuple[int, ...], step: int, window: Any, size: int | None, **asked: int) -> Any:
    return model("STFT", shape, {"step": step, "window": window, "size": size}, 17, **asked)


CASES = {
    "real": dft((2, 30, 1), 1),
    "complex": dft((2, 31, 2), 1),
    "half": dft((3, 20, 4, 1), 1, onesided=1),
    "inverse": dft((3, 20, 4, 2), -2, inverse=1),
    "real again": dft((2, 17, 2), 1, inverse=1, onesided=1),
    "real again, odd": dft((2, 16, 2), 1, 31, inverse=1, onesided=1),
    "real again, fewer": dft((2, 17, 2), 1, 20, inverse=1, onesided=1),
    "longer": dft((2, 30, 1), 1, 40),
    "shorter": dft((2, 30, 2), 1, 20),
    "axis as an attribute": model("DFT", (4, 16, 3, 1), {}, 17, axis=1, onesided=1),
    "frames": stft((2, 500, 1), 16, WINDOW, None),
    "frames of a size": stft((2, 500, 1), 16, WINDOW, 64),
    "frames without a window": stft((1, 501, 1), 20, None, 50),
    "frames of complex numbers": stft((2, 500, 2), 33, WINDOW, 64, onesided=0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_the_definition(name: str) -> None:
    asked = CASES[name]
    shape = [one.dim_value for one in asked.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (expected,) = ReferenceEvaluator(asked).run(None, {"x": x})
    compiled = tvm_ext.compile(asked)
    (found,) = compiled(x)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
    assert {group.source for group in compiled.manifest.groups} == {"picker"}


def test_one_too_long_for_a_product_is_named() -> None:
    with pytest.raises(ModelError, match="DFT"):
        tvm_ext.compile(dft((1, 4096, 2), 1))
