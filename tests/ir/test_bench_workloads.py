"""The operator benchmark's inputs: workloads read by our planner, random plans that are legal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from random_plans import random_plans
from workloads import UnavailableError, Workload, workloads

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tir import write
from tvm_ext.tvm_api import is_scheduled

EVERY = list(workloads([], [1]))
BUILT = [entry for entry in EVERY if entry.operator != "C2D_WIN_NHWC"]


def test_a_name_chooses_an_operator_or_one_of_its_shapes() -> None:
    assert [entry.name for entry in workloads(["C2D/2", "NRM"], [16])] == [
        "C2D/2 b16",
        *(f"NRM/{place} b16" for place in range(4)),
    ]
    with pytest.raises(KeyError, match="C9D"):
        list(workloads(["C9D"], [1]))


@pytest.mark.parametrize("workload", BUILT, ids=lambda entry: entry.name)
def test_every_operator_is_read_and_grows_with_its_batch(workload: Workload) -> None:
    one = workload.task().graph
    four = Workload(workload.operator, workload.place, 4).task().graph
    assert one is not None
    assert four is not None
    assert one.flops > 0
    assert four.flops == pytest.approx(4 * one.flops, rel=0.01)


def test_an_operator_that_tvm_lists_but_cannot_build_says_so() -> None:
    with pytest.raises(UnavailableError, match="TVM cannot make it"):
        Workload("C2D_WIN_NHWC", 0, 1).task()


@pytest.mark.parametrize(("operator", "place"), [("GMM", 0), ("C1D", 0), ("SFM", 0), ("CBR", 3)])
def test_random_plans_are_distinct_legal_and_the_same_for_the_same_seed(
    operator: str, place: int, hardware: HardwareModel
) -> None:
    task = Workload(operator, place, 1).task()
    assert task.graph is not None

    def draw(seed: int) -> list[object]:
        lanes = hardware.lanes(4)
        return [p for p, _ in random_plans(task.func, task.graph, lanes, 2, 5, seed)]

    plans = draw(0)
    assert 0 < len(plans) <= 5
    assert len(set(plans)) == len(plans)
    assert plans == draw(0)
    assert all(is_scheduled(write(task.func, plan)) for plan in plans)


def test_random_plans_of_a_product_vary_in_everything_a_plan_decides(
    hardware: HardwareModel,
) -> None:
    task = Workload("GMM", 0, 1).task()
    assert task.graph is not None
    drawn = random_plans(task.func, task.graph, hardware.lanes(4), 2, 20, 0)
    tiled = [plan for plan, _ in drawn if plan.rule == "tile"]
    for decision in ("order", "lanes", "unroll", "tiles"):
        assert len({getattr(plan, decision) for plan in tiled}) > 1, decision
