"""`SinkReshapes`: what a reshape may pass, what it may not, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import steps

from tvm_ext.graph.sink_reshapes import SinkReshapes, as_before
from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
Emit = Callable[[Any], Any]
FLAT, SHAPE = (8, 32), (2, 4, 32)


def weight(*shape: int) -> Any:
    return constant(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def module(build: Callable[[Emit, Any], Any], shape: tuple[int, ...] = FLAT) -> IRModule:
    """A function of one tensor, whose last step, a softmax, lets nothing pass."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(op.nn.softmax(build(builder.emit, x)))
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    return builder.finalize()


def unflattened(emit: Emit, x: Any) -> Any:
    return emit(op.reshape(emit(op.matmul(x, weight(32, 32))), SHAPE))


def test_an_epilogue_meets_its_product() -> None:
    def build(emit: Emit, x: Any) -> Any:
        y = emit(op.add(unflattened(emit, x), weight(32)))
        return emit(op.multiply(emit(op.tanh(y)), relax.const(0.5, "float32")))

    mod = module(build)
    assert steps(mod) == ["matmul", "reshape", "add", "tanh", "multiply", "softmax"]
    after = SinkReshapes()(mod)
    assert steps(after) == ["matmul", "add", "tanh", "multiply", "reshape", "softmax"]
    assert after["main"].ret_ty == mod["main"].ret_ty


def test_a_residual_is_viewed_as_the_product_lies() -> None:
    """The residual was computed before; it is the one that is given another shape."""

    def build(emit: Emit, x: Any) -> Any:
        before = emit(op.tanh(unflattened(emit, x)))
        flat = emit(op.reshape(before, FLAT))
        return emit(op.add(before, unflattened(emit, flat)))

    after = steps(SinkReshapes()(module(build)))
    assert after == ["matmul", "tanh", "matmul", "add", "reshape", "softmax"]


def test_a_product_lets_rows_pass() -> None:
    def build(emit: Emit, x: Any) -> Any:
        flat = emit(op.reshape(emit(op.tanh(x)), FLAT))
        return emit(op.reshape(emit(op.matmul(flat, weight(32, 16))), (1, 8, 16)))

    assert steps(SinkReshapes()(module(build, (1, *FLAT)))) == ["tanh", "matmul", "softmax"]


@pytest.mark.parametrize(
    ("shape", "kept"),
    [((2, 4, 32), False), ((4, 64), False), ((1, 1, 8, 32), True)],
    ids=["two_axes_of_rows", "longer_rows", "ones"],
)
def test_rows_of_one_axis_only(shape: tuple[int, ...], kept: bool) -> None:
    def build(emit: Emit, x: Any) -> Any:
        flat = emit(op.reshape(emit(op.tanh(x)), FLAT))
        return emit(op.reshape(emit(op.matmul(flat, weight(32, 16))), (16, 8)))

    after = steps(SinkReshapes()(module(build, shape)))
    expected = ["matmul"] if kept else ["reshape", "matmul"]
    assert after == ["tanh", *expected, "reshape", "softmax"]


def test_a_product_whose_result_is_not_reshaped_keeps_its_shape() -> None:
    """A classifier: its bias is an epilogue, not a kernel behind a reshape."""

    def build(emit: Emit, x: Any) -> Any:
        flat = emit(op.reshape(emit(op.tanh(x)), (1, 32)))
        return emit(op.add(emit(op.matmul(flat, weight(32, 16))), weight(16)))

    assert steps(SinkReshapes()(module(build, (1, 1, 1, 32)))) == [
        *("tanh", "reshape", "matmul", "add", "softmax")
    ]


def test_inputs_and_results_keep_theirs() -> None:
    """A view of an input costs nothing; a result that is a view would be copied."""

    def of_input(emit: Emit, x: Any) -> Any:
        return emit(op.tanh(emit(op.reshape(x, SHAPE))))

    mod = module(of_input)
    assert steps(SinkReshapes()(mod)) == steps(mod)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(FLAT, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = unflattened(builder.emit, x)
            result = builder.emit_output(op.tanh(made))
        builder.emit_func_output(result)
    assert steps(SinkReshapes()(builder.finalize())) == ["matmul", "reshape", "tanh"]


@pytest.mark.parametrize(
    ("own", "shape", "before", "expected"),
    [
        ((2, 4, 32), (2, 4, 32), (8, 32), (8, 32)),
        ((32,), (2, 4, 32), (8, 32), (32,)),
        ((1, 1, 32), (2, 4, 32), (8, 32), (32,)),
        ((), (2, 4, 32), (8, 32), ()),
        ((1, 1, 1), (2, 4, 32), (8, 32), ()),
        ((4, 1), (2, 4, 32), (8, 32), None),
        ((4, 32), (2, 4, 32), (8, 32), None),
        ((2, 1, 1), (2, 4, 32), (8, 32), None),
        ((4, 32), (2, 4, 32), (1, 2, 4, 32), (4, 32)),
    ],
)
def test_operands_that_are_broadcast(
    own: tuple[int, ...],
    shape: tuple[int, ...],
    before: tuple[int, ...],
    expected: tuple[int, ...] | None,
) -> None:
    found = as_before(own, shape, before)
    assert found == expected
    if found is not None:
        values = np.arange(np.prod(own, dtype=int)).reshape(own)
        whole = np.broadcast_to(values, shape).reshape(before)
        assert np.array_equal(np.broadcast_to(values.reshape(found), before), whole)
