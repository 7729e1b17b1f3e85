"""Which projections become one product that attention reads slices of, and which do not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fused_modules import HARDWARE, kernels
from projections import MODEL, Projections, attention, module, split_module

from tvm_ext import passes
from tvm_ext.graph.fuse_attention import FuseAttention
from tvm_ext.graph.lower_split import LowerSplit
from tvm_ext.graph.normalise import Normalise
from tvm_ext.tvm_api import IRModule, Target, op_name, relax, static_extents, structural_walk


def operators(mod: IRModule) -> Counter[str]:
    fused = FuseAttention(HARDWARE)(Normalise()(LowerSplit()(mod)))
    found: list[Any] = []
    structural_walk(fused["main"].body, (relax.Call, found.append))
    return Counter(op_name(call).removeprefix("relax.") for call in found)


def lowered(mod: IRModule) -> list[str]:
    with Target(HARDWARE.target):
        for step in passes.graph_passes(HARDWARE):
            if step.info.name == "ConcatInPlace":
                break
            mod = step(mod)
    return kernels(mod)


def test_projections_of_one_tensor_are_one_product() -> None:
    found = operators(module(Projections.drawn()))
    assert found["matmul"] == found["add"] == 1
    assert found["strided_slice"] == 3


def test_attention_reads_its_slices_where_they_lie() -> None:
    first, second = lowered(module(Projections.drawn()))
    assert first.startswith("fused_dense")
    assert "attention" in second


def test_without_biases_none_is_added() -> None:
    found = operators(module(Projections.drawn((False, False, False))))
    assert (found["matmul"], found["add"]) == (1, 0)


def test_one_bias_of_three_is_enough() -> None:
    found = operators(module(Projections.drawn((True, False, True))))
    assert (found["matmul"], found["add"]) == (1, 1)


def test_keys_and_values_of_another_tensor_are_one_product() -> None:
    found = operators(module(Projections.drawn(), (0, 1, 1)))
    assert found["matmul"] == 2
    assert found["strided_slice"] == 2


def test_projections_of_three_tensors_stay() -> None:
    found = operators(module(Projections.drawn(), (0, 1, 2)))
    assert (found["matmul"], found["strided_slice"]) == (3, 0)


def test_what_others_read_as_well_stays() -> None:
    """Computing it twice would cost more than is gained."""
    found = operators(module(Projections.drawn(), also=lambda emit, projected: projected[:1]))
    assert found["matmul"] == 2
    assert found["strided_slice"] == 2


def test_a_split_goes_behind_the_reshape() -> None:
    mod = split_module(Projections.drawn())
    assert operators(mod)["split"] == 0
    assert len(lowered(mod)) == 2


def test_a_split_within_heads_stays_before_it() -> None:
    odd = Normalise()(LowerSplit()(uneven_split()))
    calls: list[Any] = []
    structural_walk(FuseAttention(HARDWARE)(odd)["main"].body, (relax.Call, calls.append))
    slices = [call for call in calls if op_name(call) == "relax.strided_slice"]
    assert {len(static_extents(call.args[0].ty) or ()) for call in slices} == {3}


def uneven_split() -> IRModule:
    """Parts that begin 8 columns into a head of 16."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType((1, 32, 3 * MODEL + 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = emit(relax.op.split(x, [8, 8 + MODEL, 8 + 2 * MODEL], -1))
            projected = [emit(parts[place]) for place in (1, 2, 3)]
            result = builder.emit_output(attention(emit, projected))
        builder.emit_func_output(result)
    return builder.finalize()


@pytest.mark.parametrize("keys_first", [False, True])
def test_equal_projections_are_computed_once(keys_first: bool) -> None:
    """Keys that are the values: one tensor twice is no reason to join."""
    drawn = Projections.drawn()
    order = (1, 1, 2) if keys_first else (0, 1, 1)
    same = Projections(
        tuple(drawn.weights[i] for i in order), tuple(drawn.biases[i] for i in order)
    )
    assert operators(module(same))["matmul"] <= 2
