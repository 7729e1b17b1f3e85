"""`FuseAttention`: what becomes one operator, which transpositions go, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_ext.flow import lower
from tvm_ext.graph.fold import FoldLayout
from tvm_ext.graph.fuse_attention import FuseAttention
from tvm_ext.graph.legalise import Legalise
from tvm_ext.graph.legalise_attention import legalise_attention
from tvm_ext.hardware import get
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    constant,
    constant_array,
    op_name,
    relax,
    structural_walk,
)

HARDWARE = get("cpu/x86-avx512")
op = relax.op
Emit = Callable[[Any], Any]
Scores = Callable[[Emit, Any], Any]


def plain(emit: Emit, scores: Any) -> Any:
    return scores


def heads(
    scores: Scores = plain,
    queries: int = 48,
    keys: int = 40,
    axis: int = -1,
    again: bool = False,
    scale: float = 1.0,
    mask: tuple[int, ...] = (),
) -> IRModule:
    """Three projections of two heads, the product of the first two as `scores` makes it, a softmax
    and the product with the third, by positions; `again`: the softmax is a result as well."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    shapes = [(1, n, 64) for n in (queries, keys, keys)] + ([mask] if mask else [])
    names = ("q", "k", "v", "mask")
    params = [
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in zip(names, shapes, strict=False)
    ]

    def split(x: Any, axes: tuple[int, ...]) -> Any:
        rows = emit(op.reshape(x, (1, int(x.ty.shape[1]), 2, 32)))
        turned = emit(op.permute_dims(rows, axes))
        return emit(op.multiply(turned, relax.const(scale, "float32"))) if scale != 1 else turned

    with builder.function("main", params):
        with builder.dataflow():
            q, k = split(params[0], (0, 2, 1, 3)), split(params[1], (0, 2, 3, 1))
            v = emit(op.permute_dims(emit(op.reshape(params[2], (1, keys, 2, 32))), (0, 2, 1, 3)))
            product = emit(op.matmul(q, k))
            given = scores(emit, product) if not mask else emit(op.add(product, params[3]))
            power = emit(op.nn.softmax(given, axis))
            mixed = emit(op.permute_dims(emit(op.matmul(power, v)), (0, 2, 1, 3)))
            y = emit(op.reshape(mixed, (-1, queries, 64)))
            result = builder.emit_output(relax.Tuple([y, power]) if again else y)
        builder.emit_func_output(result)
    return builder.finalize()


def calls(mod: IRModule) -> list[Any]:
    found: list[Any] = []
    structural_walk(mod["main"].body, (relax.Call, found.append))
    return found


def names(mod: IRModule) -> list[str]:
    return sorted(op_name(call).removeprefix("relax.") for call in calls(mod))


def attention(mod: IRModule) -> Any:
    return next(call for call in calls(mod) if "attention" in str(call.op.name))


def fused(mod: IRModule) -> IRModule:
    return FuseAttention(HARDWARE)(mod)


def test_two_products_and_a_softmax_become_one_operator() -> None:
    assert names(fused(heads())) == ["nn.attention", *4 * ["reshape"]]


def test_scales_of_operands_and_scores_become_one() -> None:
    def scaled(emit: Emit, scores: Any) -> Any:
        return emit(op.divide(scores, relax.const(8.0, "float32")))

    mod = fused(heads(scaled, scale=0.5))
    assert names(mod) == ["nn.attention", *4 * ["reshape"]]
    assert float(attention(mod).attrs.scale.value) == pytest.approx(0.5 * 0.5 / 8)


@pytest.mark.parametrize("shape", [(1, 1, 1, 40), (1, 2, 48, 40), (48, 40), (40,)])
def test_a_mask_that_is_added_becomes_the_bias(shape: tuple[int, ...]) -> None:
    bias = attention(fused(heads(mask=shape))).args[3]
    assert tuple(map(int, bias.ty.shape)) == (*(1,) * (4 - len(shape)), *shape)


