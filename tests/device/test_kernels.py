"""Every kernel we plan computes what its operator means: many operators on awkward shapes.

A kernel is checked against the reference evaluator; a whole operator, from Relax to result, against
TVM's own unscheduled code. The cases are in `kernel_cases`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pytest
from kernel_cases import CASES, LEFT_TO_TVM, Case, module, names
from this_host import skip_unless_it_runs

from tvm_ext import passes
from tvm_ext.errors import PlanError
from tvm_ext.hardware import get, resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, build, build_many
from tvm_ext.picker import pick
from tvm_ext.planner import Option, Planned, Task, make_task, plan_task
from tvm_ext.search import neighbours
from tvm_ext.tile import show_plan
from tvm_ext.tir import write
from tvm_ext.tvm_api import Target, relax, te, tvm
from tvm_ext.verify import check, has_reference

PICKED = 3
NEIGHBOURS = {"convolutions": 3, "products": 3, "pooling": 2, "rows": 3, "reductions": 2}
"""Neighbours tried of each best plan, by group; one elsewhere, where plans have few knobs."""

OTHER_MACHINES = ("cpu/x86-sse", "cpu/x86-avx2", "cpu/x86-avx512")

seen: set[tuple[str, str]] = set()
"""Signatures checked already, by machine: a transpose before every convolution is one kernel."""


@cache
def tasks(name: str, machine: str) -> tuple[Task, ...]:
    """The unscheduled kernels of a case."""
    hardware = resolve(machine)
    with Target(hardware.target):
        lowered = tvm.transform.Sequential(passes.graph_passes(hardware))(module(CASES[name]))
    return tuple(passes.tasks_of(lowered).values())


def fresh(name: str, machine: str, what: str) -> list[Task]:
    """The kernels of a case that no earlier test has checked."""
    new = [task for task in tasks(name, machine) if (what + machine, task.signature) not in seen]
    seen.update((what + machine, task.signature) for task in new)
    return new


def describe(planned: Planned) -> str:
    plan = planned.option.plan
    return f"{planned.task.name}: {show_plan(plan)} order {plan.order}" if plan else "no plan"


def assert_right(planned: list[Planned], hardware: HardwareModel) -> None:
    """Builds the kernels and checks each; reports all that are wrong, not just the first."""
    funcs = [entry.func for entry in planned]
    wrong = []
    kernels = build_many([(func, None) for func in funcs], Target(hardware.target))
    for entry, written in zip(planned, kernels, strict=True):
        built = written.kernel
        error = check(entry, built.main) if isinstance(built, Built) else str(built)
        if error:
            wrong.append(f"{describe(entry)}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", names())
def test_picked_kernels_are_right(name: str) -> None:
    """Every kernel has a plan of the picker that covers all its stages, and is right."""
    hardware = resolve("cpu")
    planned = [plan_task(task, hardware) for task in fresh(name, "cpu", "picked")]
    assert_right(planned, hardware)
    if name in LEFT_TO_TVM:
        return
    for entry in planned:
        assert entry.option.source == "picker", (entry.task.name, entry.reasons)
        assert not entry.reasons, "the best plan was not the one written"
        assert entry.task.graph is not None
        assert all(node.kind != "opaque" for node in entry.task.graph.nodes), entry.task.name
        assert has_reference(entry.task), "an unchecked kernel"


def other_plans(task: Task, hardware: HardwareModel, near: int) -> Iterator[Planned]:
    """The picker's next plans, its best where launches are free (so that small operators run in
    parallel too), then seeded neighbours of its best one that can be written."""
    if task.graph is None:
        return
    picked = pick(task.graph, hardware, PICKED)
    eager = pick(task.graph, msgspec.structs.replace(hardware, launch_us=0.0), 1)
    plans = dict.fromkeys(candidate.plan for candidate in (*picked, *eager))
    for plan in list(plans)[1:]:
        yield Planned(task, write(task.func, plan), Option("picker", plan), [])
    others = list(neighbours(task.graph, picked[0].plan)) if picked else []
    random.Random(zlib.crc32(task.signature.encode())).shuffle(others)
    yield from islice(written(task, others), near)


def written(task: Task, plans: list[Any]) -> Iterator[Planned]:
    for plan in plans:
        try:
            func = write(task.func, plan)
        except PlanError:
            continue
        yield Planned(task, func, Option("search", plan), [])


@pytest.mark.parametrize("name", [name for name in names() if name not in LEFT_TO_TVM])
def test_other_plans_are_right(name: str) -> None:
    """What the tuner may try: the picker's second and third plan, and steps away from the first."""
    hardware = resolve("cpu")
    near = NEIGHBOURS.get(CASES[name].group, 1)
    for task in fresh(name, "cpu", "others"):
        assert_right(list(other_plans(task, hardware, near)), hardware)


