"""Models of 16 bits: as far from themselves in 32 as rounding their weights takes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.check import ROUNDED, check_model

DEPTH, WIDTH, ROWS = 6, 512, 8


def products(kind: int) -> onnx.ModelProto:
    """A chain of products with long sums, weights of some type, inputs and results of 32 bits."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((DEPTH, WIDTH, WIDTH)).astype(np.float32) / np.sqrt(WIDTH)
    nodes = [helper.make_node("Cast", ["x"], ["h0"], to=kind)]
    for layer in range(DEPTH):
        nodes.append(helper.make_node("MatMul", [f"h{layer}", f"w{layer}"], [f"s{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"s{layer}"], [f"h{layer + 1}"]))
    nodes.append(helper.make_node("Cast", [f"h{DEPTH}"], ["y"], to=TensorProto.FLOAT))
    model = make_model(nodes, [value("x", ROWS, WIDTH)], ["y"], {})
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for layer, weight in enumerate(weights):
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(dtype), f"w{layer}"))
    return model


@pytest.mark.parametrize(
    ("kind", "bound"), [(TensorProto.FLOAT16, 2e-3), (TensorProto.BFLOAT16, 2e-2)]
)
def test_sums_are_of_32_bits(kind: int, bound: float) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH), dtype=np.float32)
    (exact,) = tvm_ext.compile(products(TensorProto.FLOAT))(x)
    (found,) = tvm_ext.compile(products(kind))(x)
    assert found.dtype == exact.dtype
    assert np.abs(found - exact).max() <= bound * np.abs(exact).max()


def test_halves_go_in_and_out() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["y"])]
    model = make_model(nodes, [value("x", 3, 5, dtype=TensorProto.FLOAT16)], ["y"], {})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    x = np.linspace(-2, 2, 15, dtype=np.float16).reshape(3, 5)
    (y,) = tvm_ext.compile(model)(x)
    np.testing.assert_array_equal(y, np.exp(x.astype(np.float32)).astype(np.float16))


def test_they_are_judged_by_their_steps() -> None:
    """Another engine rounds in other places."""
    pytest.importorskip("onnxruntime")
    model = products(TensorProto.FLOAT16)
    found = check_model(tvm_ext.compile(model), model)
    assert found is not None
    assert found.error <= ROUNDED["FLOAT16"]
