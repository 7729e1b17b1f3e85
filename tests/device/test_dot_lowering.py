"""A dot product of bytes in vectors of each width that has an instruction, and in others."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.hardware import resolve
from tvm_ext.tvm_api import IRModule, Schedule, target_of, te, tvm
from tvm_ext.tvm_dots import dot
from tvm_ext.tvm_lowering import TIR_PIPELINE

HOST = resolve("cpu")
COLUMNS, FOURS = 32, 5
NEEDED = {"avx512vnni", "avx512vl"}


@pytest.mark.skipif(not set(HOST.isa) >= NEEDED, reason="needs AVX-512 VNNI")
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_every_width_sums_up_the_same(lanes: int) -> None:
    a = te.placeholder((FOURS,), "int32", "a")
    b = te.placeholder((FOURS, COLUMNS), "int32", "b")
    q = te.reduce_axis((0, FOURS), "q")
    y = te.compute((COLUMNS,), lambda j: te.sum(dot(a[q], b[q, j]), axis=q), name="y")
    schedule = Schedule(te.create_prim_func([a, b, y]))
    block = schedule.get_sblock("y")
    column, steps = schedule.get_loops(block)
    chunk, lane = schedule.split(column, [None, lanes])
    schedule.reorder(chunk, steps, lane)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, steps)
    mod = IRModule({"main": schedule.mod["main"].with_attr({"global_symbol": "main"})})
    target = target_of(HOST.target)
    with target:
        kernel = tvm.compile(mod, target=target, tir_pipeline=TIR_PIPELINE)
    one_instruction = "vpdpbusd" in kernel.mod.inspect_source("asm")
    assert one_instruction == (lanes in (4, 8, 16))
    rng = np.random.default_rng(0)
    left = rng.integers(0, 256, (FOURS, 4)).astype(np.uint8)
    right = rng.integers(-128, 128, (FOURS, COLUMNS, 4)).astype(np.int8)
    given = [left.view(np.int32)[:, 0], right.view(np.int32)[..., 0], np.zeros(COLUMNS, np.int32)]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(one)) for one in given]
    kernel.jit()["main"](*tensors)
    expected = np.einsum("qf,qjf->j", left.astype(np.int32), right.astype(np.int32))
    np.testing.assert_array_equal(tensors[-1].numpy(), expected)
