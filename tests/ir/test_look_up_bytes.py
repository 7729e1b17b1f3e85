"""Functions of one byte become tables, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from byte_modules import operators, run

from tvm_ext.graph.look_up_bytes import LookUpBytes
from tvm_ext.hardware import get
from tvm_ext.tvm_api import IRModule, relax
from tvm_ext.tvm_tables import ISA

op = relax.op
PLAIN = get("cpu/x86-avx512")
PICKS = msgspec.structs.replace(PLAIN, isa=(*PLAIN.isa, ISA))
SCALE, POINT = relax.const(0.05, "float32"), relax.const(128, "uint8")
FINE, LOW = relax.const(0.02, "float32"), relax.const(7, "uint8")
OCTETS = np.arange(256, dtype=np.uint8).reshape(4, 64)
Body = Callable[..., Any]


def module(body: Body, dtype: str = "uint8") -> IRModule:
    """A function of two tensors of bytes."""
    builder = relax.BlockBuilder()
    given = [relax.Var(name, relax.TensorType(OCTETS.shape, dtype)) for name in "qr"]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *given))
        builder.emit_func_output(result)
    return builder.get()


def floats(emit: Any, q: Any, scale: Any = SCALE, point: Any = POINT) -> Any:
    return emit(op.dequantize(q, scale, point, axis=-1))


def octets(emit: Any, x: Any, scale: Any = FINE, point: Any = LOW) -> Any:
    dtype = str(point.ty.dtype.dtype)
    return emit(op.quantize(emit(x), scale, point, axis=-1, out_dtype=dtype))


def gelu(emit: Any, x: Any) -> Any:
    """As exporters write it."""
    inner = emit(op.erf(emit(op.multiply(x, relax.const(math.sqrt(0.5), "float32")))))
    whole = emit(op.multiply(x, emit(op.add(inner, relax.const(1.0, "float32")))))
    return op.multiply(whole, relax.const(0.5, "float32"))


def gelu_by_steps(emit: Any, q: Any, _: Any) -> Any:
    """With quantisers after each operator."""
    x = floats(emit, q)
    inner = octets(emit, op.erf(emit(op.multiply(x, relax.const(math.sqrt(0.5), "float32")))))
    more = octets(emit, op.add(floats(emit, inner, FINE, LOW), relax.const(1.0, "float32")))
    return octets(emit, op.multiply(x, floats(emit, more, FINE, LOW)))


BODIES: dict[str, Body] = {
    "gelu": lambda emit, q, _: octets(emit, gelu(emit, floats(emit, q))),
    "silu": lambda emit, q, _: octets(emit, op.nn.silu(floats(emit, q))),
    "tanh": lambda emit, q, _: octets(emit, op.tanh(floats(emit, q))),
    "gelu by steps": gelu_by_steps,
}


@pytest.mark.parametrize("name", BODIES)
def test_functions_of_a_byte_are_tables(name: str) -> None:
    mod = module(BODIES[name])
    found = LookUpBytes(PICKS)(mod)
    assert operators(found) == ["look_up"]
    y, expected = (run(one, OCTETS, OCTETS) for one in (found, mod))
    apart = np.abs(y.astype(int) - expected.astype(int))
    assert apart.max() <= 1  # an error function rounds otherwise than another
    assert (apart > 0).sum() <= 2


def test_bytes_with_a_sign_have_tables_too() -> None:
    point = relax.const(-5, "int8")
    mod = module(
        lambda emit, q, _: octets(emit, op.tanh(floats(emit, q, SCALE, point)), FINE, point), "int8"
    )
    found = LookUpBytes(PICKS)(mod)
    assert operators(found) == ["look_up"]
    given = OCTETS.view(np.int8)
    np.testing.assert_array_equal(run(found, given, given), run(mod, given, given))


OTHERS: dict[str, Body] = {
    "of two tensors": lambda emit, q, r: octets(
        emit, op.multiply(emit(op.tanh(floats(emit, q))), floats(emit, r))
    ),
    "of rows": lambda emit, q, _: octets(emit, op.nn.softmax(floats(emit, q))),
    "with scales of channels": lambda emit, q, _: octets(
        emit,
        op.tanh(floats(emit, q)),
        relax.const(np.full(64, 0.02, np.float32)),
        relax.const(np.full(64, 7, np.uint8)),
    ),
    "of little work": lambda emit, q, _: octets(emit, op.nn.relu(floats(emit, q))),
    "by a tensor": lambda emit, q, _: octets(
        emit,
        op.multiply(emit(op.tanh(floats(emit, q))), relax.const(np.ones((4, 64), np.float32))),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    mod = module(OTHERS[name])
    assert operators(LookUpBytes(PICKS)(mod)) == operators(mod)


def test_so_does_what_is_infinite() -> None:
    mod = module(lambda emit, q, _: octets(emit, op.log(floats(emit, q))))
    assert operators(LookUpBytes(PICKS)(mod)) == operators(mod)


def test_machines_without_the_instruction_compute() -> None:
    mod = module(BODIES["gelu"])
    assert operators(LookUpBytes(PLAIN)(mod)) == operators(mod)
