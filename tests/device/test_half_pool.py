"""What is pooled and joined as bfloat16, beside numpy and the same model in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from half_models import HALF, kernel, model_of, rounded
from onnx import helper

import tvm_ext
from tvm_ext.compute.half_pool import largest_half
from tvm_ext.compute.windows import Window
from tvm_ext.tvm_api import te, tvm

RANDOM = np.random.default_rng(29)


def test_what_is_pooled_and_joined_for_products_alone_is_the_same_as_halves() -> None:
    """A U-Net of one step, with a pool that sees its padding."""
    constants = {
        name: RANDOM.normal(size=shape).astype(np.float32)
        for name, shape in (("a", (16, 8, 3, 3)), ("b", (32, 16, 3, 3)), ("c", (8, 48, 1, 1)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["s"], pads=[1] * 4),
        helper.make_node(
            "MaxPool", ["s"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Conv", ["p", "b"], ["q"], pads=[1] * 4),
        helper.make_node("Resize", ["q", "", "by"], ["u"], mode="nearest"),
        helper.make_node("Concat", ["s", "u"], ["j"], axis=1),
        helper.make_node("Conv", ["j", "c"], ["y"]),
    ]
    constants["by"] = np.array([1, 1, 2, 2], np.float32)
    x = RANDOM.normal(size=(1, 8, 14, 14)).astype(np.float32)

    def run(precision: Any) -> np.ndarray:
        compiled = tvm_ext.compile(model_of(nodes, constants, x.shape), precision=precision)
        return np.asarray(compiled(x)[0])

    floats, found = run("float32"), run("bfloat16")
    np.testing.assert_allclose(found, floats, rtol=0, atol=2e-2 * np.abs(floats).max())


@pytest.mark.parametrize("padding", [0, 1])
def test_the_largest_half_is_that_of_floats_rounded(padding: int) -> None:
    size, channels = 9, 16
    outputs = (size + 2 * padding - 3) // 2 + 1
    windows = {axis: Window(3, 2, padding, outputs) for axis in (1, 2)}
    given = RANDOM.normal(size=(1, size, size, channels)).astype(np.float32)
    given[0, 4:7, 4:7] = -np.inf
    given[0, 0, 0, :3] = np.inf, 1e-39, -0.0
    bits = given.astype(HALF).view(np.uint16)
    x = te.placeholder(given.shape, "uint16", name="x")
    result = tvm.runtime.tensor(np.zeros((1, outputs, outputs, channels), np.uint16))
    func = te.create_prim_func([x, largest_half(x, windows)])
    kernel(func)(tvm.runtime.tensor(bits), result)
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    wide = np.pad(rounded(given), around, constant_values=-np.inf)
    views = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(
        result.numpy().view(HALF).astype(np.float32), views.max(axis=(-2, -1))
    )
