"""`MultiplyFewest`: which parts of a concatenation are multiplied once, which before they are
enlarged, and what is pooled before it is multiplied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from steps import steps

from tvm_ext.graph.multiply_fewest import MultiplyFewest
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
    result = MultiplyFewest()(mod)
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


COARSE = (1, 96, 12, 12)


def enlarged(x: Any, method: str = "linear", **attrs: Any) -> Any:
    return op.image.resize2d(x, (24, 24), method=method, **attrs)


@pytest.mark.parametrize("method", ["linear", "nearest_neighbor", "cubic"])
def test_what_is_enlarged_is_multiplied_before(method: str) -> None:
    def build(emit: Emit, x: Any, g: Any) -> Any:
        both = emit(op.concat([x, emit(enlarged(g, method))], 1))
        return op.nn.conv2d(both, weights(128, 160, 1, 1))

    assert after(build, POINTS, COARSE) == ["conv2d", "conv2d", "image.resize2d", "add"]


def test_all_that_is_enlarged_is_multiplied_before() -> None:
    """Beside a summary, which alone would leave too small a result."""

    def build(emit: Emit, g: Any, h: Any, summary: Any) -> Any:
        parts = [everywhere(emit, summary), emit(enlarged(g)), emit(enlarged(h))]
        return op.nn.conv2d(emit(op.concat(parts, 1)), weights(128, 288, 1, 1))

    assert after(build, COARSE, (1, 96, 6, 8), SUMMARY) == [
        *("conv2d", "image.resize2d") * 2,
        *("conv2d", "add", "add"),
    ]


def test_an_enlarged_image_by_itself() -> None:
    def build(emit: Emit, g: Any) -> Any:
        return op.nn.conv2d(emit(enlarged(g)), weights(128, 96, 1, 1))

    assert after(build, COARSE) == ["conv2d", "image.resize2d"]


def by_threes(emit: Emit, x: Any, g: Any) -> Any:
    return op.nn.conv2d(emit(enlarged(g)), weights(128, 96, 3, 3), padding=1)


def by_strides(emit: Emit, x: Any, g: Any) -> Any:
    return op.nn.conv2d(emit(enlarged(g)), weights(128, 96, 1, 1), strides=2)


def made_smaller(emit: Emit, x: Any, g: Any) -> Any:
    small = emit(op.image.resize2d(x, (6, 6), method="linear"))
    return op.nn.conv2d(small, weights(512, 64, 1, 1))


def with_borders(emit: Emit, x: Any, g: Any) -> Any:
    mode = "tf_crop_and_resize"
    large = emit(enlarged(g, coordinate_transformation_mode=mode, extrapolation_value=2.0))
    return op.nn.conv2d(large, weights(128, 96, 1, 1))


def of_few_channels(emit: Emit, x: Any, g: Any) -> Any:
    """The result would be enlarged and added for less than that takes."""
    few = emit(enlarged(emit(op.strided_slice(g, [1], [0], [32]))))
    return op.nn.conv2d(few, weights(512, 32, 1, 1))


ENLARGED = [by_threes, by_strides, made_smaller, with_borders, of_few_channels]


@pytest.mark.parametrize("build", ENLARGED)
def test_other_enlarged_images_stay(build: Callable[..., Any]) -> None:
    mod = module(build, POINTS, COARSE)
    assert steps(MultiplyFewest()(mod)) == steps(mod)


def pooled(emit: Emit, x: Any, outputs: int = 64, bias: bool = False, **attrs: Any) -> Any:
    y = emit(op.nn.conv2d(x, weights(outputs, 64, 1, 1)))
    y = emit(op.add(y, weights(1, outputs, 1, 1))) if bias else y
    return op.nn.avg_pool2d(y, (2, 2), strides=2, **attrs)


def test_what_is_pooled_is_multiplied_afterwards() -> None:
    assert after(pooled, POINTS) == ["avg_pool2d", "conv2d"]
    with_bias = partial(pooled, bias=True)
    assert after(with_bias, POINTS) == ["avg_pool2d", "conv2d", "add"]


def used_twice(emit: Emit, x: Any) -> Any:
    y = emit(op.nn.conv2d(x, weights(64, 64, 1, 1)))
    small = emit(op.nn.avg_pool2d(y, (2, 2), strides=2))
    return op.add(emit(op.image.resize2d(small, (24, 24), method="linear")), y)


@pytest.mark.parametrize(
    "build",
    [
        partial(pooled, padding=1),
        partial(pooled, ceil_mode=True),
        partial(pooled, outputs=32),
        used_twice,
    ],
)
def test_other_pools_stay(build: Callable[..., Any]) -> None:
    mod = module(build, POINTS)
    assert steps(MultiplyFewest()(mod)) == steps(mod)


CASES = [of_several_taps, padded, in_groups, of_rows, too_small, all_of_it]


@pytest.mark.parametrize("build", CASES)
def test_others_stay(build: Callable[..., Any]) -> None:
    mod = module(build, POINTS, SUMMARY)
    assert steps(MultiplyFewest()(mod)) == steps(mod)


def test_a_shape_that_is_not_known_stays() -> None:
    def build(emit: Emit, x: Any, g: Any) -> Any:
        code = emit(op.tile(g, (1, 900, 1)))
        return op.matmul(emit(op.concat([x, code], -1)), weights(72, 64))

    batch = tirx.Var("n", "int64")
    mod = module(build, (batch, 900, 8), (batch, 1, 64))
    assert steps(MultiplyFewest()(mod)) == steps(mod)


def test_a_tuple_that_comes_from_outside_stays() -> None:
    parts = [relax.TensorType((2, 900, 8), "float32"), relax.TensorType((2, 900, 64), "float32")]
    given = relax.Var("given", relax.TupleType(parts))
    builder = relax.BlockBuilder()
    with builder.function("main", [given]):
        with builder.dataflow():
            both = builder.emit(op.concat(given, -1))
            result = builder.emit_output(op.matmul(both, weights(72, 64)))
        builder.emit_func_output(result)
    assert steps(MultiplyFewest()(builder.finalize())) == ["concat", "matmul"]


def test_enlarged_halves_stay() -> None:
    """Their sums would be rounded elsewhere."""
    builder = relax.BlockBuilder()
    g = relax.Var("g", relax.TensorType(COARSE, "float16"))
    with builder.function("main", [g]):
        with builder.dataflow():
            weight = constant(np.ones((128, 96, 1, 1), "float16"))
            y = builder.emit_output(op.nn.conv2d(builder.emit(enlarged(g)), weight))
        builder.emit_func_output(y)
    assert steps(MultiplyFewest()(builder.finalize())) == ["image.resize2d", "conv2d"]
