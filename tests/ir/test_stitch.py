"""`Stitch`: which kernels become one, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from fused_modules import HARDWARE, before, kernels

from tvm_ext.graph.stitch import Stitch
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, constant, relax

op = relax.op
Emit = Callable[[Any], Any]
Build = Callable[[Emit, Any], Any]
ROWS = (48, 96)


def fused(build: Build, shape: tuple[int, ...] = ROWS) -> IRModule:
    """A function of one tensor as far as `Fuse` takes it; `build` may return several results."""
    return before("Stitch", build, shape, "x")


def stitched(mod: IRModule, **options: Any) -> IRModule:
    with Target(HARDWARE.target):
        return Stitch(**options)(mod)


def weight(shape: tuple[int, ...]) -> Any:
    return constant(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def width_of(x: Any) -> tuple[int, ...]:
    return (int(x.ty.shape[-1]),)


def scalar(value: float) -> Any:
    return relax.const(value, "float32")


def layer_norm(emit: Emit, x: Any) -> Any:
    apart = emit(op.subtract(x, emit(op.mean(x, -1, True))))
    spread = emit(op.mean(emit(op.multiply(apart, apart)), -1, True))
    scale = emit(op.sqrt(emit(op.add(spread, scalar(1e-5)))))
    return emit(op.multiply(emit(op.divide(apart, scale)), weight(width_of(x))))


def softmax(emit: Emit, x: Any) -> Any:
    power = emit(op.exp(emit(op.subtract(x, emit(op.max(x, -1, True))))))
    return emit(op.divide(power, emit(op.sum(power, -1, True))))


def rms_norm(emit: Emit, x: Any) -> Any:
    square = emit(op.mean(emit(op.multiply(x, x)), -1, True))
    return emit(op.divide(x, emit(op.sqrt(emit(op.add(square, scalar(1e-6)))))))


def chain(emit: Emit, x: Any) -> Any:
    """Add, layer norm, GELU by its primitives, softmax."""
    y = layer_norm(emit, emit(op.add(x, weight(width_of(x)))))
    half = emit(op.multiply(y, scalar(0.5)))
    bell = emit(op.add(emit(op.erf(emit(op.multiply(y, scalar(0.5**0.5))))), scalar(1.0)))
    return softmax(emit, emit(op.multiply(half, bell)))


@pytest.mark.parametrize("width", [96, 60, 97, 5])
@pytest.mark.parametrize("build", [layer_norm, softmax, rms_norm, chain])
def test_rows_become_one_kernel(build: Build, width: int) -> None:
    """Of 60 elements the last few, which fill no vector, are summed by themselves: what is summed
    has to be computed for both."""
    before = fused(build, (48, width))
    assert len(kernels(before)) > 1
    after = stitched(before)
    assert len(kernels(after)) == 1
    functions = [func for func in after.functions.values() if isinstance(func, PrimFunc)]
    assert len(functions) == 1, "kernels that nobody calls are gone"


def test_each_decision_is_explained() -> None:
    told: list[Any] = []

    def build(emit: Emit, x: Any) -> list[Any]:
        product = emit(op.matmul(x, weight((96, 96))))
        return [softmax(emit, product), product]

    stitched(fused(build), explain=told.append)
    (one,) = (fusion for fusion in told if len(fusion.kernels) > 1)
    size = 48 * 96 * 4
    assert (one.by, one.together_bytes) == ("Stitch", 2 * size)
    assert one.apart_bytes >= 4 * size
    assert one.stopped.endswith("is a product or a window")

    def dear(func: PrimFunc, rule: str = "") -> float:
        return 9.0 if rule else 1.0

    told.clear()
    stitched(fused(softmax), predict_us=dear, explain=told.append)
    assert all(len(fusion.kernels) == 1 for fusion in told)
    assert any("slower: 9.0 us" in fusion.stopped for fusion in told)

    told.clear()
    stitched(
        fused(softmax), predict_us=lambda _, rule="": 1.0 if rule else inf, explain=told.append
    )
    (one,) = told
    assert (one.apart_us, one.together_us) == (0.0, 1.0), "JSON has no infinity"


def test_the_model_decides() -> None:
    mod = fused(layer_norm)
    asked = []

    def dear(func: PrimFunc, rule: str = "") -> float:
        asked.append(rule)
        return 10.0 if rule else 3.0

    assert kernels(stitched(mod, predict_us=dear)) == kernels(mod)
    assert "rows" in asked
    assert len(kernels(stitched(mod, predict_us=lambda func, rule="": 1.0))) == 1
    never = stitched(mod, predict_us=lambda func, rule="": inf if rule else 1.0)
    assert kernels(never) == kernels(mod)


def test_what_others_read_stays() -> None:
    """The middle of a softmax is a result as well: its kernel stays, what follows does too."""

    def build(emit: Emit, x: Any) -> Any:
        power = emit(op.exp(emit(op.subtract(x, emit(op.max(x, -1, True))))))
        return [power, emit(op.divide(power, emit(op.sum(power, -1, True))))]

    mod = fused(build)
    assert kernels(stitched(mod)) == kernels(mod)


def test_products_are_no_part_of_it() -> None:
    def build(emit: Emit, x: Any) -> Any:
        return softmax(emit, emit(op.matmul(layer_norm(emit, x), weight((96, 96)))))

    names = kernels(stitched(fused(build)))
    assert len(names) == 3
    assert "dense" in names[1]


def test_what_is_written_for_tensors_anywhere_is_no_part_of_it() -> None:
    """TVM's scatter takes tensors with offsets; between two in one function nobody would say which
    offset it is (recurrent Gemma's caches)."""
    places = constant(np.zeros((1, ROWS[1]), "int64"))

    def build(emit: Emit, x: Any) -> Any:
        for value in (1.0, 2.0):
            x = emit(op.scatter_elements(x, places, constant(np.full((1, 96), value, "float32"))))
        return x

    mod = fused(build)
    assert kernels(stitched(mod)) == kernels(mod)


def test_other_rows_are_no_part_of_it() -> None:
    """Sums down the columns, then along rows: no row of the second needs one row of the first."""

    def build(emit: Emit, x: Any) -> Any:
        down = emit(op.divide(x, emit(op.sum(x, 0, True))))
        return emit(op.divide(down, emit(op.sum(down, 1, True))))

    names = kernels(stitched(fused(build)))
    assert len(names) > 1


def test_equal_regions_are_one_function() -> None:
    def build(emit: Emit, x: Any) -> Any:
        return softmax(emit, softmax(emit, emit(op.matmul(softmax(emit, x), weight((96, 96))))))

    after = stitched(fused(build), most=2)
    names = kernels(after)
    assert len(names) == 4
    assert len(set(names)) == 2, "three times the same softmax, and the product"


def test_most_limits_a_region() -> None:
    mod = fused(chain)
    assert len(kernels(stitched(mod, most=2))) > len(kernels(stitched(mod)))
