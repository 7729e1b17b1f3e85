"""The search's plans for GPUs: drawn, changed and crossed, they keep to what a block may use."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick, predict
from tvm_ext.search import CostModel, TaskSpace, neighbours, sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.search.features import FEATURES, Features
from tvm_ext.search.mutate import crossed, mutated, settled
from tvm_ext.tile import TileGraph, TilePlan
from tvm_ext.tile.block import MAX_THREADS, STATIC_BYTES, copy_bytes, thread_count
from tvm_ext.tile.legal import is_legal

HW = get("cuda/sm_80")
TILED = [name for name in GRAPHS if sketches(GRAPHS[name], HW.cores, kind="cuda")]


def drawn(graph: TileGraph, count: int = 20) -> list[TilePlan]:
    annotator = Annotator(graph, MAX_THREADS, random.Random(0))
    sketch, *_ = sketches(graph, HW.cores, kind="cuda")
    return list(annotator.plans(sketch, count))


def test_what_is_tiled() -> None:
    assert {"matmul_packed", "conv_large"} <= set(TILED)
    assert not {"softmax_large", "elementwise_large"} & set(TILED)


@pytest.mark.parametrize("name", TILED)
def test_drawn_plans_fit(name: str) -> None:
    graph = GRAPHS[name]
    plans = drawn(graph)
    assert len(plans) > 3
    for plan in plans:
        node = graph.nodes[plan.anchor]
        assert thread_count(node, plan) <= MAX_THREADS
        assert copy_bytes(graph, plan) * (1 + plan.ahead) <= STATIC_BYTES
        for axis in node.space:
            core, register = plan.at("core").extents[axis], plan.at("register").extents[axis]
            assert core % register == 0
            assert plan.at("shared").extents[axis] == core


@pytest.mark.parametrize("name", GRAPHS)
def test_changed_plans_are_legal_often_enough(name: str) -> None:
    graph, source = GRAPHS[name], random.Random(0)
    found = pick(graph, HW)
    if not found or found[0].plan.rule == "block_loose":
        return
    changed = [mutated(graph, found[0].plan, source) for _ in range(40)]
    near = list(neighbours(graph, found[0].plan))
    assert {plan.rule for plan in (*changed, *near)} == {found[0].plan.rule}
    assert sum(is_legal(graph, plan, MAX_THREADS) for plan in changed) >= 10
    assert any(is_legal(graph, plan, MAX_THREADS) for plan in near)


@pytest.mark.parametrize("name", TILED)
def test_crossed_plans_are_settled(name: str) -> None:
    graph, source = GRAPHS[name], random.Random(0)
    one, other, *_ = drawn(graph)
    for _ in range(20):
        plan = settled(graph, crossed(one, other, source))
        assert settled(graph, plan) == plan
        node = graph.nodes[plan.anchor]
        assert all(plan.at("shared").extents[a] == plan.at("core").extents[a] for a in node.space)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_search_proposes_what_was_not_proposed(name: str) -> None:
    graph = GRAPHS[name]
    picked = [candidate.plan for candidate in pick(graph, HW, 12)]
    if not picked:
        return
    space = TaskSpace(graph, HW, picked, lambda g, p: predict(g, p, HW))
    model = CostModel(0, 1)
    seen: set[TilePlan] = set()
    for _ in range(3):
        plans = space.propose(8, model)
        assert not seen.intersection(plans)
        seen.update(plans)
        for place, plan in enumerate(plans):
            assert is_legal(graph, plan, MAX_THREADS)
            space.take(plan, 10.0 + place)
    assert all(np.isfinite(example.rows).all() for example in space.examples())


@pytest.mark.parametrize("name", TILED)
def test_features_are_numbers(name: str) -> None:
    graph = GRAPHS[name]
    rows = partial(Features(graph, HW).rows)
    for plan in drawn(graph, 5):
        row = rows(plan, predict(graph, plan, HW))
        assert row.shape == (1, len(FEATURES))
        assert np.isfinite(row).all()
