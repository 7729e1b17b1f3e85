"""`SinkConcats`: which concatenations go behind a map, and which stay in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import steps

from tvm_ext.graph.sink_concats import SinkConcats
from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
Emit = Callable[[Any], Any]


def module(build: Callable[[Emit, Any], Any]) -> IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, x))
        builder.emit_func_output(result)
    return builder.finalize()


def product(emit: Emit, x: Any, seed: int) -> Any:
    weight = np.random.default_rng(seed).standard_normal((32, 16)).astype("float32")
    return emit(op.matmul(x, constant(weight)))


def joined(emit: Emit, x: Any) -> Any:
    return emit(op.concat([product(emit, x, 0), product(emit, x, 1)], 1))


def test_a_map_becomes_an_epilogue_of_each_part() -> None:
    def build(emit: Emit, x: Any) -> Any:
        scaled = emit(op.multiply(joined(emit, x), relax.const(2.0, "float32")))
        return op.clip(scaled, 0, 6)

    mod = module(build)
    assert steps(mod) == ["matmul", "matmul", "concat", "multiply", "clip"]
    after = SinkConcats()(mod)
    expected = ["matmul", "matmul", "multiply", "multiply", "clip", "clip", "concat"]
    assert steps(after) == expected
    assert after["main"].ret_ty == mod["main"].ret_ty


def test_concatenations_of_concatenations_let_it_pass_as_well() -> None:
    def build(emit: Emit, x: Any) -> Any:
        return op.nn.relu(emit(op.concat([joined(emit, x), joined(emit, x)], 0)))

    after = [step for step in steps(SinkConcats()(module(build))) if step != "matmul"]
    row = ["relu", "relu", "concat"]
    assert after == [*row, *row, "concat"]


def with_channels(emit: Emit, x: Any) -> Any:
    """A bias has elements for each part."""
    return op.add(joined(emit, x), constant(np.ones(32, "float32")))


def read_twice(emit: Emit, x: Any) -> Any:
    both = joined(emit, x)
    return op.add(emit(op.nn.relu(both)), both)


def of_an_input(emit: Emit, x: Any) -> Any:
    """Nothing computes the input here."""
    return op.nn.relu(emit(op.concat([product(emit, x, 0), x], 1)))


def of_a_view(emit: Emit, x: Any) -> Any:
    half = emit(op.strided_slice(x, [1], [0], [16]))
    return op.nn.relu(emit(op.concat([product(emit, x, 0), half], 1)))


def of_a_shared_part(emit: Emit, x: Any) -> Any:
    part = product(emit, x, 0)
    both = emit(op.concat([part, product(emit, x, 1)], 1))
    return op.concat([emit(op.nn.relu(both)), part], 1)


@pytest.mark.parametrize(
    "build", [with_channels, read_twice, of_an_input, of_a_view, of_a_shared_part]
)
def test_stays_in_front_of_the_map(build: Callable[[Emit, Any], Any]) -> None:
    mod = module(build)
    assert steps(SinkConcats()(mod)) == steps(mod)
