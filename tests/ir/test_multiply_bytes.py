"""Which products of quantised tensors are done in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from byte_modules import module, operators

from tvm_ext.graph.multiply_bytes import MOST_TERMS, MultiplyBytes
from tvm_ext.graph.weight_steps import steps_of
from tvm_ext.hardware import get
from tvm_ext.tvm_api import constant, constant_array, op_name, relax, structural_walk
from tvm_ext.tvm_dots import ISA

op = relax.op
PLAIN = msgspec.structs.replace(get("cpu/x86-avx512"), isa=("avx512f",))
VNNI = msgspec.structs.replace(PLAIN, isa=("avx512f", "avx512vnni"))
RANDOM = np.random.default_rng(3)
INTEGERS = RANDOM.integers(-128, 128, (8, 5))
STEPS = RANDOM.uniform(1e-3, 1.0, 5)
WEIGHT = (INTEGERS * STEPS).astype(np.float32)
FILTERS = (RANDOM.integers(-128, 128, (6, 3, 3, 8)) * 0.25).astype(np.float32)
SCALE, POINT = relax.const(0.5, "float32"), relax.const(3, "uint8")
Body = Callable[..., Any]


def product(weight: np.ndarray, point: Any = POINT, scale: Any = SCALE) -> Body:
    def body(emit: Any, x: Any) -> Any:
        floats = emit(op.dequantize(x, scale, point, axis=1))
        return op.matmul(floats, constant(weight))

    return body


def integer_product(emit: Any, x: Any) -> Any:
    point = emit(op.astype(emit(op.max(x)), "float32"))
    shifted = emit(op.subtract(emit(op.astype(x, "float32")), point))
    return op.matmul(shifted, constant(INTEGERS.astype(np.float32)))


def shifted_product(emit: Any, x: Any) -> Any:
    """By half a step, as images are normalised."""
    shifted = emit(op.subtract(emit(op.astype(x, "float32")), relax.const(127.5, "float32")))
    return op.matmul(shifted, constant(INTEGERS.astype(np.float32)))


def product_of_columns(emit: Any, x: Any) -> Any:
    floats = emit(op.dequantize(x, SCALE, POINT, axis=1))
    rows = emit(op.reshape(emit(op.permute_dims(floats)), (3, 8)))
    return op.matmul(rows, constant(WEIGHT))


def product_of_two(turned: bool) -> Body:
    def body(emit: Any, x: Any) -> Any:
        right = emit(op.permute_dims(x, [0, 2, 1])) if turned else x
        floats = [emit(op.dequantize(one, SCALE, POINT, axis=1)) for one in (x, right)]
        return op.matmul(*floats)

    return body


def signed_and_moved(emit: Any, x: Any) -> Any:
    point = relax.const(-3, "int8")
    octets = emit(op.quantize(emit(op.astype(x, "float32")), SCALE, point, out_dtype="int8"))
    moved = emit(op.permute_dims(octets, [1, 0]))
    return op.matmul(emit(op.dequantize(moved, SCALE, point)), constant(WEIGHT))


def transposed(emit: Any, x: Any) -> Any:
    floats = emit(op.dequantize(x, SCALE, POINT, axis=1))
    filters = constant((INTEGERS[:, :, None, None] * np.full((2, 2), 0.5)).astype(np.float32))
    layouts = {"data_layout": "NHWC", "kernel_layout": "IOHW", "out_layout": "NHWC"}
    return op.nn.conv2d_transpose(floats, filters, strides=(2, 2), **layouts)


def convolution(layout: str, filters: np.ndarray = FILTERS, groups: int = 1) -> Body:
    def body(emit: Any, x: Any) -> Any:
        floats = emit(op.dequantize(x, SCALE, POINT, axis=1))
        return op.nn.conv2d(
            floats,
            constant(filters),
            padding=1,
            groups=groups,
            data_layout=layout,
            kernel_layout="OHWI",
            out_layout="NHWC",
        )

    return body


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        (product(WEIGHT), (3, 8), ["memory.view", "dense_bytes", "multiply"]),
        (product(WEIGHT[:7]), (3, 7), ["nn.pad", "memory.view", "dense_bytes", "multiply"]),
        (integer_product, (3, 8), ["max", "astype", "memory.view", "dense_bytes"]),
        (convolution("NHWC"), (1, 5, 5, 8), ["memory.view", "conv2d_bytes", "multiply"]),
        (
            convolution("NCHW", FILTERS[..., :3]),
            (1, 3, 5, 5),
            ["fours", "conv2d_bytes", "multiply"],
        ),
        (
            product_of_columns,
            (8, 3),
            ["permute_dims", "reshape", "memory.view", "dense_bytes", "multiply"],
        ),
        (
            product_of_two(False),
            (2, 8, 8),
            ["memory.view", "rows_in_fours", "row_sums", "column_sums", "matmul_bytes"],
        ),
        (
            product_of_two(True),
            (2, 5, 8),
            ["memory.view"] * 2 + ["turned_in_fours", "row_sums", "column_sums", "matmul_bytes"],
        ),
        (
            signed_and_moved,
            (8, 3),
            ["astype", "quantize", "permute_dims", "memory.view", "dense_bytes", "multiply"],
        ),
        (transposed, (1, 5, 5, 8), ["memory.view", "conv2d_transpose_bytes", "multiply"]),
    ],
    ids=[
        *("product", "odd_rows", "of_integers", "convolution", "planes"),
        *("moved", "of_two", "of_one_turned", "signed", "transposed"),
    ],
)
def test_products_of_bytes_are_taken_four_by_four(
    body: Body, shape: tuple[int, ...], expected: list[str]
) -> None:
    assert operators(MultiplyBytes(VNNI)(module(body, shape, "uint8"))) == expected


@pytest.mark.parametrize(
    ("body", "shape", "dtype"),
    [
        (product(RANDOM.normal(size=(8, 5)).astype(np.float32)), (3, 8), "uint8"),
        (product(WEIGHT, relax.const(0, "int8")), (3, 8), "int8"),
        (product(WEIGHT, relax.const(np.zeros(8, "uint8"))), (3, 8), "uint8"),
        (convolution("NHWC", FILTERS[..., :4], groups=2), (1, 5, 5, 8), "uint8"),
        (shifted_product, (3, 8), "uint8"),
        (product(np.ones((MOST_TERMS + 1, 1), np.float32)), (1, MOST_TERMS + 1), "uint8"),
    ],
    ids=["floats", "signs_from_outside", "points_by_row", "groups", "no_whole_point", "long_sums"],
)
def test_others_are_left(body: Body, shape: tuple[int, ...], dtype: str) -> None:
    mod = module(body, shape, dtype)
    assert operators(MultiplyBytes(VNNI)(mod)) == operators(mod)


def test_a_machine_without_the_instruction_multiplies_floats() -> None:
    assert not ISA & set(PLAIN.isa)
    mod = module(product(WEIGHT), (3, 8), "uint8")
    assert operators(MultiplyBytes(PLAIN)(mod)) == ["dequantize", "matmul"]


def test_what_is_quantised_here_has_no_sign() -> None:
    """quantize(x, int8) with -3 is quantize(x, uint8) with 125, also for its other readers."""
    point = relax.const(-3, "int8")

    def body(emit: Any, x: Any) -> Any:
        quantised = emit(op.quantize(x, SCALE, point, axis=1, out_dtype="int8"))
        floats = emit(op.dequantize(quantised, SCALE, point, axis=1))
        y = emit(op.matmul(floats, constant(WEIGHT)))
        return op.add(y, emit(op.sum(floats)))

    mod = MultiplyBytes(VNNI)(module(body, (3, 8), "float32"))
    found: list[tuple[str, str]] = []

    def look(call: Any) -> None:
        if op_name(call) in ("relax.quantize", "relax.dequantize"):
            found.append((op_name(call), str(constant_array(call.args[2]))))

    structural_walk(mod["main"].body, (relax.Call, look))
    assert found == [("relax.quantize", "125"), ("relax.dequantize", "125")]


def test_steps_are_told_from_weights() -> None:
    stepped = steps_of(WEIGHT.T)
    assert stepped is not None
    integers, steps, middles = stepped
    assert integers.dtype == np.int8
    assert not middles.any()
    np.testing.assert_allclose(integers.T * steps, WEIGHT, rtol=1e-6)


def test_weights_that_had_no_sign_have_middles() -> None:
    weight = (RANDOM.integers(0, 256, (4, 90)) - 9) * 0.25
    weight[:, :2] = (-9 * 0.25, 246 * 0.25)
    stepped = steps_of(weight.astype(np.float32))
    assert stepped is not None
    integers, steps, middles = stepped
    assert (middles == 119).all()
    np.testing.assert_array_equal((integers + middles[:, None]) * steps[:, None], weight)


def test_a_row_of_zeros_has_a_step() -> None:
    stepped = steps_of(np.zeros((2, 8), np.float32))
    assert stepped is not None
    assert not stepped.integers.any()


@pytest.mark.parametrize("largest", [257.0, 1e30, np.inf, np.nan])
def test_what_eight_bits_do_not_hold_has_none(largest: float) -> None:
    row = np.array([[largest, 1.0, 2.0, 3.0]], np.float32)
    assert steps_of(row) is None
