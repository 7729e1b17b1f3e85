"""The greatest and the least of rows that hold infinities, or nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.hardware.resolve import resolve
from tvm_ext.tvm_api import te, topi, tvm
from tvm_ext.tvm_extremes import infinite_extremes


def reduced(op_type: str, x: np.ndarray, axis: int) -> np.ndarray:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op_type, ["x"], ["y"], axes=[axis], keepdims=0)
    model = helper.make_model(
        helper.make_graph([node], "reduction", [info], [y]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    return tvm_ext.compile(model)(x)[0]


@pytest.mark.parametrize("shape", [(6, 5, 7), (6, 3, 64), (6, 16, 100003)])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("how", ["Max", "Min"])
def test_the_extreme_of_infinities_is_infinite(how: str, axis: int, shape: tuple[int, ...]) -> None:
    """Short rows, long ones in vectors, and such as cores share out."""
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    x[0] = -np.inf if how == "Max" else np.inf
    x[1, :, 2] = x[0, 0, 0]
    x[2] = np.finfo(np.float32).min if how == "Max" else np.finfo(np.float32).max
    expected = (np.max if how == "Max" else np.min)(x, axis=axis)
    np.testing.assert_array_equal(reduced(f"Reduce{how}", x, axis), expected)


def test_a_logarithm_of_sums_of_infinities() -> None:
    x = np.random.default_rng(0).standard_normal((6, 40), dtype=np.float32)
    x[0], x[1], x[2, 3], x[3, 3] = -np.inf, np.inf, np.inf, -np.inf
    with np.errstate(divide="ignore"):
        expected = np.log(np.exp(x.astype(np.float64)).sum(1))
    np.testing.assert_allclose(reduced("ReduceLogSumExp", x, 1), expected, rtol=1e-5)


def test_what_is_filled_with_the_lowest_number_keeps_it() -> None:
    """Masks are; only what a reduction begins with is an infinity."""
    lowest = float(np.finfo(np.float32).min)
    x = te.placeholder((4, 8), "float32", "x")
    filled = te.compute((4, 8), lambda i, j: te.const(lowest, "float32"), "filled")
    func = te.create_prim_func([x, filled, topi.max(x, axis=1)])
    target = tvm.target.Target(resolve("cpu/host").target)
    text = infinite_extremes(tvm.IRModule({"main": func.with_attr("target", target)})).script()
    assert text.count("-inf") == 1
    assert text.count("-340282346638528859811704183484516925440.0") == 1


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (helper.make_node("Relu", ["x"], ["y"]), {}),
        (helper.make_node("Clip", ["x", "low", "high"], ["y"]), {"low": 0.0, "high": 6.0}),
        (helper.make_node("Max", ["x", "low"], ["y"]), {"low": 0.5}),
        (helper.make_node("Min", ["x", "low"], ["y"]), {"low": 0.5}),
    ],
)
def test_what_is_no_number_stays_none(node: onnx.NodeProto, constants: dict[str, float]) -> None:
    """As in ONNX Runtime: that something went wrong before shows at the end."""
    arrays = {name: np.array(number, np.float32) for name, number in constants.items()}
    compiled = tvm_ext.compile(make_model([node], [value("x", 3, 37)], ["y"], arrays))
    x = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    x[1, 5] = x[2, 36] = np.nan
    (y,) = compiled(x)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
