"""Products of bytes on this machine, beside numpy; without the instruction they are of floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.hardware import resolve
from tvm_ext.tvm_dots import ISA

RANDOM = np.random.default_rng(11)
IN_BYTES = bool(ISA & set(resolve("cpu").isa))
ROUNDING = 1e-6 if IN_BYTES else 1e-5
"""Of what is otherwise a sum of floats."""


def compiled(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    given: tuple[int, ...],
    result: int,
    path: Path,
) -> tvm_ext.Compiled:
    """The model of these nodes, from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path / "m.onnx")
    return tvm_ext.compile(path / "m.onnx")


def quantised(x: np.ndarray, scale: float, point: int, dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / np.float32(scale)) + point, limits.min, limits.max).astype(np.int64)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [(1, 4, 1), (7, 5, 13), (3, 64, 33), (13, 130, 48), (97, 256, 100), (128, 768, 17)],
)
def test_products_of_integers_are_exact(
    rows: int, inner: int, columns: int, tmp_path: Path
) -> None:
    weight = RANDOM.integers(-128, 128, (inner, columns)).astype(np.int8)
    x = RANDOM.normal(size=(rows, inner)).astype(np.float32)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "point"]),
        helper.make_node("MatMulInteger", ["q", "w", "point"], ["y"]),
    ]
    model = compiled(nodes, {"w": weight}, x.shape, TensorProto.INT32, tmp_path)
    least, most = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((most - least) / np.float32(255))
    point = int(np.clip(np.rint(-least / scale), 0, 255))
    expected = (quantised(x, scale, point, "uint8") - point) @ weight.astype(np.int64)
    (y,) = model(x)
    np.testing.assert_array_equal(y, expected)


def test_weights_without_a_sign(tmp_path: Path) -> None:
    """What their zero point leaves no eight bits hold: the rest is times the sum of each row."""
    weight = RANDOM.integers(0, 256, (60, 33)).astype(np.uint8)
    x = RANDOM.normal(size=(19, 60)).astype(np.float32)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "point"]),
        helper.make_node("MatMulInteger", ["q", "w", "point", "w_point"], ["y"]),
    ]
    constants = {"w": weight, "w_point": np.array(100, np.uint8)}
    model = compiled(nodes, constants, x.shape, TensorProto.INT32, tmp_path)
    least, most = x.min(), x.max()
    scale = np.float32((most - least) / np.float32(255))
    point = int(np.clip(np.rint(-least / scale), 0, 255))
    expected = (quantised(x, scale, point, "uint8") - point) @ (weight.astype(np.int64) - 100)
    (y,) = model(x)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "stride", "point", "dtype"),
    [
        (3, 8, 17, 3, 2, 0, "uint8"),
        (3, 33, 12, 7, 1, 121, "uint8"),
        (1, 5, 9, 3, 1, -17, "int8"),
        (16, 24, 13, 3, 1, 0, "uint8"),
        (16, 24, 13, 3, 1, -128, "int8"),
        (20, 7, 8, 3, 1, 77, "uint8"),
        (13, 31, 7, 1, 1, -5, "int8"),
        (32, 64, 14, 1, 2, 130, "uint8"),
    ],
)
@pytest.mark.parametrize("weight_point", [0, 37], ids=["signed", "without_sign"])
def test_convolutions(
    channels: int, outputs: int, size: int, kernel: int, stride: int, point: int, dtype: str,
    weight_point: int, tmp_path: Path,
) -> None:  # fmt: skip
    """With points that are no zeros around the image, and scales of each channel."""
    weight = RANDOM.integers(-127, 128, (outputs, channels, kernel, kernel)).astype(np.int8)
    if weight_point:
        weight = RANDOM.integers(0, 256, weight.shape).astype(np.uint8)
    steps = RANDOM.uniform(1e-3, 1e-1, outputs).astype(np.float32)
    x = RANDOM.normal(size=(1, channels, size, size)).astype(np.float32)
    scale, pad = np.float32(0.02), kernel // 2
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "p"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "p"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "steps", "zeros"], ["weight"], axis=0),
        helper.make_node("Conv", ["f", "weight"], ["y"], strides=[stride] * 2, pads=[pad] * 4),
    ]
    constants = {
        "s": scale,
        "p": np.array(point, dtype),
        "w": weight,
        "steps": steps,
        "zeros": np.full(outputs, weight_point, weight.dtype),
    }
    model = compiled(nodes, constants, x.shape, TensorProto.FLOAT, tmp_path)
    integers = quantised(x, scale, point, dtype) - point
    padded = np.pad(integers, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    sums = np.einsum("ncpqhw,ochw->nopq", windows, weight.astype(np.int64) - weight_point)
    expected = sums * (steps * scale)[None, :, None, None]
    (y,) = model(x)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6 * np.abs(expected).max())