def test_two_masks_are_added_up_and_one_of_zeros_is_dropped() -> None:
    def masked(*values: float) -> Scores:
        def add(emit: Emit, scores: Any) -> Any:
            for value in values:
                scores = emit(op.add(scores, constant(np.full((1, 1, 48, 40), value, "float32"))))
            return scores

        return add

    assert names(fused(heads(masked(1.0, 2.0)))).count("add") == 1
    one = fused(heads(masked(0.0, 2.0)))
    assert "add" not in names(one)
    assert str(attention(one).op.name) == "relax.nn.attention_bias"
    assert str(attention(fused(heads(masked(0.0)))).op.name) == "relax.nn.attention"


def test_heads_that_share_keys_are_not_repeated() -> None:
    """Llama's and others': expanded along a new axis, merged with the heads."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    q = relax.Var("q", relax.TensorType((1, 8, 32, 16), "float32"))
    k, v = (relax.Var(n, relax.TensorType((1, 2, 40, 16), "float32")) for n in "kv")

    def repeated(x: Any) -> Any:
        wide = emit(op.broadcast_to(emit(op.expand_dims(x, [2])), (1, 2, 4, 40, 16)))
        return emit(op.reshape(wide, (1, 8, 40, 16)))

    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            scores = emit(op.matmul(q, emit(op.permute_dims(repeated(k), (0, 1, 3, 2)))))
            y = builder.emit_output(op.matmul(emit(op.nn.softmax(scores, -1)), repeated(v)))
        builder.emit_func_output(y)
    mod = fused(builder.finalize())
    assert "broadcast_to" not in names(mod)
    shapes = [tuple(map(int, one.ty.shape)) for one in attention(mod).args]
    assert shapes == [(1, 32, 8, 16), (1, 40, 2, 16), (1, 40, 2, 16)]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_guard_against_nan_is_part_of_it(value: float) -> None:
    """PyTorch's around a softmax that may be masked as a whole; with another value it is none."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    q, k, v = (relax.Var(n, relax.TensorType((1, 2, 32, 16), "float32")) for n in "qkv")
    mask = relax.Var("mask", relax.TensorType((1, 1, 32, 32), "float32"))
    with builder.function("main", [q, k, v, mask]):
        with builder.dataflow():
            product = emit(op.matmul(q, emit(op.permute_dims(k, (0, 1, 3, 2)))))
            power = emit(op.nn.softmax(emit(op.add(product, mask)), -1))
            kept = emit(op.where(emit(op.isnan(power)), relax.const(value, "float32"), power))
            y = builder.emit_output(op.matmul(kept, v))
        builder.emit_func_output(y)
    mod = fused(builder.finalize())
    assert ("call_tir" in names(mod)) == (value == 0.0)
    assert ("nn.softmax" in names(mod)) == (value != 0.0)


