"""Sketches, annotation, mutation, crossover: plans that are legal, distinct and reproducible."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.search import Sketch, sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.search.evolve import evolve
from tvm_ext.search.mutate import crossed, mutated, settled
from tvm_ext.search.sketch import State
from tvm_ext.tile import Attach, TileGraph
from tvm_ext.tile.cut import cut
from tvm_ext.tile.legal import LEVELS, check_plan, is_legal
from tvm_ext.tir.write import RULES

HARDWARE = get("cpu/x86-avx512")
LANES = HARDWARE.lanes(4)
PIECES = {
    f"{name}/{place}": piece.graph
    for name, graph in GRAPHS.items()
    for place, piece in enumerate(cut(graph))
}
every_piece = pytest.mark.parametrize("name", PIECES)


def test_every_rule_that_can_be_written_is_checked() -> None:
    assert set(RULES) == set(LEVELS)


@every_piece
def test_a_group_has_a_few_sketches(name: str) -> None:
    found = sketches(PIECES[name], HARDWARE.cores)
    assert 1 <= len(found) < 10
    assert len(set(found)) == len(found)
    for sketch in found:
        assert sketch.derivation
        assert 0 <= sketch.anchor < len(PIECES[name].nodes)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("conv_large", {"tile"}),
        ("matmul_packed", {"tile"}),
        ("softmax_large", {"rows", "tile"}),
        ("sum_to_scalar", {"rows", "split"}),
        ("elementwise_large", {"flat"}),
        ("transpose_large", {"tile"}),
    ],
)
def test_sketches_follow_the_conditions_of_the_rules(name: str, rules: set[str]) -> None:
    found = sketches(GRAPHS[name], HARDWARE.cores)
    assert {sketch.rule for sketch in found} == rules


def test_a_consumer_element_by_element_is_fused_into_the_tile() -> None:
    (fused,) = sketches(GRAPHS["conv_large"], HARDWARE.cores)
    assert fused.attach == (Attach(1, "register"),)
    assert fused.derivation == ("tile_and_fuse",)
    (alone,) = sketches(GRAPHS["conv_dilated"], HARDWARE.cores)
    assert (alone.attach, alone.derivation) == ((), ("tile",))


def test_rules_of_the_users_own_come_first() -> None:
    def mine(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
        if state.sketch is None and state.stage == 0:
            yield State(-1, Sketch("rows", 0, derivation=("mine",)))

    found = sketches(GRAPHS["matmul_packed"], HARDWARE.cores, [mine])
    assert [sketch.derivation for sketch in found] == [("mine",), ("tile",)]


@every_piece
def test_annotation_fills_sketches_with_legal_distinct_plans(name: str) -> None:
    graph = PIECES[name]
    for sketch in sketches(graph, HARDWARE.cores):
        plans = list(Annotator(graph, LANES, random.Random(0)).plans(sketch, 12))
        again = list(Annotator(graph, LANES, random.Random(0)).plans(sketch, 12))
        assert plans, sketch
        assert plans == again
        assert len(set(plans)) == len(plans)
        for plan in plans:
            check_plan(graph, plan)
            assert (plan.rule, plan.anchor) == (sketch.rule, sketch.anchor)
            assert set(sketch.attach) <= set(plan.attach)


@every_piece
def test_mutation_keeps_the_structure_and_reaches_many_plans(name: str) -> None:
    graph = PIECES[name]
    source = random.Random(0)
    plan = pick(graph, HARDWARE)[0].plan
    found = {mutated(graph, plan, source) for _ in range(200)}
    legal = {other for other in found if is_legal(graph, other, LANES)}
    if max(axis.extent for node in graph.nodes for axis in node.axes) > 16:
        assert legal - {plan}
    for other in found:
        assert (other.rule, other.anchor) == (plan.rule, plan.anchor)
        assert settled(graph, other) == other


@pytest.mark.parametrize("name", ["conv_large/0", "matmul_packed/0", "depthwise_large/0"])
def test_a_crossed_plan_has_every_extent_from_a_parent(name: str) -> None:
    graph, source = PIECES[name], random.Random(0)
    (sketch,) = sketches(graph, HARDWARE.cores)
    one, other = Annotator(graph, LANES, source).plans(sketch, 2)
    seen = set()
    for _ in range(50):
        child = crossed(one, other, source)
        seen.add(child)
        for mine, theirs, entry in zip(one.tiles, other.tiles, child.tiles, strict=True):
            for a, b, c in zip(
                mine.tile.extents, theirs.tile.extents, entry.tile.extents, strict=True
            ):
                assert c in (a, b)
        assert child.order in (one.order, other.order)
    assert len(seen - {one, other}) > 1


def test_plans_of_two_sketches_are_not_crossed() -> None:
    one = pick(GRAPHS["matmul_packed"], HARDWARE)[0].plan
    other = pick(GRAPHS["sum_to_scalar"], HARDWARE)[0].plan
    assert crossed(one, other, random.Random(0)) is one


@pytest.mark.parametrize("name", ["conv_large/0", "softmax_large/0", "elementwise_large/0"])
def test_evolution_finds_what_the_score_asks_for(name: str) -> None:
    """A score that wants large core tiles: the population's best has a larger one than any seed."""
    graph = PIECES[name]
    seeds = [candidate.plan for candidate in pick(graph, HARDWARE, 4)]

    def score(plans):  # type: ignore[no-untyped-def]
        import numpy as np

        return np.array([float(plan.at("core").points) for plan in plans])

    found = evolve(graph, seeds, score, LANES, lambda plan: plan in seeds, random.Random(0))
    again = evolve(graph, seeds, score, LANES, lambda plan: plan in seeds, random.Random(0))
    assert found == again
    assert len(set(found)) == len(found)
    assert not set(found) & set(seeds)
    assert all(is_legal(graph, plan, LANES) for plan in found)
    sizes = [plan.at("core").points for plan in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] >= max(plan.at("core").points for plan in seeds)
