"""`AbsorbViews`: which permutations vanish in the product that reads them, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from fused_modules import HARDWARE, before, kernels

from tvm_ext.costs import predicted_us
from tvm_ext.graph.absorb_views import AbsorbViews
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, relax

op = relax.op
Emit = Callable[[Any], Any]
Build = Callable[..., Any]
HEADS_FIRST, POSITIONS_FIRST = (1, 4, 64, 32), (1, 64, 4, 32)
SWAPPED = [0, 2, 1, 3]


def fused(build: Build, shape: tuple[int, ...] = HEADS_FIRST) -> IRModule:
    """A function of three tensors as far as `Stitch` takes it."""
    return before("AbsorbViews", build, shape, "qkv")


def absorbed(mod: IRModule, predict_us: Callable[[PrimFunc], float] | None = None) -> list[str]:
    """The kernels that are left, times being by the model of the machine."""

    def by_model(func: PrimFunc) -> float:
        return predicted_us(func, HARDWARE)

    with Target(HARDWARE.target):
        return kernels(AbsorbViews(predict_us or by_model)(mod))


def attention(emit: Emit, q: Any, k: Any, v: Any) -> Any:
    turned = emit(op.permute_dims(k, [0, 1, 3, 2]))
    return emit(op.matmul(emit(op.nn.softmax(emit(op.matmul(q, turned)))), v))


def test_attention_reads_and_writes_heads_where_they_lie() -> None:
    mod = fused(attention)
    assert len(kernels(mod)) == 5
    (only,) = absorbed(mod)
    assert "attention" in only


def test_permutations_of_permutations_were_none() -> None:
    def build(emit: Emit, q: Any, k: Any, v: Any) -> Any:
        heads = [emit(op.permute_dims(x, SWAPPED)) for x in (q, k)]
        y = attention(emit, *heads, emit(op.permute_dims(emit(op.negative(v)), SWAPPED)))
        return emit(op.permute_dims(y, SWAPPED))

    mod = fused(build, POSITIONS_FIRST)
    assert absorbed(mod) == kernels(mod) == ["tir_negative", "attention"]


def test_what_others_read_as_well_stays() -> None:
    def build(emit: Emit, q: Any, k: Any, v: Any) -> Any:
        turned = emit(op.permute_dims(q, SWAPPED))
        return [attention(emit, q, k, v), emit(op.add(turned, emit(op.sqrt(turned))))]

    mod = fused(build)
    left = absorbed(mod)
    assert len(kernels(mod)) == 6
    assert len(left) == 3
    assert sum("attention" in name for name in left) == 1
    assert "transpose" in left


def test_the_model_decides() -> None:
    mod = fused(attention)
    assert absorbed(mod, lambda func: inf) == kernels(mod)
