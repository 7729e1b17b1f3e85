"""Tasks handed out: every one is done once, whatever the number of tasks, cores and threads, and
none before all those of the phase before it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_ext.tvm_api import IRModule, PrimFunc, Target, structural_walk, tirx, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE
from tvm_ext.tvm_steal import TAKES, mark_steal, steal_tasks

CORES = 3
TARGET = Target({"kind": "llvm", "num-cores": CORES})


def counting(tasks: int) -> PrimFunc:
    """Each task adds 1 to its own element: what is done twice shows."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((tasks,), "float32"), b: T.Buffer((tasks,), "float32")):
        for t in T.parallel(tasks):
            with T.sblock("count"):
                v = T.axis.spatial(tasks, t)
                b[v] = b[v] + a[v]

    return main.with_attr("tirx.is_scheduled", 1)


def turning(rows: int, columns: int) -> PrimFunc:
    """Each task of a phase reads what all tasks of the one before it write."""

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((rows, columns), "float32"),
        b: T.Buffer((columns, rows), "float32"),
        c: T.Buffer((rows, columns), "float32"),
        d: T.Buffer((columns, rows), "float32"),
    ):
        for t in T.parallel(columns):
            for i in range(rows):
                with T.sblock("first"):
                    v, w = T.axis.remap("SS", [t, i])
                    b[v, w] = a[w, v] + T.float32(1)
        for t in T.parallel(rows):
            for i in range(columns):
                with T.sblock("second"):
                    v, w = T.axis.remap("SS", [t, i])
                    c[v, w] = b[w, v] * T.float32(2)
        for t in T.parallel(columns):
            for i in range(rows):
                with T.sblock("third"):
                    v, w = T.axis.remap("SS", [t, i])
                    d[v, w] = c[w, v] - T.float32(3)

    return main.with_attr("tirx.is_scheduled", 1)


def compiled(func: PrimFunc) -> Any:
    module = IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(module, target=TARGET, tir_pipeline=TIR_PIPELINE)


def steals(func: PrimFunc) -> bool:
    """Whether the pass hands out what the function does in parallel."""
    bound = func.with_attr("target", TARGET)
    found: list[Any] = []
    structural_walk(steal_tasks(IRModule({"main": bound}))["main"].body, (tirx.While, found.append))
    return bool(found)


@pytest.mark.parametrize("tasks", [1, 5, 6, 7, 100, 2 * CORES * TAKES + 1])
def test_every_task_is_done_once(tasks: int) -> None:
    func = mark_steal(counting(tasks))
    assert steals(func) == (tasks >= 2 * CORES)
    kernel = compiled(func).jit()["main"]
    a = np.random.default_rng(0).standard_normal(tasks).astype("float32")
    b = tvm.runtime.tensor(np.zeros(tasks, "float32"))
    for _ in range(50):
        kernel(tvm.runtime.tensor(a), b)
    np.testing.assert_allclose(b.numpy(), 50 * a, rtol=1e-4)


def launches(func: PrimFunc) -> int:
    """How many parallel loops are left of a function's."""
    found: list[Any] = []
    body = steal_tasks(IRModule({"main": func.with_attr("target", TARGET)}))["main"].body
    structural_walk(body, (tirx.For, found.append))
    return sum(loop.kind == tirx.ForKind.PARALLEL for loop in found)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 50), (50, 1), (7, 13), (200, 97)])
def test_phases_of_one_launch_wait_for_each_other(shape: tuple[int, int]) -> None:
    func = mark_steal(turning(*shape))
    assert launches(func) == 1
    kernel = compiled(func).jit()["main"]
    a = np.random.default_rng(0).standard_normal(shape).astype("float32")
    b, c, d = (np.zeros(s, "float32") for s in (shape[::-1], shape, shape[::-1]))
    for _ in range(200):
        out = [tvm.runtime.tensor(one) for one in (b, c, d)]
        kernel(tvm.runtime.tensor(a), *out)
        np.testing.assert_allclose(out[2].numpy(), (a.T + 1) * 2 - 3, rtol=1e-5)


def test_loops_with_others_between_them_are_launched_apart() -> None:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        for t in T.parallel(64):
            b[t] = a[t]
        b[0] = T.float32(1)
        for t in T.parallel(64):
            b[t] = b[t] * T.float32(2)

    assert launches(mark_steal(main)) == 2


def test_several_kernels_of_one_module() -> None:
    """Each brings the same few lines of LLVM code along."""
    kernels = {f"k{n}": mark_steal(counting(n)).with_attr("global_symbol", f"k{n}") for n in (8, 9)}
    module = tvm.compile(IRModule(kernels), target=TARGET, tir_pipeline=TIR_PIPELINE).jit()
    for count in (8, 9):
        b = tvm.runtime.tensor(np.zeros(count, "float32"))
        module[f"k{count}"](tvm.runtime.tensor(np.ones(count, "float32")), b)
        assert (b.numpy() == 1).all()