@pytest.mark.parametrize("asked", ["mask", "other"])
def test_so_is_one_against_a_mask_that_hides_all(asked: str) -> None:
    """ONNX's own around it; one that asks another mask than is added is none."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    q, k, v = (relax.Var(n, relax.TensorType((1, 2, 32, 16), "float32")) for n in "qkv")
    shape = relax.TensorType((1, 1, 32, 32), "float32")
    masks = {name: relax.Var(name, shape) for name in ("mask", "other")}
    zero, least = (relax.const(value, "float32") for value in (0.0, -np.inf))
    with builder.function("main", [q, k, v, *masks.values()]):
        with builder.dataflow():
            product = emit(op.matmul(q, emit(op.permute_dims(k, (0, 1, 3, 2)))))
            power = emit(op.nn.softmax(emit(op.add(product, masks["mask"])), -1))
            top = emit(op.max(masks[asked], -1, keepdims=True))
            kept = emit(op.where(emit(op.equal(top, least)), zero, power))
            y = builder.emit_output(op.matmul(kept, v))
        builder.emit_func_output(y)
    mod = fused(builder.finalize())
    assert ("call_tir" in names(mod)) == (asked == "mask")
    assert ("max" in names(mod)) == (asked == "other")


def test_heads_may_be_the_batch() -> None:
    builder = relax.BlockBuilder()
    q, k, v = (relax.Var(n, relax.TensorType((6, 32, 16), "float32")) for n in "qkv")
    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            scores = builder.emit(op.matmul(q, builder.emit(op.permute_dims(k, (0, 2, 1)))))
            y = builder.emit(op.matmul(builder.emit(op.nn.softmax(scores, -1)), v))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    mod = fused(builder.finalize())
    assert names(mod) == [*3 * ["expand_dims"], "nn.attention", "squeeze"]
    assert tuple(map(int, attention(mod).args[0].ty.shape)) == (6, 32, 1, 16)


def by_itself(emit: Emit, scores: Any) -> Any:
    return emit(op.multiply(scores, scores))


def by_rows(emit: Emit, scores: Any) -> Any:
    rows = constant(np.linspace(1, 2, 96, dtype="float32").reshape(1, 2, 48, 1))
    return emit(op.multiply(scores, rows))


def by_as_many_equal(emit: Emit, scores: Any) -> Any:
    columns = constant(np.full(int(scores.ty.shape[-1]), 0.125, "float32"))
    return emit(op.multiply(scores, columns))


@pytest.mark.parametrize(
    "mod",
    [
        heads(queries=7),
        heads(axis=2, queries=40),
        heads(again=True),
        heads(by_itself),
        heads(by_rows),
        heads(queries=16, keys=1 << 20),
        heads(mask=(3, 1, 1, 40)),
    ],
    ids=[
        *("few queries", "down columns", "read again", "squared", "by rows", "no room"),
        "larger by its mask",
    ],
)
def test_others_stay_as_they_are(mod: IRModule) -> None:
    assert not [name for name in names(fused(mod)) if "attention" in name]


def test_a_scale_may_be_a_tensor_of_one_number() -> None:
    assert attention(fused(heads(by_as_many_equal))).attrs.scale.value == pytest.approx(0.125)


def test_no_gpu_has_a_plan_for_it_yet() -> None:
    mod = FuseAttention(get("cuda/sm_80"))(heads())
    assert "nn.attention" not in names(mod)


def test_a_permutation_of_a_permutation_is_one_or_none() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 5, 7), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            one = builder.emit(op.permute_dims(x, (0, 2, 3, 1)))
            back = builder.emit(op.permute_dims(one, (0, 3, 1, 2)))
            other = builder.emit(op.permute_dims(one))
            result = builder.emit_output(relax.Tuple([back, other]))
        builder.emit_func_output(result)
    (left,) = calls(fused(builder.finalize()))
    assert [int(axis) for axis in left.attrs.axes] == [1, 3, 2, 0]


def test_one_kernel_is_left_and_reshapes_before_it_are_views() -> None:
    lowered = lower(heads(), "cpu/x86-avx512", None, 2)
    kernels = {task.name.rstrip("0123456789") for task in lowered.tasks.values()}
    assert kernels == {"attention", "reshape"}  # the caller gets memory of his own
    assert names(lowered.mod).count("reshape") == 3


def test_a_bias_shared_by_layers_is_turned_once() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 32, 2, 16), "float32"))
    mask = relax.Var("mask", relax.TensorType((1, 1, 32, 32), "float32"))
    with builder.function("main", [x, mask]):
        with builder.dataflow():
            y = x
            for _ in range(3):
                y = builder.emit(op.nn.attention(y, y, y, mask))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    tasks = lower(builder.finalize(), "cpu/x86-avx512", None, 2).tasks.values()
    assert sorted((task.calls, task.name.rstrip("0123456789")) for task in tasks) == [
        (1, "bias_by_keys"),
        (3, "attention"),
    ]


@pytest.mark.parametrize(
    ("heads_of_keys", "causal", "lowered"),
    [(4, None, True), (2, None, True), (4, "TopLeft", False)],
)
def test_operators_of_a_flow_are_lowered_where_the_kernel_covers_them(
    heads_of_keys: int, causal: str | None, lowered: bool
) -> None:
    q = relax.Var("q", relax.TensorType((1, 32, 4, 16), "float32"))
    k = relax.Var("k", relax.TensorType((1, 32, heads_of_keys, 16), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [q, k]):
        with builder.dataflow():
            call = builder.normalize(op.nn.attention(q, k, k, causal_mask=causal))
            made = legalise_attention(builder, call, Legalise(HARDWARE))
            result = builder.emit_output(q)
        builder.emit_func_output(result)
    assert (made is not None) == lowered


def hiding(shown: bool, value: float) -> Scores:
    """Scores where a constant mask is set, or where it is not, and a value elsewhere."""

    def where(emit: Emit, scores: Any) -> Any:
        given = constant(np.tri(48, 40, dtype=bool))
        other = relax.const(value, "float32")
        return emit(op.where(given, *((scores, other) if shown else (other, scores))))

    return where


@pytest.mark.parametrize("value", [-1e9, -3.4e38, -np.inf])
@pytest.mark.parametrize("shown", [True, False])
def test_a_mask_that_replaces_scores_becomes_a_bias(shown: bool, value: float) -> None:
    mod = FoldLayout()(fused(heads(hiding(shown, value))))
    assert names(mod) == ["nn.attention_bias", *4 * ["reshape"]]
    found: list[Any] = []
    structural_walk(mod["main"].body, (GenericConst, found.append))
    (bias,) = (array for array in map(constant_array, found) if array.ndim == 4)
    hidden = np.tri(48, 40, dtype=bool) ^ shown
    np.testing.assert_array_equal(bias[0, 0], np.where(hidden, np.float32(value), 0))


@pytest.mark.parametrize("value", [0.0, -1e4])
def test_a_mask_that_hides_nothing_is_none(value: float) -> None:
    """Of a row that is masked as a whole the scores would still tell."""
    assert "nn.attention_bias" not in names(fused(heads(hiding(True, value))))


def test_a_scale_may_stand_on_the_left() -> None:
    def scaled(emit: Emit, scores: Any) -> Any:
        return emit(op.multiply(relax.const(0.25, "float32"), scores))

    assert float(attention(fused(heads(scaled))).attrs.scale.value) == pytest.approx(0.25)


def test_a_scale_of_each_head_goes_to_its_queries() -> None:
    """Swin V2's temperatures."""

    def scaled(emit: Emit, scores: Any) -> Any:
        each = np.array([2.0, 3.0], "float32").reshape(1, 2, 1, 1)
        return emit(op.multiply(scores, constant(each)))

    found = names(fused(heads(scaled)))
    assert "nn.attention" in found
    assert found.count("multiply") == 1