@pytest.mark.parametrize("machine", OTHER_MACHINES)
@pytest.mark.parametrize(
    "name",
    [
        "conv2d_crop_bias_relu",
        "conv2d_asymmetric",
        "conv2d_grouped",
        "conv2d_depthwise_prime",
        "conv1d",
        "matmul_7x33",
        "matmul_197x10",
        "matmul_batched",
        "matmul_bias_gelu",
        "max_pool",
        "softmax_axis1",
        "softmax_12x16",
        "log_softmax",
        "layer_norm_prime",
        "mean_12",
        "transpose_210",
        "gelu_4099",
    ],
)
def test_kernels_for_other_vector_widths_are_right(name: str, machine: str) -> None:
    hardware = get(machine)
    skip_unless_it_runs(machine)
    planned = [plan_task(task, hardware) for task in fresh(name, machine, "picked")]
    assert {entry.option.source for entry in planned} <= {"picker"}
    assert_right(planned, hardware)


def make_inputs(case: Case) -> list[np.ndarray[Any, Any]]:
    """Normal floats; integers and booleans are 0 or 1, so that they index any axis."""
    arrays = []
    for place, (shape, dtype) in enumerate(case.inputs):
        rng = np.random.default_rng(place)
        floating = "float" in dtype
        data = rng.standard_normal(shape) if floating else rng.integers(0, 2, shape)
        arrays.append(np.asarray(data).astype(dtype))
    return arrays


def run(executable: Any, inputs: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
    outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [output.numpy() for output in outputs]


WHOLE = [
    *names("convolutions", "products", "pooling", "rows"),
    *LEFT_TO_TVM,
    *("mean_all", "sum_02", "variance_2", "concat_unequal", "split", "take_axis1", "resize_linear"),
    *(
        "exp",
        "erf",
        "tanh",
        "sigmoid",
        "gelu",
        "gelu_tanh",
        "silu",
        "gate",
        "two_outputs",
        "quantise",
    ),
]
"""Cases that are lowered by definitions of our own, left to TVM, or made of several kernels."""


@pytest.mark.parametrize("name", WHOLE)
def test_an_operator_computes_what_tvm_says_it_means(name: str) -> None:
    """The one pipeline, from Relax to result: packing, layout, fusion and kernels together."""
    hardware = resolve("cpu")
    target = Target(hardware.target)
    case = CASES[name]
    inputs = make_inputs(case)
    with target:
        ours = tvm.compile(module(case), target, relax_pipeline="tvm_ext", tir_pipeline="tvm_ext")
    stock = tvm.compile(module(case), Target({"kind": "llvm", "opt-level": 0}))
    for actual, expected in zip(run(ours, inputs), run(stock, inputs), strict=True):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        if expected.dtype.kind == "f":
            bound = 1e-5 * max(1.0, float(np.abs(expected).max(initial=0.0)))
            np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)
        else:
            np.testing.assert_array_equal(actual, expected)


def double_rows(rows: int, terms: int) -> Any:
    """y = 2 x in the first `rows` of 8 rows, x after; s[i] the sum of `terms` of 40 elements."""
    x = te.placeholder((8, 40), name="x")
    k = te.reduce_axis((0, terms), name="k")
    y = te.compute(
        (8, 40), lambda i, j: te.if_then_else(i < rows, x[i, j] * 2.0, x[i, j]), name="y"
    )
    s = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="s")
    return te.create_prim_func([x, y, s])


@pytest.mark.parametrize(("rows", "terms"), [(8, 40), (7, 40), (8, 39)])
def test_the_check_sees_a_kernel_that_computes_something_else(rows: int, terms: int) -> None:
    hardware = resolve("cpu")
    planned = plan_task(make_task(double_rows(8, 40), "double"), hardware)
    built = build(double_rows(rows, terms), Target(hardware.target))
    assert isinstance(built, Built)
    assert bool(check(planned, built.main)) == ((rows, terms) != (8, 40))


def test_the_check_sees_an_element_that_is_never_written() -> None:
    hardware = resolve("cpu")
    planned = plan_task(make_task(double_rows(8, 40), "double"), hardware)
    built = build(planned.func, Target(hardware.target))
    assert isinstance(built, Built)

    def lazy(x: Any, y: Any, s: Any) -> None:
        whole = tvm.runtime.empty((8, 40), "float32")
        built.main(x, whole, s)
        partial = whole.numpy()
        partial[7, 39] = y.numpy()[7, 39]
        y.copyfrom(partial)

    assert check(planned, built.main) == ""
    assert "nan" in check(planned, lazy)