def test_images_of_a_number_that_is_not_known(tmp_path: Path) -> None:
    """A view of bytes in fours follows the extent that it is taken of. Machines without products of
    bytes multiply floats, and add them up in an order of each kernel."""
    weight = RANDOM.integers(-127, 128, (24, 16, 3, 3)).astype(np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "p"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "p"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "step"], ["weight"]),
        helper.make_node("Conv", ["f", "weight"], ["y"], pads=[1] * 4),
    ]
    constants = {
        "s": np.float32(0.02),
        "p": np.array(-9, np.int8),
        "w": weight,
        "step": np.float32(0.125),
    }
    one = compiled(nodes, constants, (1, 16, 9, 9), TensorProto.FLOAT, tmp_path)
    shape = {"x": ("n", 16, 9, 9)}
    graph = onnx.load(tmp_path / "m.onnx")
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    any_number = tvm_ext.compile(graph, shapes=shape)
    assert {group.source for group in any_number.manifest.groups} == {"picker"}
    x = RANDOM.normal(size=(5, 16, 9, 9)).astype(np.float32)
    (found,) = any_number(x)
    wanted = np.concatenate([one(image[None])[0] for image in x])
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "pad", "extra", "point", "dtype"),
    [
        (16, 24, 2, 2, 0, 0, 0, "uint8"),
        (13, 33, 3, 2, 1, 1, 121, "uint8"),
        (32, 16, 4, 2, 1, 0, -17, "int8"),
        (8, 5, 3, 3, 0, 0, 130, "uint8"),
        (20, 48, 5, 3, 2, 1, -128, "int8"),
    ],
)
def test_transposed_convolutions(
    channels: int, outputs: int, kernel: int, stride: int, pad: int, extra: int, point: int,
    dtype: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Each phase has sums of its own, and sees points around the image."""
    weight = RANDOM.integers(-127, 128, (channels, outputs, kernel, kernel)).astype(np.int8)
    steps = RANDOM.uniform(1e-3, 1e-1, outputs).astype(np.float32)
    x = RANDOM.normal(size=(1, channels, 7, 9)).astype(np.float32)
    scale = np.float32(0.02)
    attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "output_padding": [extra] * 2}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "p"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "p"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "steps"], ["weight"], axis=1),
        helper.make_node("ConvTranspose", ["f", "weight"], ["y"], **attributes),
    ]
    constants = {"s": scale, "p": np.array(point, dtype), "w": weight, "steps": steps}
    model = compiled(nodes, constants, x.shape, TensorProto.FLOAT, tmp_path)
    assert any("transpose_bytes" in group.kind for group in model.manifest.groups) is IN_BYTES
    integers = quantised(x, scale, point, dtype) - point
    height, width = ((n - 1) * stride + kernel for n in x.shape[2:])
    whole = np.zeros((1, outputs, height + extra, width + extra), np.int64)
    for row in range(kernel):
        for column in range(kernel):
            tap = np.einsum("nchw,co->nohw", integers, weight[:, :, row, column].astype(np.int64))
            whole[:, :, row:, column:][:, :, : height - kernel + 1 : stride][
                :, :, :, : width - kernel + 1 : stride
            ] += tap
    expected = whole[:, :, pad : height + extra - pad, pad : width + extra - pad]
    expected = expected * (steps * scale)[None, :, None, None]
    (y,) = model(x)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=ROUNDING * np.abs(expected).max())


def test_bytes_of_unlike_scales_are_joined(tmp_path: Path) -> None:
    """Each part is quantised where it was made, and lies in its place from there on."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "fine", "low"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "fine", "low"], ["f"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Concat", ["f", "r"], ["c"], axis=3),
        helper.make_node("QuantizeLinear", ["c", "coarse", "high"], ["y"]),
    ]
    constants = {
        "fine": np.float32(0.02),
        "coarse": np.float32(0.06),
        "low": np.array(10, np.uint8),
        "high": np.array(90, np.uint8),
    }
    x = RANDOM.normal(size=(2, 5, 6, 32)).astype(np.float32)
    model = compiled(nodes, constants, x.shape, TensorProto.UINT8, tmp_path)
    kinds = [group.kind for group in model.manifest.groups]
    assert not any("concat" in kind for kind in kinds), kinds
    first = (quantised(x, 0.02, 10, "uint8") - 10).astype(np.float32) * np.float32(0.02)
    whole = np.concatenate([first, np.maximum(x, 0)], 3)
    expected = np.clip(np.rint(whole / np.float32(0.06)) + 90, 0, 255)
    (y,) = model(x)
    assert y.dtype == np.uint8
    apart = np.abs(y.astype(int) - expected)
    assert apart.max() <= 1  # where a quotient lies within a rounding of a half
    assert (apart > 0).mean() < 0.01