def test_only_marked_functions_for_several_cores_are_changed() -> None:
    assert not steals(counting(100))
    single = mark_steal(counting(100)).with_attr("target", Target({"kind": "llvm"}))
    assert steal_tasks(IRModule({"main": single}))["main"].same_as(single)


def test_tasks_that_allocate_and_count_in_64_bits() -> None:
    """TVM frees a workspace at the end of the loop around it."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((T.int64(64), T.int64(3000)), "float32"), b: T.Buffer((64,), "float32")):
        for t in T.parallel(T.int64(64)):
            with T.sblock("row"):
                v = T.axis.spatial(T.int64(64), t)
                row = T.sblock_alloc_buffer((3000,))
                for i in range(3000):
                    row[i] = a[v, i] * T.float32(2)
                b[v] = T.float32(0)
                for i in range(3000):
                    b[v] = b[v] + row[2999 - i]

    func = mark_steal(main.with_attr("tirx.is_scheduled", 1))
    assert steals(func)
    a = np.random.default_rng(0).standard_normal((64, 3000)).astype("float32")
    b = tvm.runtime.empty((64,), "float32")
    compiled(func).jit()["main"](tvm.runtime.tensor(a), b)
    np.testing.assert_allclose(b.numpy(), 2 * a.sum(1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_other_numbers_of_threads_than_cores_do_all_the_work(threads: int) -> None:
    """One thread comes to its end and goes on with the tasks of cores that do not exist."""
    script = (
        "import numpy as np; from test_steal import *\n"
        "kernel = compiled(mark_steal(counting(100))).jit()['main']\n"
        "b = tvm.runtime.tensor(np.zeros(100, 'float32'))\n"
        "kernel(tvm.runtime.tensor(np.ones(100, 'float32')), b)\n"
        "assert (b.numpy() == 1).all()\n"
        "kernel = compiled(mark_steal(turning(30, 40))).jit()['main']\n"
        "shapes = (30, 40), (40, 30), (30, 40), (40, 30)\n"
        "a, *_, d = made = [tvm.runtime.tensor(np.ones(s, 'float32')) for s in shapes]\n"
        "kernel(*made)\n"
        "assert (d.numpy() == 1).all()\n"
        "kernel = compiled(mark_steal(stepping(40, 9))).jit()['main']\n"
        "x, y, sums, state = (np.zeros(s, 'float32') for s in (9, (40, 9), 40, 9))\n"
        "made = [tvm.runtime.tensor(one) for one in (x + 1, y, sums, state)]\n"
        "kernel(*made)\n"
        "assert (made[-1].numpy() == 20).all()\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TVM_NUM_THREADS": str(threads), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def stepping(steps: int, width: int) -> PrimFunc:
    """Each step reads all of what the one before it wrote, and one core alone ends it."""

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((width,), "float32"),
        y: T.Buffer((steps, width), "float32"),
        sums: T.Buffer((steps,), "float32"),
        state: T.Buffer((width,), "float32"),
    ):
        for s in range(steps):
            for t in T.parallel(width):
                with T.sblock("mix"):
                    v, w = T.axis.remap("SS", [s, t])
                    y[v, w] = state[w] + state[width - 1 - w] + x[w]
            for t in T.parallel(width):
                with T.sblock("keep"):
                    v, w = T.axis.remap("SS", [s, t])
                    state[w] = y[v, width - 1 - w] * T.float32(0.5)
            for i in range(width):
                with T.sblock("sum"):
                    v, w = T.axis.remap("SS", [s, i])
                    sums[v] = sums[v] + state[w]

    return main.with_attr("tirx.is_scheduled", 1)


@pytest.mark.parametrize("steps", [1, 2, 300])
@pytest.mark.parametrize("width", [1, 2, 7, 200])
def test_a_loop_around_phases_is_a_part_of_the_launch(steps: int, width: int) -> None:
    func = mark_steal(stepping(steps, width))
    assert launches(func) == 1
    kernel = compiled(func).jit()["main"]
    x = np.random.default_rng(0).standard_normal(width).astype("float32")
    state = np.zeros(width, "float32")
    states = []
    for _ in range(steps):
        state = (state + state[::-1] + x)[::-1] * np.float32(0.5)
        states.append(state)
    sums = [one.astype("float64").sum() for one in states]
    for _ in range(20):
        out = [tvm.runtime.tensor(np.zeros(s, "float32")) for s in ((steps, width), steps, width)]
        kernel(tvm.runtime.tensor(x), *out)
        np.testing.assert_allclose(out[2].numpy(), state, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(out[1].numpy(), sums, rtol=1e-4, atol=1e-2)
