"""Plans for CPUs that are not this one: within their registers, compiled for them, right here.

Kernels for narrower x86 run on any wider one. Of AArch64 the very same schedule is built twice:
as an AArch64 object, and for this host to see what it computes.
"""

from __future__ import annotations

import re
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
from operators import ODD_OPERATORS, OPERATORS, planned_by, task_of

from tvm_ext.hardware import get, resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.planner import Planned, Task
from tvm_ext.tile import show_plan
from tvm_ext.tvm_api import IRModule, Target, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE
from tvm_ext.verify import check

MACHINES = {
    "cpu/x86-sse": (4, 16),
    "cpu/x86-avx2": (8, 16),
    "cpu/x86-avx512": (16, 32),
    "arm/neoverse-n1": (4, 32),
}
"""Lanes of float32 and vector registers."""
AARCH64 = 183
RULES = {"row_sum": "rows", "softmax": "rows", "chain": "flat"}

everywhere = pytest.mark.parametrize("machine", MACHINES)
every_operator = pytest.mark.parametrize("name", OPERATORS)
both_sizes = pytest.mark.parametrize("operators", [OPERATORS, ODD_OPERATORS], ids=["even", "odd"])


def best(task: Task, hw: HardwareModel) -> Planned:
    assert task.graph is not None
    return planned_by(task, pick(task.graph, hw)[0].plan)


def compiled(planned: Planned, hw: HardwareModel) -> Any:
    """The kernel as LLVM makes it for the machine, whether or not it runs here."""
    module = IRModule({"main": planned.func.with_attr("global_symbol", "main")})
    return tvm.compile(module, target=Target(hw.target), tir_pipeline=TIR_PIPELINE).mod


@everywhere
@every_operator
@both_sizes
def test_plans_fit_the_register_file(operators: Any, name: str, machine: str) -> None:
    hw, (lanes, registers) = get(machine), MACHINES[machine]
    assert (hw.lanes(4), hw.vector_registers) == (lanes, registers)
    task = task_of(operators, name)
    assert task.graph is not None
    found = pick(task.graph, hw, 5)
    assert found
    for candidate in found:
        plan, node = candidate.plan, task.graph.nodes[candidate.plan.anchor]
        assert plan.rule == RULES.get(name, "tile")
        assert plan.lanes <= lanes
        if plan.rule == "tile":
            space = prod(plan.at("register").extents[axis] for axis in node.space)
            assert -(-space // plan.lanes) + 2 <= registers, "accumulators, and what feeds them"


@everywhere
@every_operator
@both_sizes
def test_the_kernels_compute_what_they_should(operators: Any, name: str, machine: str) -> None:
    """AArch64 plans are built for this host; others for the machine they were made for."""
    hw, here = get(machine), resolve("cpu")
    runs = hw.kind == here.kind and set(hw.isa) <= set(here.isa)
    if hw.kind == here.kind and not runs:
        pytest.skip(f"this host cannot run code for {machine}")
    planned = best(task_of(operators, name), hw)
    built = build(planned.func, Target((hw if runs else here).target))
    assert isinstance(built, Built), built
    error = check(planned, built.main)
    assert not error, f"{show_plan(planned.option.plan)}: {error}" if planned.option.plan else error


@every_operator
@both_sizes
def test_aarch64_objects(operators: Any, name: str, tmp_path: Path) -> None:
    """LLVM makes an ELF object for AArch64 of every kernel."""
    hw = get("arm/neoverse-n1")
    path = tmp_path / "kernel.o"
    compiled(best(task_of(operators, name), hw), hw).write_to_file(str(path), "o")
    header = path.read_bytes()[:20]
    assert header.startswith(b"\x7fELF")
    assert struct.unpack_from("<H", header, 18) == (AARCH64,)


NEON = (r"fmla\s+v\d+\.4s", r"(?:str|ldr)\s+q\d+, \[sp")
AVX2 = (r"vfmadd\d+ps\s.*%ymm", r"vmov[au]ps\s.*\(%rsp\)")


@pytest.mark.parametrize(
    ("name", "machine", "multiply_add", "spill"),
    [
        ("product", "arm/neoverse-n1", *NEON),
        ("product", "cpu/x86-avx2", *AVX2),
        ("convolution", "cpu/x86-avx2", *AVX2),
    ],
)
def test_the_main_loop_stays_in_registers(
    name: str, machine: str, multiply_add: str, spill: str
) -> None:
    """The loop with most multiply-adds works on whole vectors and keeps none on the stack."""
    hw = get(machine)
    assembly = compiled(best(task_of(OPERATORS, name), hw), hw).inspect_source("asm")
    main = max(assembly.split("\n.LBB"), key=lambda block: len(re.findall(multiply_add, block)))
    label = main.partition(":")[0]
    loop, *_ = main.split(f".LBB{label}")  # where it jumps back; behind it results are added to
    assert len(re.findall(multiply_add, loop)) >= 32
    assert not re.findall(spill, loop)
