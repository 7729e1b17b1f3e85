"""Products by weights of a few bits, and tables of them: ONNX Runtime's results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "floats"])
@pytest.mark.parametrize(("inner", "columns", "block"), [(64, 7, 16), (100, 24, 32)])
def test_products(bits: int, points: str, inner: int, columns: int, block: int) -> None:
    """Rows that end within a block, zero points of an odd number of blocks, a bias."""
    blocks = -(-inner // block)
    packed = RNG.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    constants = {
        "b": packed,
        "scales": RNG.uniform(0.01, 0.1, columns * blocks).astype(np.float32),
        "bias": RNG.normal(size=columns).astype(np.float32),
    }
    if points == "packed":
        bytes_of_row = -(-blocks * bits // 8)
        constants["points"] = RNG.integers(0, 256, columns * bytes_of_row).astype(np.uint8)
    if points == "floats":
        constants["points"] = RNG.uniform(0, 15, columns * blocks).astype(np.float32)
    point = "points" if points != "none" else ""
    node = helper.make_node(
        "MatMulNBits",
        ["x", "b", "scales", point, "", "bias"],
        ["y"],
        domain="com.microsoft",
        K=inner,
        N=columns,
        bits=bits,
        block_size=block,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, inner))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, columns))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = RNG.normal(size=(3, inner)).astype(np.float32)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (wanted,) = session.run(None, {"x": x})
    except Exception as error:
        pytest.skip(f"ONNX Runtime does not take it: {str(error)[:80]}")
    (found,) = tvm_ext.compile(onnx.load_from_string(model.SerializeToString()))(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(("width", "block"), [(64, 16), (72, 16), (128, 128)])
def test_tables(bits: int, points: bool, width: int, block: int) -> None:
    """Rows that end within a block, and those of one."""
    blocks, words = -(-width // block), 10
    constants = {
        "b": RNG.integers(0, 256, (words, width * bits // 8)).astype(np.uint8),
        "scales": RNG.uniform(0.01, 0.1, (words, blocks)).astype(np.float32),
    }
    if points:
        shape = (words, -(-blocks * bits // 8))
        constants["points"] = RNG.integers(0, 256, shape).astype(np.uint8)
    node = helper.make_node(
        "GatherBlockQuantized",
        ["b", "at", "scales", *(["points"] if points else [])],
        ["y"],
        domain="com.microsoft",
        bits=bits,
        block_size=block,
        quantize_axis=1,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("at", TensorProto.INT64, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, width))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    at = RNG.integers(0, words, (2, 3))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"at": at})
    (found,) = tvm_ext.compile(model)(at)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
