"""Kernels of the four kinds of operator, planned for the device at hand, run on it, and compared
with the numpy reference."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from operators import ODD_OPERATORS, OPERATORS, planned_by, task_of

from tvm_ext.cuda_libraries import use_nvcc
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.runtime.kernel import from_host
from tvm_ext.tile import TilePlan, show_plan
from tvm_ext.tvm_api import target_of
from tvm_ext.verify import check

pytestmark = pytest.mark.skipif(not tvm.cuda(0).exist, reason="no CUDA device on this machine")


def wrong(operators: Any, name: str, plan: TilePlan) -> str:
    planned = planned_by(task_of(operators, name), plan)
    use_nvcc()
    built = build(planned.func, target_of(resolve("cuda").target))
    assert isinstance(built, Built), built
    return check(planned, from_host(built.main, "cuda"))


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
