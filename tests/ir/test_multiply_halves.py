"""Which products are done in bfloat16, and where what they multiply is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from byte_modules import module, operators

from tvm_ext.graph.multiply_halves import MultiplyHalves, multiplies_halves
from tvm_ext.graph.widen import Widen
from tvm_ext.hardware import get
from tvm_ext.tile.amx import HALVES_ISA
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import IRModule, constant, relax
from tvm_ext.tvm_pairs import ISA

op = relax.op
PLAIN = get("cpu/x86-avx512")
HALVES = msgspec.structs.replace(
    PLAIN,
    isa=(*PLAIN.isa, ISA),
    peak_gflops=PLAIN.peak_gflops | {"bfloat16": 2 * PLAIN.peak_gflops["float32"]},
)
RANDOM = np.random.default_rng(5)
WEIGHT = RANDOM.normal(size=(8, 6)).astype(np.float32)
FILTERS = RANDOM.normal(size=(6, 3, 3, 8)).astype(np.float32)
Body = Callable[..., Any]


def product(emit: Any, x: Any) -> Any:
    return op.matmul(x, constant(WEIGHT))


def odd_product(emit: Any, x: Any) -> Any:
    return op.matmul(x, constant(WEIGHT[:7]))


def moved_product(emit: Any, x: Any) -> Any:
    made = emit(op.exp(x))
    return op.matmul(
        emit(op.reshape(emit(op.permute_dims(made, [1, 0, 2])), (15, 8))), constant(WEIGHT)
    )


def of_two(emit: Any, x: Any) -> Any:
    return op.matmul(x, emit(op.permute_dims(x)))


def attended(emit: Any, x: Any, **options: Any) -> Any:
    """Queries, keys and values of one head each, side by side."""
    made = emit(op.exp(x))
    parts = [emit(op.strided_slice(made, [2], [at], [at + 1])) for at in range(3)]
    return op.nn.attention(*parts, **options)


def masked(emit: Any, x: Any) -> Any:
    return attended(emit, x, causal_mask="TopLeft")


def convolution(emit: Any, x: Any, filters: np.ndarray = FILTERS, **options: Any) -> Any:
    return op.nn.conv2d(
        x, constant(filters), data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC", **options
    )


def grouped(emit: Any, x: Any) -> Any:
    return convolution(emit, x, FILTERS[..., :4], groups=2)


def of_odd_groups(emit: Any, x: Any) -> Any:
    return convolution(emit, x, FILTERS[..., :3], groups=2)


def depthwise(emit: Any, x: Any) -> Any:
    return convolution(emit, x, FILTERS[..., :1], groups=6)


def of_three_channels(emit: Any, x: Any) -> Any:
    return convolution(emit, x, FILTERS[..., :3])


def transposed(stride: int) -> Body:
    filters = constant(FILTERS.transpose(3, 0, 1, 2).copy())
    layouts = {"data_layout": "NHWC", "kernel_layout": "IOHW", "out_layout": "NHWC"}
    return lambda _, x: op.nn.conv2d_transpose(x, filters, strides=(stride,) * 2, **layouts)


def of_planes(emit: Any, x: Any) -> Any:
    return op.nn.conv2d(
        x,
        constant(FILTERS[..., :3]),
        data_layout="NCHW",
        kernel_layout="OHWI",
        out_layout="NHWC",
    )


def predicted(halves_us: float) -> Callable[[Any], float]:
    """A model by which kernels of pairs take so long, others 1 us."""
    return lambda func: halves_us if "uint32" in str(func) else 1.0


def rewritten(mod: IRModule, halves_us: float = 0.4, **options: Any) -> IRModule:
    return MultiplyHalves(HALVES, predicted(halves_us), **options)(mod)


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        (product, (5, 8), ["halves", "memory.view", "dense_pairs"]),
        (odd_product, (5, 7), ["nn.pad", "halves", "memory.view", "dense_pairs"]),
        (of_two, (5, 8), ["permute_dims", "matmul"]),
        (convolution, (1, 9, 9, 8), ["halves", "memory.view", "conv2d_pairs"]),
        (grouped, (1, 9, 9, 8), ["halves", "memory.view", "reshape", "conv2d_pairs"]),
        (of_odd_groups, (1, 9, 9, 6), ["nn.conv2d"]),
        (depthwise, (1, 9, 9, 6), ["nn.conv2d"]),
        (of_three_channels, (1, 9, 9, 3), ["nn.pad", "halves", "memory.view", "conv2d_pairs"]),
        (transposed(2), (1, 9, 9, 8), ["halves", "memory.view", "conv2d_transpose_pairs"]),
        (transposed(1), (1, 9, 9, 8), ["nn.conv2d_transpose"]),
        (of_planes, (1, 3, 9, 9), ["planes_in_pairs", "conv2d_pairs"]),
        (masked, (1, 5, 3, 8), ["exp", *["strided_slice"] * 3, "nn.attention"]),
        (attended, (1, 5, 3, 7), ["exp", *["strided_slice"] * 3, "nn.attention"]),
    ],
)
def test_products_by_constants_multiply_halves(
    body: Body, shape: tuple[int, ...], expected: list[str]
) -> None:
    assert operators(rewritten(module(body, shape), precision="bfloat16")) == expected


@pytest.mark.parametrize(
    ("body", "shape", "arranged"),
    [
        (of_planes, (1, 3, 9, 9), ["points_in_pairs"]),
        (of_three_channels, (1, 9, 9, 3), ["nn.pad", "halves", "memory.view"]),
        (convolution, (1, 9, 9, 8), ["halves", "memory.view"]),
    ],
)
def test_taps_of_a_row_and_their_channels_are_one_axis_where_that_is_faster(
    body: Body, shape: tuple[int, ...], arranged: list[str]
) -> None:
    def predict_us(func: Any) -> float:
        filters = [one.shape for one in prepare(func).graph.tensors if len(one.shape) == 5]
        folded = any(shape[-2] == 1 for shape in filters)
        return predicted(0.1 if folded else 0.4)(func)

    mod = module(body, shape)
    found = operators(MultiplyHalves(HALVES, predict_us, "bfloat16")(mod))
    assert found == [*arranged, "reshape", "conv2d_pairs"]


def test_what_is_moved_is_rounded_where_it_is_made() -> None:
    found = operators(rewritten(module(moved_product, (3, 5, 8)), precision="bfloat16"))
    moved = ["permute_dims", "reshape", "memory.view"]
    assert found == ["exp", "halves", *moved, "dense_pairs"]


def test_attention_rounds_what_it_slices_before() -> None:
    found = operators(rewritten(module(attended, (1, 5, 3, 8)), precision="bfloat16"))
    one = ["halves", "memory.view", "strided_slice"]
    assert found == ["exp", *one, *one, "halves", "strided_slice", "attention_pairs"]
    slow = {"float32": 100.0, "bfloat16": 100.0}
    by_matrices = msgspec.structs.replace(HALVES, isa=(*HALVES.isa, HALVES_ISA), peak_gflops=slow)
    kept = MultiplyHalves(by_matrices, predicted(0.4), "bfloat16")(module(attended, (1, 5, 3, 8)))
    assert "nn.attention" in operators(kept), "of which no matrix unit does anything"


def test_a_convolution_that_is_faster_in_floats_stays() -> None:
    mod = module(convolution, (1, 9, 9, 8))
    assert operators(rewritten(mod, 2.0, precision="bfloat16")) == ["nn.conv2d"]


def test_nothing_is_rounded_unasked_or_without_gain() -> None:
    mod = module(product, (5, 8))
    assert operators(rewritten(mod)) == operators(rewritten(mod, precision="float32"))
    assert operators(rewritten(mod)) == ["matmul"]
    slow = msgspec.structs.replace(HALVES, peak_gflops=PLAIN.peak_gflops)
    assert multiplies_halves(HALVES)
    assert not multiplies_halves(PLAIN)
    assert not multiplies_halves(slow)
    asked = MultiplyHalves(PLAIN, predicted(0.5), "bfloat16")(mod)
    assert operators(asked) == ["matmul"]


@pytest.mark.parametrize(("dtype", "rounds"), [("bfloat16", True), ("float16", False)])
def test_a_model_in_bfloat16_multiplies_it_unless_asked_not_to(dtype: str, rounds: bool) -> None:
    import ml_dtypes

    weight = WEIGHT.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    mod = Widen()(module(lambda _, x: op.matmul(x, constant(weight)), (5, 8), dtype))
    assert ("dense_pairs" in operators(rewritten(mod))) == rounds
    assert "dense_pairs" not in operators(rewritten(mod, precision="float32"))
