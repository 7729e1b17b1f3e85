"""Which call reads what of which other, and at which memory level it finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import packed_shape, winograd
from tvm_ext.edge_levels import stage_levels, step_levels
from tvm_ext.graph.concat_in_place import ConcatInPlace
from tvm_ext.graph.concat_places import CONCAT_AXIS
from tvm_ext.graph.steps import INPUT, steps
from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import IRModule, constant, relax, te, tirx, topi

HARDWARE = get("cpu/x86-avx512")
ROWS = (64, 256)
BYTES = 64 * 256 * 4


def called(build: Callable[..., Any]) -> IRModule:
    """A function of one tensor; `build` is given what emits the call of a kernel."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(ROWS, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder, x))
        builder.emit_func_output(result)
    return builder.finalize()


def chain(builder: Any, x: Any) -> Any:
    """exp; a view; its product with a constant, to which exp is added."""
    power = builder.emit_te(topi.exp, x)
    view = builder.emit(relax.op.reshape(power, (32, 512)))
    again = builder.emit(relax.op.reshape(view, ROWS))
    product = builder.emit_te(topi.matmul, again, constant(np.ones((256, 256), "float32")))
    return builder.emit_te(topi.add, product, power)


def test_reads_are_found_before_and_after_lowering() -> None:
    mod = called(chain)
    lowered = relax.transform.CallTIRRewrite()(
        relax.transform.RemovePurityChecking()(relax.transform.ToNonDataflow()(mod))
    )
    for one in (mod, lowered):
        assert [step.reads for step in steps(one)] == [
            ((INPUT, BYTES),),
            ((0, BYTES),),
            ((0, BYTES), (1, BYTES)),
        ]


def test_what_is_left_open_counts_once() -> None:
    builder = relax.BlockBuilder()
    extent = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((extent + 1, 256), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(topi.exp, x))
        builder.emit_func_output(result)
    assert [step.reads for step in steps(builder.finalize())] == [((INPUT, 2 * 256 * 4),)]


def test_of_a_concatenation_in_place_all_parts_are_read() -> None:
    """Two kernels write slices of one tensor, which a third reads; a fourth reads one slice."""

    def build(builder: Any, x: Any) -> Any:
        parts = [builder.emit_te(topi.exp, x), builder.emit_te(topi.tanh, x)]
        joined = builder.emit_te(
            lambda a, b: topi.concatenate([a, b], 1),
            *parts,
            primfunc_attrs={CONCAT_AXIS: 1},
        )
        whole = builder.emit_te(topi.sum, joined, 1, True)
        part = builder.emit_te(topi.max, parts[1], 1, True)
        return builder.emit_te(topi.add, whole, part)

    placed = ConcatInPlace(8)(called(build))
    found = {step.kernel: {source for source, _ in step.reads} for step in steps(placed)}
    assert found["sum"] == {0, 1}
    (largest,) = (reads for name, reads in found.items() if name.startswith("max"))
    assert largest == {1}


def test_what_is_touched_in_between_decides() -> None:
    mod = called(chain)
    small = {step.kernel: BYTES for step in steps(mod)}
    first, product, last = step_levels(mod, small, HARDWARE)
    assert [read.level for read in first.reads] == ["dram"]
    assert [read.level for read in (*product.reads, *last.reads)] == ["l1", "l1", "l1"]
    last = step_levels(mod, small | {"matmul": 1 << 30}, HARDWARE)[-1]
    assert [(read.step, read.level) for read in last.reads] == [(0, "dram"), (1, "l1")]


def test_of_winograd_transforms_are_registers() -> None:
    """What lies between them in a core's caches, or, each stage for itself, in those of all."""
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 64, 64)
    x = te.placeholder((1, 56, 56, 64), "float32", "x")
    w = te.placeholder(packed_shape(geometry, 16, 4), "float32", "w")
    prepared = prepare(te.create_prim_func([x, w, winograd(x, w, geometry, 4)]))
    assert prepared is not None
    graph = prepared.graph
    found = transform_chain(graph)
    assert found is not None
    for candidate in pick(graph, HARDWARE, 8):
        stages = stage_levels(graph, candidate.plan, HARDWARE)
        assert stages[found.rows_in].level == stages[found.rows_out].level == "register"
        assert stages[found.cols_in].level in ("l1", "l2", "l3", "dram")
        assert stages[found.last].level == ""


def test_what_has_no_plan_has_no_stages() -> None:
    assert stage_levels(None, None, HARDWARE) == ()
