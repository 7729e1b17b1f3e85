"""`FoldProducts`: which two products by constants become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import steps

from tvm_ext.graph.fold_products import FoldProducts
from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
Emit = Callable[[Any], Any]
TOKENS = (2, 144, 40)
IMAGE = (2, 40, 12, 12)


def module(build: Callable[..., Any], shape: tuple[int, ...]) -> IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, x))
        builder.emit_func_output(result)
    return builder.finalize()


def weights(*shape: int) -> Any:
    return constant(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def folded(build: Callable[..., Any], shape: tuple[int, ...]) -> list[str]:
    mod = module(build, shape)
    result = FoldProducts()(mod)
    assert result["main"].ret_ty == mod["main"].ret_ty
    return steps(result)


def test_tokens_that_become_an_image() -> None:
    """The head of SegFormer."""

    def build(emit: Emit, x: Any) -> Any:
        y = emit(op.add(emit(op.matmul(x, weights(40, 96))), weights(96)))
        planes = emit(op.permute_dims(y, [0, 2, 1]))
        image = emit(op.reshape(planes, (2, 96, 12, 12)))
        return op.nn.conv2d(image, weights(80, 96, 1, 1))

    assert folded(build, TOKENS) == ["matmul", "add", "permute_dims", "reshape"]


def test_an_image_that_becomes_tokens() -> None:
    def build(emit: Emit, x: Any) -> Any:
        y = emit(op.add(emit(op.nn.conv2d(x, weights(96, 40, 1, 1))), weights(1, 96, 1, 1)))
        rows = emit(op.permute_dims(emit(op.reshape(y, (2, 96, 144))), [0, 2, 1]))
        return op.matmul(rows, weights(96, 64))

    assert folded(build, IMAGE) == ["conv2d", "add", "reshape", "permute_dims"]


def test_one_after_another() -> None:
    def build(emit: Emit, x: Any) -> Any:
        return op.matmul(emit(op.matmul(x, weights(40, 96))), weights(96, 64))

    assert folded(build, TOKENS) == ["matmul"]


def through_a_narrow_one(emit: Emit, x: Any) -> Any:
    """Of a low rank, on purpose."""
    return op.matmul(emit(op.matmul(x, weights(40, 8))), weights(8, 64))


def with_an_activation(emit: Emit, x: Any) -> Any:
    return op.matmul(emit(op.nn.relu(emit(op.matmul(x, weights(40, 96))))), weights(96, 64))


def used_twice(emit: Emit, x: Any) -> Any:
    y = emit(op.matmul(x, weights(40, 96)))
    return op.add(emit(op.matmul(y, weights(96, 96))), y)


def of_heads(emit: Emit, x: Any) -> Any:
    """Channels that are taken apart."""
    heads = emit(op.reshape(emit(op.matmul(x, weights(40, 96))), (2, 144, 4, 24)))
    return op.matmul(heads, weights(24, 16))


def along_rows(emit: Emit, x: Any) -> Any:
    """A product of the points, not of their channels."""
    turned = emit(op.permute_dims(emit(op.matmul(x, weights(40, 96))), [0, 2, 1]))
    return op.matmul(turned, weights(144, 16))


def with_a_bias_of_rows(emit: Emit, x: Any) -> Any:
    y = emit(op.add(emit(op.matmul(x, weights(40, 96))), weights(144, 96)))
    return op.matmul(y, weights(96, 64))


def by_strides(emit: Emit, x: Any) -> Any:
    image = emit(op.reshape(emit(op.permute_dims(x, [0, 2, 1])), (2, 40, 12, 12)))
    y = emit(op.nn.conv2d(image, weights(96, 40, 1, 1)))
    return op.nn.conv2d(y, weights(80, 96, 1, 1), strides=2)


OTHERS = [
    *(through_a_narrow_one, with_an_activation, used_twice, of_heads, along_rows),
    *(with_a_bias_of_rows, by_strides),
]


@pytest.mark.parametrize("build", OTHERS)
def test_others_stay(build: Callable[..., Any]) -> None:
    mod = module(build, TOKENS)
    assert steps(FoldProducts()(mod)) == steps(mod)


def test_halves_stay() -> None:
    """Their sums would be rounded elsewhere."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(TOKENS, "float16"))
    halves = [np.ones(shape, "float16") for shape in ((40, 96), (96, 64))]
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.matmul(x, constant(halves[0])))
            y = builder.emit_output(op.matmul(y, constant(halves[1])))
        builder.emit_func_output(y)
    assert steps(FoldProducts()(builder.finalize())) == ["matmul", "matmul"]