def test_values_may_stand_on_the_left() -> None:
    """Stable Diffusion's autoencoder: v @ pᵀ."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    q = relax.Var("q", relax.TensorType((1, 48, 32), "float32"))
    k, v = (relax.Var(n, relax.TensorType((1, 32, 48), "float32")) for n in "kv")
    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            power = emit(op.nn.softmax(emit(op.matmul(q, k)), -1))
            y = builder.emit_output(op.matmul(v, emit(op.permute_dims(power, [0, 2, 1]))))
        builder.emit_func_output(y)
    found = names(fused(builder.finalize()))
    assert "nn.attention" in found
    assert not {"matmul", "nn.softmax"} & set(found)


@pytest.mark.parametrize("rank", [3, -1])
def test_products_of_unknown_shape_stay(rank: int) -> None:
    """Of which at most the number of axes is known."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x, y = (relax.Var(name, relax.TensorType(ndim=rank, dtype="float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            z = builder.emit_output(op.matmul(x, emit(op.permute_dims(y))))
        builder.emit_func_output(z)
    assert names(fused(builder.finalize())) == ["matmul", "permute_dims"]


def test_a_matrix_times_what_is_turned_stays() -> None:
    """Mamba's steps: the left operand has fewer axes than what is multiplied."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    w = relax.Var("w", relax.TensorType((16, 48), "float32"))
    x = relax.Var("x", relax.TensorType((2, 24, 48), "float32"))
    with builder.function("main", [w, x]):
        with builder.dataflow():
            y = builder.emit_output(op.matmul(w, emit(op.permute_dims(x, [0, 2, 1]))))
        builder.emit_func_output(y)
    assert sorted(names(fused(builder.finalize()))) == ["matmul", "permute_dims"]
