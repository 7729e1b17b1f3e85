"""What GPU kernels compute, on the CPU: threads become loops, shared memory becomes memory.

This checks indices, conditions, copies and reductions of the very schedules that become CUDA code.
It does not see a missing barrier, nor how fast anything is.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import tvm_ffi
from funcs import FUNCS
from kernel_cases import CASES, LEFT_TO_TVM, module, names
from operators import ODD_OPERATORS, OPERATORS, planned_by, task_of

from tvm_ext import passes
from tvm_ext.hardware import get, resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.planner import Planned, Task, make_task
from tvm_ext.search import sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.tile import TilePlan, show_plan
from tvm_ext.tile.block import MAX_THREADS
from tvm_ext.tvm_api import PrimFunc, Target, tirx, tvm
from tvm_ext.verify import check, has_reference

MACHINES = ("cuda/sm_80", "cuda/sm_90")
everywhere = pytest.mark.parametrize("machine", MACHINES)
SERIAL = {tirx.ForKind.THREAD_BINDING, tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED}


def on_cpu(func: PrimFunc, shorten: str = "") -> PrimFunc:
    """The function with every thread, lane and unrolled iteration in turn.

    With `shorten`, the loops bound to that thread axis run half their iterations.
    """

    def serial(loop: Any) -> Any:
        kind = tirx.ForKind.SERIAL if loop.kind in SERIAL else loop.kind
        bound = loop.thread_binding is not None and loop.thread_binding.thread_tag == shorten
        extent = loop.extent // 2 if bound else loop.extent
        return tirx.For(loop.loop_var, loop.min, extent, kind, loop.body, None, {}, loop.step)

    body = tvm_ffi.structural_map(func.body, [(tirx.For, serial)], order="post")
    return func.with_body(body).without_attr("tirx.is_scheduled")


def wrong(planned: Planned, shorten: str = "") -> str:
    """What is wrong with a GPU kernel run on this CPU; an empty text if nothing is."""
    built = build(on_cpu(planned.func, shorten), Target(resolve("cpu").target))
    assert isinstance(built, Built), built
    return check(planned, built.main)


def plans(task: Task, machine: str, count: int) -> list[TilePlan]:
    """The best plans for the machine, and for a chip of its kind with one multiprocessor: there
    blocks are as large as they get."""
    assert task.graph is not None
    hw = get(machine)
    single = msgspec.structs.replace(hw, cores=1)
    found = [c.plan for model in (hw, single) for c in pick(task.graph, model, count)]
    return list(dict.fromkeys(found))


@everywhere
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("operators", [OPERATORS, ODD_OPERATORS], ids=["even", "odd"])
def test_the_operators_are_right(operators: Any, name: str, machine: str) -> None:
    task = task_of(operators, name)
    assert has_reference(task)
    for plan in plans(task, machine, 1):
        error = wrong(planned_by(task, plan))
        assert not error, f"{show_plan(plan)}: {error}"


@pytest.mark.parametrize("name", [name for name in FUNCS if name != "argmax"])
def test_other_kernels_are_right(name: str) -> None:
    """Grouped, depthwise, strided, dilated, cropped; products of one row or column; scalars."""
    task = make_task(FUNCS[name](), name)
    for plan in plans(task, "cuda/sm_80", 3):
        error = wrong(planned_by(task, plan))
        assert not error, f"{show_plan(plan)}: {error}"


seen: set[str] = set()
"""Signatures checked already: a transpose before every convolution is one kernel."""


@pytest.mark.parametrize("name", names()[::3])
def test_kernels_of_whole_operators_are_right(name: str) -> None:
    """Operators as they come out of the graph passes, on awkward shapes; every third, for time."""
    hw = get("cuda/sm_80")
    with Target(resolve("cpu").target):
        lowered = tvm.transform.Sequential(passes.graph_passes(hw))(module(CASES[name]))
    for task in passes.tasks_of(lowered).values():
        if task.signature in seen or task.graph is None:
            continue
        seen.add(task.signature)
        found = pick(task.graph, hw)
        assert found or name in LEFT_TO_TVM, "no plan"
        for candidate in found:
            error = wrong(planned_by(task, candidate.plan))
            assert not error, f"{task.name} {show_plan(candidate.plan)}: {error}"


@pytest.mark.parametrize("name", ["product", "convolution", "softmax", "chain"])
def test_the_fallback_is_right(name: str) -> None:
    """Every stage as a kernel of its own, one thread per element."""
    task = task_of(ODD_OPERATORS, name)
    assert not wrong(planned_by(task, TilePlan("block_loose", 0, (), (), 1, 32)))


@pytest.mark.parametrize("axis", ["blockIdx.x", "threadIdx.x"])
@pytest.mark.parametrize("name", ["product", "convolution", "row_sum", "softmax", "chain"])
def test_missing_threads_are_seen(name: str, axis: str) -> None:
    """The check is not blind to half the blocks, or half the threads of a block, missing."""
    task = task_of(OPERATORS, name)
    assert task.graph is not None
    plan = pick(task.graph, get("cuda/sm_80"))[0].plan
    assert wrong(planned_by(task, plan), shorten=axis)


@pytest.mark.parametrize("name", ["product", "convolution"])
@pytest.mark.parametrize("operators", [OPERATORS, ODD_OPERATORS], ids=["even", "odd"])
def test_plans_of_the_search_are_right(operators: Any, name: str) -> None:
    """Drawn at random, of sizes that the picker would not choose."""
    task = task_of(operators, name)
    assert task.graph is not None
    sketch, *_ = sketches(task.graph, get("cuda/sm_80").cores, kind="cuda")
    annotator = Annotator(task.graph, MAX_THREADS, random.Random(0))
    for plan in annotator.plans(sketch, 8):
        error = wrong(planned_by(task, plan))
        assert not error, f"{show_plan(plan)}: {error}"
