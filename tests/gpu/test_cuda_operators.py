"""Kernels of the four kinds of operator, planned for the device at hand, run on it, and compared
with the numpy reference."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import tvm
from operators import ODD_OPERATORS, OPERATORS, planned_by, task_of

from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.tile import TilePlan, show_plan
from tvm_ext.tvm_api import Target
from tvm_ext.verify import check

pytestmark = pytest.mark.skipif(not tvm.cuda(0).exist, reason="no CUDA device on this machine")


@pytest.fixture(autouse=True)
def _exact_maths(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM compiles with --use_fast_math, which the bounds of the reference do not allow for; only
    nvcc can be told not to."""
    if shutil.which("nvcc"):
        monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
        monkeypatch.setenv("TVM_CUDA_NVCC_NO_FAST_MATH", "1")


def on_device(kernel: Any) -> Any:
    """The kernel for arguments on the host: they go to the device and come back."""

    def run(*host: Any) -> None:
        moved = [tvm.runtime.tensor(array.numpy(), tvm.cuda(0)) for array in host]
        kernel(*moved)
        for array, result in zip(host, moved, strict=True):
            array.copyfrom(result.numpy())

    return run


def wrong(operators: Any, name: str, plan: TilePlan) -> str:
    planned = planned_by(task_of(operators, name), plan)
    target = Target(resolve("cuda").target, host={"kind": "llvm"})
    built = build(planned.func, target)
    assert isinstance(built, Built), built
    return check(planned, on_device(built.main))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("operators", [OPERATORS, ODD_OPERATORS], ids=["even", "odd"])
def test_picked_kernels_are_right(operators: Any, name: str) -> None:
    graph = task_of(operators, name).graph
    assert graph is not None
    for candidate in pick(graph, resolve("cuda"), 3):
        error = wrong(operators, name, candidate.plan)
        assert not error, f"{show_plan(candidate.plan)}: {error}"


@pytest.mark.parametrize("name", OPERATORS)
def test_the_fallback_is_right(name: str) -> None:
    assert not wrong(ODD_OPERATORS, name, TilePlan("block_loose", 0, (), (), 1, 32))
