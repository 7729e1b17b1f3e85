"""Tasks handed out: every one is done once, whatever the number of tasks, cores and threads."""

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


def test_fewer_threads_than_cores_do_all_the_work() -> None:
    """The one thread comes to its end and goes on with the tasks of cores that do not exist."""
    script = (
        "import numpy as np; from test_steal import *\n"
        "kernel = compiled(mark_steal(counting(100))).jit()['main']\n"
        "b = tvm.runtime.tensor(np.zeros(100, 'float32'))\n"
        "kernel(tvm.runtime.tensor(np.ones(100, 'float32')), b)\n"
        "assert (b.numpy() == 1).all()\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TVM_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
