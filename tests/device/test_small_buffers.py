"""Small buffers of a task lie on the stack, which begins at a cache line; those of a GPU, and large
ones, do not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tvm.script import tirx as T

from tvm_ext.hardware import get, resolve
from tvm_ext.tvm_api import Target, structural_walk, tirx, tvm
from tvm_ext.tvm_lowering import KERNEL_PIPELINE, place_buffers

ALLOCATES = "TVMBackendAllocWorkspace"


def row_by_row(columns: int) -> Any:
    """Rows turned round, through a buffer of each task."""

    @T.prim_func(s_tir=True)
    def main0(x: T.Buffer((4, columns), "float32"), y: T.Buffer((4, columns), "float32")):
        for i in T.parallel(4):
            with T.sblock("row"):
                row = T.axis.spatial(4, i)
                t = T.sblock_alloc_buffer((columns,))
                for j in range(columns):
                    with T.sblock("copy"):
                        column = T.axis.spatial(columns, j)
                        t[column] = x[row, column] + T.float32(1)
                for j in range(columns):
                    with T.sblock("turn"):
                        column = T.axis.spatial(columns, j)
                        y[row, column] = t[columns - 1 - column]

    return main0


def vector_by_vector(vectors: int) -> Any:
    """The same in vectors of 16, which TVM makes the buffer's elements."""

    @T.prim_func(s_tir=True)
    def main0(x: T.Buffer((4, vectors, 16), "float32"), y: T.Buffer((4, vectors, 16), "float32")):
        for i in T.parallel(4):
            with T.sblock("row"):
                row = T.axis.spatial(4, i)
                t = T.sblock_alloc_buffer((vectors, 16))
                for j in range(vectors):
                    for v in T.vectorized(16):
                        with T.sblock("copy"):
                            vj, vv = T.axis.remap("SS", [j, v])
                            t[vj, vv] = x[row, vj, vv] + T.float32(1)
                for j in range(vectors):
                    for v in T.vectorized(16):
                        with T.sblock("turn"):
                            vj, vv = T.axis.remap("SS", [j, v])
                            y[row, vj, vv] = t[vectors - 1 - vj, vv]

    return main0


def llvm_of(func: Any) -> str:
    target = Target(resolve("cpu").target)
    built = tvm.compile(tvm.IRModule({"main0": func}), target, tir_pipeline=KERNEL_PIPELINE)
    modules = [built.mod, *built.mod.imports]
    return next(m.inspect_source("ll") for m in modules if str(m.kind) == "llvm")


@pytest.mark.parametrize(("columns", "heap"), [(100, False), (4096, False), (4097, True)])
def test_up_to_16_kib(columns: int, heap: bool) -> None:
    assert (ALLOCATES in llvm_of(row_by_row(columns))) == heap


@pytest.mark.parametrize(("vectors", "heap"), [(256, False), (257, True)])
def test_up_to_16_kib_of_vectors(vectors: int, heap: bool) -> None:
    """Of a vector one element's bytes were counted: 250 KiB lay on the stack."""
    assert (ALLOCATES in llvm_of(vector_by_vector(vectors))) == heap


@pytest.mark.parametrize(("device", "marked"), [(1, True), (2, False)], ids=["cpu", "cuda"])
def test_memory_between_kernels_of_a_gpu_is_its_own(device: int, marked: bool) -> None:
    buffer = tirx.decl_buffer((600,), "float32", name="between")
    used = tirx.SeqStmt(
        [tirx.AllocBuffer(buffer), tirx.Evaluate(tirx.BufferLoad(buffer, [tirx.const(0)]))]
    )
    body = tirx.AttrStmt("default", "device_type", tirx.const(device), used)
    func = place_buffers(tvm.IRModule({"main": tirx.PrimFunc([], body)}))["main"]
    found: list[Any] = []
    structural_walk(func.body, [(tirx.AllocBuffer, found.append)])
    assert ["disable_lower_builtin" in one.annotations for one in found] == [marked]


def more_sums_than_registers(lanes: int) -> Any:
    """Sums of 40 vectors side by side, of each of 4 rows."""

    @T.prim_func(s_tir=True)
    def main0(
        x: T.Buffer((4, 64), "float32"),
        w: T.Buffer((64, 40, lanes), "float32"),
        y: T.Buffer((4, 40, lanes), "float32"),
    ):
        for row in T.parallel(4):
            with T.sblock("row"):
                i = T.axis.spatial(4, row)
                t = T.sblock_alloc_buffer((40, lanes))
                for j in T.unroll(40):
                    for v in T.vectorized(lanes):
                        with T.sblock("zero"):
                            vj, vv = T.axis.remap("SS", [j, v])
                            t[vj, vv] = T.float32(0)
                for k in range(64):
                    for j in T.unroll(40):
                        for v in T.vectorized(lanes):
                            with T.sblock("sum"):
                                vk, vj, vv = T.axis.remap("RSS", [k, j, v])
                                t[vj, vv] = t[vj, vv] + x[i, vk] * w[vk, vj, vv]
                for j in T.unroll(40):
                    for v in T.vectorized(lanes):
                        with T.sblock("copy"):
                            vj, vv = T.axis.remap("SS", [j, v])
                            y[i, vj, vv] = t[vj, vv]

    return main0


@pytest.mark.parametrize("machine", ["cpu/x86-avx2", "cpu/x86-avx512"])
def test_what_registers_cannot_hold_begins_at_a_line(machine: str) -> None:
    """LLVM moved them as if they could begin anywhere, and they did: each on two lines of the cache
    in three runs of four (GELU behind 784 rows of 96 by 384: 600 us, and 680 or 910)."""
    hardware = get(machine)
    target = Target(hardware.target)
    func = tvm.IRModule({"main0": more_sums_than_registers(hardware.lanes(4))})
    built = tvm.compile(func, target, tir_pipeline=KERNEL_PIPELINE)
    assembly = built.mod.inspect_source("asm")
    assert re.search(r"vmovaps\s.*\(%rsp\)", assembly)
    assert not re.search(r"vmovups\s.*\(%rsp\)", assembly)
