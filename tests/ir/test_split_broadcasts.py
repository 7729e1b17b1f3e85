"""`SplitBroadcasts`: which parts of a concatenation are multiplied once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import steps

from tvm_ext.graph.split_broadcasts import SplitBroadcasts
from tvm_ext.tvm_api import IRModule, constant, relax, tirx

op = relax.op
Emit = Callable[[Any], Any]
POINTS = (1, 64, 24, 24)
SUMMARY = (1, 96, 1, 1)


def module(build: Callable[..., Any], *shapes: tuple[int, ...]) -> IRModule:
    builder = relax.BlockBuilder()
    given = [
        relax.Var(f"x{place}", relax.TensorType(shape, "float32"))
        for place, shape in enumerate(shapes)
    ]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, *given))
        builder.emit_func_output(result)
    return builder.finalize()


def weights(*shape: int) -> Any:
    return constant(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def everywhere(emit: Emit, summary: Any) -> Any:
    return emit(op.broadcast_to(summary, (1, 96, 24, 24)))


def after(build: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    mod = module(build, *shapes)
    result = SplitBroadcasts()(mod)
    assert result["main"].ret_ty == mod["main"].ret_ty
    return steps(result)


def test_a_summary_is_multiplied_once() -> None:
    def build(emit: Emit, x: Any, g: Any) -> Any:
        both = emit(op.concat([x, everywhere(emit, g)], 1))
        return op.nn.conv2d(both, weights(128, 160, 1, 1), strides=2)

    assert after(build, POINTS, SUMMARY) == ["conv2d", "conv2d", "add"]


def test_what_is_enlarged_from_one_point_is_the_same_everywhere() -> None:
    def build(emit: Emit, x: Any, g: Any) -> Any:
        large = emit(op.image.resize2d(g, (24, 24), method="linear"))
        both = emit(op.concat([x, large, x], 1))
        return op.nn.conv2d(both, weights(128, 224, 1, 1))

    assert after(build, POINTS, SUMMARY) == ["concat", "conv2d", "conv2d", "add"]


def test_a_row_beside_many_rows_of_a_product() -> None:
    def build(emit: Emit, x: Any, g: Any) -> Any:
        code = emit(op.tile(g, (1, 900, 1)))
        return op.matmul(emit(op.concat([x, code], -1)), weights(72, 64))

    assert after(build, (2, 900, 8), (2, 1, 64)) == ["matmul", "matmul", "add"]


def of_several_taps(emit: Emit, x: Any, g: Any) -> Any:
    """Padding is not the same as what lies inside."""
    both = emit(op.concat([x, everywhere(emit, g)], 1))
    return op.nn.conv2d(both, weights(128, 160, 3, 3), padding=1)


def padded(emit: Emit, x: Any, g: Any) -> Any:
    both = emit(op.concat([x, everywhere(emit, g)], 1))
    return op.nn.conv2d(both, weights(128, 160, 1, 1), padding=1)


def in_groups(emit: Emit, x: Any, g: Any) -> Any:
    both = emit(op.concat([x, everywhere(emit, g)], 1))
    return op.nn.conv2d(both, weights(128, 80, 1, 1), groups=2)


def of_rows(emit: Emit, x: Any, g: Any) -> Any:
    """Concatenated along what is not summed over."""
    both = emit(op.concat([op.broadcast_to(g, (1, 96, 24, 24))] * 2, 2))
    return op.nn.conv2d(both, weights(128, 96, 1, 1))


def too_small(emit: Emit, x: Any, g: Any) -> Any:
    both = emit(op.concat([x, everywhere(emit, g)], 1))
    return op.nn.conv2d(both, weights(4, 160, 1, 1))


def all_of_it(emit: Emit, x: Any, g: Any) -> Any:
    both = emit(op.concat([everywhere(emit, g), everywhere(emit, g)], 1))
    return op.nn.conv2d(both, weights(128, 192, 1, 1))


CASES = [of_several_taps, padded, in_groups, of_rows, too_small, all_of_it]


@pytest.mark.parametrize("build", CASES)
def test_others_stay(build: Callable[..., Any]) -> None:
    mod = module(build, POINTS, SUMMARY)
    assert steps(SplitBroadcasts()(mod)) == steps(mod)


def test_a_shape_that_is_not_known_stays() -> None:
    def build(emit: Emit, x: Any, g: Any) -> Any:
        code = emit(op.tile(g, (1, 900, 1)))
        return op.matmul(emit(op.concat([x, code], -1)), weights(72, 64))

    batch = tirx.Var("n", "int64")
    mod = module(build, (batch, 900, 8), (batch, 1, 64))
    assert steps(SplitBroadcasts()(mod)) == steps(mod)


def test_a_tuple_that_comes_from_outside_stays() -> None:
    parts = [relax.TensorType((2, 900, 8), "float32"), relax.TensorType((2, 900, 64), "float32")]
    given = relax.Var("given", relax.TupleType(parts))
    builder = relax.BlockBuilder()
    with builder.function("main", [given]):
        with builder.dataflow():
            both = builder.emit(op.concat(given, -1))
            result = builder.emit_output(op.matmul(both, weights(72, 64)))
        builder.emit_func_output(result)
    assert steps(SplitBroadcasts()(builder.finalize())) == ["concat", "matmul"]
