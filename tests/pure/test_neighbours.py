"""Neighbours of a plan: one step away, each once, always the same."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.search import neighbours
from tvm_ext.tile import TileGraph, TilePlan

MACHINES = ("cpu/x86-avx512", "cpu/x86-sse")
CASES = [(name, machine) for name in GRAPHS for machine in MACHINES]
every_case = pytest.mark.parametrize(("name", "machine"), CASES)

FIELDS = (
    *("rule", "anchor", "order", "parallel", "lanes", "unroll", "attach", "prefetch", "staged"),
    "ahead",
)
FOLLOWS = {"tile": {"unroll", "parallel"}, "attention": {"unroll"}}
"""Fields that follow from the tiles under a rule, so that they move with them."""


def planned(name: str, machine: str) -> tuple[TileGraph, TilePlan, list[TilePlan]]:
    graph = GRAPHS[name]
    plan = pick(graph, get(machine))[0].plan
    return graph, plan, list(neighbours(graph, plan))


def knobs(plan: TilePlan) -> dict[str, Any]:
    """Every value of a plan that a step may change, by name; a tile has one for each axis."""
    values: dict[str, Any] = {field: getattr(plan, field) for field in FIELDS}
    for entry in plan.tiles:
        for axis, extent in enumerate(entry.tile.extents):
            values[f"{entry.level}{axis}"] = extent
    return values


@every_case
def test_neighbours_are_others_and_each_is_given_once(name: str, machine: str) -> None:
    _, plan, near = planned(name, machine)
    assert plan not in near
    assert len(set(near)) == len(near)


@every_case
def test_neighbours_come_in_the_same_order(name: str, machine: str) -> None:
    graph, plan, near = planned(name, machine)
    assert list(neighbours(graph, plan)) == near


@every_case
def test_a_neighbour_differs_in_one_knob(name: str, machine: str) -> None:
    _, plan, near = planned(name, machine)
    own = knobs(plan)
    for other in near:
        changed = {knob for knob, value in knobs(other).items() if value != own[knob]}
        chosen = changed - FOLLOWS.get(plan.rule, set())
        assert len(chosen) == 1, changed
        switches = {"lanes", "order", "parallel", "prefetch", "attach", "staged", "ahead"}
        assert chosen & switches or chosen.pop()[:-1] in ("core", "l2", "register", "second")


@every_case
def test_extents_stay_inside_their_axes(name: str, machine: str) -> None:
    graph, plan, near = planned(name, machine)
    for other in near:
        for entry in other.tiles:
            assert entry.tile.fits(graph.nodes[plan.anchor].axes)
        assert sorted(other.order) == sorted(plan.order)
        assert 1 <= other.lanes <= plan.lanes


@pytest.mark.parametrize("name", ["elementwise_large", "gelu_large"])
def test_a_flat_plan_has_neighbours_with_larger_and_smaller_chunks(name: str) -> None:
    """Plans with as many points a chunk are the same kernel, however the extents are written."""
    _, plan, near = planned(name, "cpu/x86-avx512")
    assert plan.rule == "flat"
    own = plan.at("core").points
    chunks = [other.at("core").points for other in near if other.at("core") != plan.at("core")]
    assert len(set(chunks)) == len(chunks)
    assert min(chunks) < own < max(chunks)


@pytest.mark.parametrize("name", ["conv_large", "matmul_packed", "pool_large", "depthwise_large"])
def test_a_large_operator_has_many_neighbours(name: str) -> None:
    _, plan, near = planned(name, "cpu/x86-avx512")
    assert len(near) >= 10
    own = knobs(plan)
    moved = {knob for other in near for knob, value in knobs(other).items() if value != own[knob]}
    assert "order" in moved
    assert {knob[:-1] for knob in moved} >= {"core", "register"}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_unroll_factor_and_the_parallel_loops_follow_the_tiles(name: str) -> None:
    graph, plan, near = planned(name, "cpu/x86-avx512")
    if plan.rule != "tile":
        return
    node = graph.nodes[plan.anchor]
    for other in near:
        register, core = other.at("register"), other.at("core")
        unroll = 1
        for axis in node.reduce:
            unroll *= register.extents[axis]
        assert other.unroll == unroll
        cut = {a for a in node.space if core.extents[a] < node.axes[a].extent}
        grid = [axis for axis in other.order if axis in node.space]
        assert cut <= set(grid[: other.parallel])
