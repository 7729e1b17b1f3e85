"""Sums read quantised tensors as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from byte_modules import operators, run

from tvm_ext.graph.add_bytes import AddBytes
from tvm_ext.hardware import get
from tvm_ext.tvm_api import IRModule, relax, structural_walk

op = relax.op
HARDWARE = get("cpu/x86-avx512")
SCALE, POINT = relax.const(0.5, "float32"), relax.const(3, "uint8")
FINE, ZERO = relax.const(0.125, "float32"), relax.const(0, "uint8")
SHAPE = (2, 6, 4)
Body = Callable[..., Any]


def module(body: Body, floats: tuple[int, ...] = SHAPE) -> IRModule:
    """A function of bytes and floats."""
    builder = relax.BlockBuilder()
    given = [
        relax.Var("q", relax.TensorType(SHAPE, "uint8")),
        relax.Var("x", relax.TensorType(floats, "float32")),
    ]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *given))
        builder.emit_func_output(result)
    return builder.get()


def floats(emit: Any, q: Any, scale: Any = SCALE, point: Any = POINT) -> Any:
    return emit(op.dequantize(q, scale, point, axis=-1))


BODIES: dict[str, Body] = {
    "on the left": lambda emit, q, x: op.add(floats(emit, q), x),
    "on the right": lambda emit, q, x: op.subtract(x, floats(emit, q)),
    "on both": lambda emit, q, x: op.add(floats(emit, q), floats(emit, q, FINE, ZERO)),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("shape", [SHAPE, (6, 1)])
def test_they_do(name: str, shape: tuple[int, ...]) -> None:
    mod = module(BODIES[name], shape)
    found = AddBytes(HARDWARE)(mod)
    kind = "subtract" if "right" in name else "add"
    assert operators(found) == [f"dequantize_{kind}"]
    random = np.random.default_rng(0)
    given = random.integers(0, 256, SHAPE).astype(np.uint8), random.random(shape).astype("float32")
    np.testing.assert_array_equal(run(found, *given), run(mod, *given))


def test_other_readers_keep_their_floats() -> None:
    def body(emit: Any, q: Any, x: Any) -> Any:
        taken = floats(emit, q)
        return op.multiply(emit(op.add(taken, x)), taken)

    assert sorted(operators(AddBytes(HARDWARE)(module(body)))) == [
        "dequantize",
        "dequantize_add",
        "multiply",
    ]


def test_scales_of_channels_stay() -> None:
    scales = relax.const(np.full(4, 0.5, np.float32))
    points = relax.const(np.full(4, 3, np.uint8))
    mod = module(lambda emit, q, x: op.add(floats(emit, q, scales, points), x))
    assert operators(AddBytes(HARDWARE)(mod)) == ["dequantize", "add"]


@pytest.mark.parametrize(("other", "shared"), [(0.5, True), (0.25, False)])
def test_a_quantiser_and_what_takes_it_back_share_numbers(other: float, shared: bool) -> None:
    def body(emit: Any, q: Any, x: Any) -> Any:
        scale, point = relax.const(other, "float32"), relax.const(3, "uint8")
        made = emit(op.quantize(x, SCALE, POINT, axis=-1, out_dtype="uint8"))
        return floats(emit, made, scale, point)

    calls: list[Any] = []
    structural_walk(AddBytes(HARDWARE)(module(body))["main"].body, (relax.Call, calls.append))
    made, taken = calls
    pairs = zip(made.args[1:], taken.args[1:], strict=True)
    assert all(one.same_as(another) for one, another in pairs) is shared


def windows(emit: Any, q: Any, _: Any) -> Any:
    """Three columns of each of six rows as an image of one row, a filter for each channel."""
    image = floats(emit, emit(op.reshape(q, (1, 2, 6, 4))))
    filters = np.random.default_rng(1).random((4, 1, 3, 1)).astype(np.float32)
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    return op.nn.conv2d(image, relax.const(filters), padding=(0, 1, 0, 1), groups=4, **layouts)


@pytest.mark.parametrize(("cache_bytes", "taken"), [(16, True), (1 << 20, False)])
def test_windows_do_where_caches_do_not_hold_floats(cache_bytes: int, taken: bool) -> None:
    levels = tuple(
        msgspec.structs.replace(level, size_bytes=cache_bytes) if not level.shared else level
        for level in HARDWARE.levels
    )
    small = msgspec.structs.replace(HARDWARE, levels=levels, cores=2)
    mod = module(windows)
    found = AddBytes(small)(mod)
    assert ("dequantize_conv2d_depthwise" in operators(found)) is taken
    given = np.arange(48, dtype=np.uint8).reshape(SHAPE), np.zeros(SHAPE, np.float32)
    np.testing.assert_allclose(run(found, *given), run(mod, *given), rtol=1e-5)
