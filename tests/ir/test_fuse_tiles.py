"""`FuseTiles`: which products become one kernel with what lies around them, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from chain_modules import Chain
from fused_modules import HARDWARE, kernels

from tvm_ext import passes
from tvm_ext.costs import predicted_us, why_no_strips
from tvm_ext.graph.fuse_tiles import FuseTiles
from tvm_ext.records.manifest import Fusion
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, relax

op = relax.op
BLOCK = ("norm", "dense 96 gelu", "dense 32", "skip")
ROWS = (1, 4096, 32)


def lowered(mod: IRModule) -> IRModule:
    """The module as far as `FuseTiles` takes it."""
    with Target(HARDWARE.target):
        for step in passes.graph_passes(HARDWARE):
            if step.info.name == "FuseTiles":
                return mod
            mod = step(mod)
    raise AssertionError("no such pass")


def fused(
    mod: IRModule,
    predict_us: Callable[..., float] | None = None,
    explain: Callable[[Fusion], object] | None = None,
) -> list[str]:
    """The kernels that are left, times being by the model of the machine."""

    def by_model(func: PrimFunc, rule: str = "") -> float:
        return predicted_us(func, HARDWARE, rule)

    with Target(HARDWARE.target):
        return kernels(FuseTiles(predict_us or by_model, explain=explain)(mod))


def by_count(func: PrimFunc, rule: str = "") -> float:
    """One kernel is faster than several."""
    legal = predicted_us(func, HARDWARE, rule)
    return 1.0 if legal < inf else inf


def test_a_narrow_block_is_one_kernel() -> None:
    mod = lowered(Chain.drawn(BLOCK, ROWS).module())
    assert len(kernels(mod)) == 3
    assert len(fused(mod)) == 1


def test_the_model_decides() -> None:
    mod = lowered(Chain.drawn(BLOCK, ROWS).module())
    told: list[Fusion] = []
    slow = 1e9
    left = fused(mod, lambda func, rule="": slow if rule else 1.0, told.append)
    assert left == kernels(mod)
    assert {fusion.stopped.split(":")[1] for fusion in told} == {" slower"}


def test_a_norm_goes_with_the_product_before_it() -> None:
    mod = lowered(Chain.drawn(("dense 64", "norm"), (2, 64, 48)).module())
    assert len(kernels(mod)) == 2
    assert len(fused(mod, by_count)) == 1


def test_what_others_read_as_well_stays() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(ROWS, "float32"))
    chain = Chain.drawn(("dense 64", "norm", "dense 32"), ROWS)
    first, bias, scale, shift, second, last = map(relax.const, chain.weights)
    with builder.function("main", [x]):
        with builder.dataflow():
            h = builder.emit(op.add(builder.emit(op.matmul(x, first)), bias))
            n = builder.emit(op.nn.layer_norm(h, scale, shift, axes=[-1], epsilon=1e-5))
            y = builder.emit(op.add(builder.emit(op.matmul(n, second)), last))
            results = builder.emit_output(relax.Tuple([h, y]))
        builder.emit_func_output(results)
    left = fused(lowered(builder.finalize()), by_count)
    assert len(left) == 2
    assert "layer_norm" in left[1]


@pytest.mark.parametrize("rows", [1, 7, 13])
def test_rows_that_cores_cannot_share_evenly_stay(rows: int) -> None:
    mod = lowered(Chain.drawn(BLOCK, (1, rows, 32)).module())
    assert fused(mod, by_count) == kernels(mod)


def expansion() -> IRModule:
    """What a depthwise window reads is large, and made of little."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 56, 56, 8), "float32"))
    point = relax.const(np.ones((64, 8, 1, 1), "float32"))
    taps = relax.const(np.ones((64, 1, 3, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.permute_dims(x, [0, 3, 1, 2]))
            y = builder.emit(op.nn.relu(builder.emit(op.nn.conv2d(y, point))))
            y = builder.emit(op.nn.conv2d(y, taps, padding=(1, 1, 1, 1), groups=64))
            z = builder.emit_output(op.permute_dims(y, [0, 2, 3, 1]))
        builder.emit_func_output(z)
    return lowered(builder.finalize())


def test_a_depthwise_window_goes_with_the_expansion_before_it() -> None:
    mod = expansion()
    assert len(kernels(mod)) == 2
    (name,) = fused(mod, by_count)
    assert "depthwise" in name


@pytest.mark.parametrize(
    ("together_us", "cold_us", "left"),
    [
        (19.5, 0.0, 2),  # at its seams it might be slower
        (18.0, 0.0, 1),
        (19.5, 2.0, 1),
    ],
)
def test_memory_that_nobody_has_touched_is_worth_saving(
    together_us: float, cold_us: float, left: int
) -> None:
    mod = expansion()

    def predicted(func: PrimFunc, rule: str = "") -> float:
        return together_us if rule else 10.0

    def cold(fresh_bytes: int, run_bytes: int) -> float:
        assert run_bytes > fresh_bytes
        return cold_us if fresh_bytes == 56 * 56 * 64 * 4 else 0.0

    with Target(HARDWARE.target):
        assert len(kernels(FuseTiles(predicted, cold_us=cold)(mod))) == left


def test_a_function_that_cannot_be_written_is_not_made() -> None:
    mod = expansion()
    told: list[Fusion] = []
    with Target(HARDWARE.target):
        asked = FuseTiles(by_count, explain=told.append, why_unwritten=lambda func: "recompute")
        assert len(kernels(asked(mod))) == 2
    assert any("recompute" in fusion.stopped for fusion in told)


def test_what_keeps_strips_from_being_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours too: in a user's compile nothing else would tell it from a choice."""
    with Target(HARDWARE.target):
        mod = FuseTiles(by_count)(expansion())
    (name,) = kernels(mod)
    merged = mod[name]
    assert why_no_strips(merged, HARDWARE) == ""

    def broken(_func: PrimFunc, _plan: TilePlan) -> PrimFunc:
        raise KeyError("a stage")

    monkeypatch.setattr("tvm_ext.costs.write", broken)
    monkeypatch.setattr("tvm_ext.flags.strict", lambda: False)
    assert why_no_strips(merged, HARDWARE) == "strips, internal KeyError: 'a stage'"


def test_a_window_ends_the_region() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 32, 32), "float32"))
    drawn = Chain.drawn(("dense 16", "dense 16"), (1, 16))
    point = relax.const(drawn.weights[0].reshape(16, 16, 1, 1))
    window = relax.const(drawn.weights[2].reshape(16, 16, 1, 1).repeat(3, 2).repeat(3, 3))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, point))
            z = builder.emit_output(op.nn.conv2d(y, window, padding=(1, 1, 1, 1)))
        builder.emit_func_output(z)
    mod = lowered(builder.finalize())
    assert fused(mod, by_count) == kernels(mod)


def test_a_transformed_convolution_stays_one_chain() -> None:
    """As pieces of a strip its stages would go through memory, and every element of a reference
    would ask for all of the convolution before it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 256, 14, 14), "float32"))
    weight = relax.const(np.ones((256, 256, 3, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, weight, padding=(1, 1, 1, 1)))
            z = builder.emit_output(op.nn.conv2d(y, weight, padding=(1, 1, 1, 1)))
        builder.emit_func_output(z)
    mod = lowered(builder.finalize())
    assert len([name for name in kernels(mod) if "winograd" in name]) == 2
    assert fused(mod, by_count) == kernels(mod)


def test_a_decision_says_what_it_saves() -> None:
    told: list[Fusion] = []
    fused(lowered(Chain.drawn(BLOCK, ROWS).module()), by_count, told.append)
    (fusion,) = told
    assert len(fusion.kernels) == 3
    assert fusion.together_bytes < fusion.apart_bytes / 3
    assert fusion.stopped == ""
