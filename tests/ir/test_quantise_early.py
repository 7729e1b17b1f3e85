"""Quantisers go before what only moves elements, and before nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from byte_modules import module, operators, run

from tvm_ext.graph.quantise_early import QuantiseEarly
from tvm_ext.tvm_api import relax

op = relax.op
SCALE, POINT = relax.const(0.03, "float32"), relax.const(120, "uint8")
SHAPE = (2, 6, 4, 5)
Body = Callable[..., Any]


def quantised(x: Any, scale: Any = SCALE, point: Any = POINT) -> Any:
    return op.quantize(x, scale, point, axis=1, out_dtype="uint8")


def heads(emit: Any, x: Any) -> Any:
    apart = emit(op.reshape(x, (2, 6, 20)))
    return quantised(emit(op.permute_dims(apart, [0, 2, 1])))


def test_they_go_before_all_moves() -> None:
    mod = module(heads, SHAPE)
    found = QuantiseEarly()(mod)
    assert operators(mod) == ["reshape", "permute_dims", "quantize"]
    assert operators(found) == ["quantize", "reshape", "permute_dims"]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_array_equal(run(found, x), run(mod, x))


def test_an_axis_of_none_is_none_of_another_rank() -> None:
    """Of one scale the axis says nothing."""

    def body(emit: Any, x: Any) -> Any:
        flat = emit(op.reshape(x, (240,)))
        rows = emit(op.reshape(flat, (2, 6, 20)))
        return op.quantize(rows, SCALE, POINT, axis=2, out_dtype="uint8")

    found = QuantiseEarly()(module(body, SHAPE))
    assert operators(found) == ["quantize", "reshape", "reshape"]


def read_twice(emit: Any, x: Any) -> Any:
    moved = emit(op.reshape(x, (2, 6, 20)))
    octets = emit(quantised(moved))
    return op.add(emit(op.astype(octets, "float32")), moved)


OTHERS: dict[str, Body] = {
    "read twice": read_twice,
    "not moved": lambda emit, x: quantised(emit(op.nn.relu(x))),
    "a part": lambda emit, x: quantised(emit(op.strided_slice(x, [1], [1], [3]))),
    "scales of channels": lambda emit, x: quantised(
        emit(op.permute_dims(x, [0, 1, 3, 2])),
        relax.const(np.full(6, 0.03, np.float32)),
        relax.const(np.full(6, 120, np.uint8)),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    mod = module(OTHERS[name], SHAPE)
    assert operators(QuantiseEarly()(mod)) == operators(mod)