@pytest.mark.parametrize(
    ("shape", "terms", "columns", "points"),
    [
        ((2, 3, 16), 32, 48, (0, 128)),
        ((2, 3, 16), 32, 48, (7, 128)),
        ((4, 19), 197, 64, (0, 90)),
        ((5,), 13, 7, (200, 3)),
        ((1, 40), 64, 197, (121, 140)),
    ],
)
def test_products_of_two_tensors(
    shape: tuple[int, ...], terms: int, columns: int, points: tuple[int, int], tmp_path: Path
) -> None:
    """Sums of rows and of columns make up for zero points, whatever they are."""
    scales = np.float32(0.02), np.float32(0.05)
    x = RANDOM.normal(size=(*shape, terms)).astype(np.float32)
    batch = shape[:-1]
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    given = np.concatenate(
        [x.reshape(*batch, -1), RANDOM.normal(size=(*batch, terms * columns))], -1
    )
    given = given.astype(np.float32)
    ends = shape[-1] * terms, given.shape[-1]
    parts = {"a": (*shape, terms), "b": (*batch, terms, columns)}
    for place, (name, whole) in enumerate(parts.items()):
        constants |= {
            f"{name}_begin": np.array([ends[0] * place], np.int64),
            f"{name}_end": np.array([ends[place]], np.int64),
            f"{name}_shape": np.array(whole, np.int64),
            f"{name}_s": scales[place],
            f"{name}_p": np.array(points[place], np.uint8),
        }
        axes = f"{name}_axes"
        constants[axes] = np.array([given.ndim - 1], np.int64)
        cut = [f"{name}_begin", f"{name}_end", axes]
        nodes += [
            helper.make_node("Slice", ["x", *cut], [f"{name}_flat"]),
            helper.make_node("Reshape", [f"{name}_flat", f"{name}_shape"], [f"{name}_f"]),
            helper.make_node(
                "QuantizeLinear", [f"{name}_f", f"{name}_s", f"{name}_p"], [f"{name}_q"]
            ),
            helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_p"], [name]),
        ]
    nodes.append(helper.make_node("MatMul", ["a", "b"], ["y"]))
    model = compiled(nodes, constants, given.shape, TensorProto.FLOAT, tmp_path)
    assert any("matmul_bytes" in group.kind for group in model.manifest.groups) is IN_BYTES
    a = quantised(given[..., : ends[0]].reshape(parts["a"]), scales[0], points[0], "uint8")
    b = quantised(given[..., ends[0] :].reshape(parts["b"]), scales[1], points[1], "uint8")
    expected = (a - points[0]) @ (b - points[1]) * (float(scales[0]) * float(scales[1]))
    (y,) = model(given)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=ROUNDING * np.abs(expected).max())
