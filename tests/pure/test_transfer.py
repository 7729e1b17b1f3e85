"""Graphs of tasks in a log, and what a search learns from the records of other tasks."""

from __future__ import annotations

from math import inf
from pathlib import Path

import msgspec
import numpy as np
import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick, predict
from tvm_ext.records import Database, TaskGraph
from tvm_ext.records.merge import merge
from tvm_ext.records.record import decode_line, encode_line
from tvm_ext.search import TaskSpace, lessons
from tvm_ext.search.features import FEATURES
from tvm_ext.tile import TileGraph, TilePlan
from tvm_ext.tile.cut import cut

HARDWARE = get("cpu/x86-avx512")


def told(name: str) -> TaskGraph:
    return TaskGraph(
        graph=GRAPHS[name], signature=name, hardware="0123456789ab", hardware_name="cpu/host"
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_one_line_and_comes_back_equal(name: str) -> None:
    line = encode_line(told(name))
    assert line.count(b"\n") == 1
    assert decode_line(line) == told(name)


def test_a_log_knows_its_graphs_and_merging_keeps_them(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "a", create=True)
    database.append([told("conv_large")])
    assert Database.open(tmp_path / "a").records() == []
    assert dict(Database.open(tmp_path / "a").graphs) == {"conv_large": GRAPHS["conv_large"]}
    merge([tmp_path / "a"], tmp_path / "b")
    assert dict(Database.open(tmp_path / "b").graphs) == dict(database.graphs)
    assert merge([tmp_path / "a"], tmp_path / "b").added == 0


def picked(name: str) -> dict[TilePlan, float]:
    found = [candidate.plan for candidate in pick(GRAPHS[name], HARDWARE, 9)]
    plans = [plan for plan in found if plan.rule != "strips"]
    return {plan: 10.0 + place for place, plan in enumerate(plans)} | {plans[-1]: inf}


def taught(names: list[str], limit: int = 1000) -> list:  # type: ignore[type-arg]
    def model(graph: TileGraph, plan: TilePlan):  # type: ignore[no-untyped-def]
        return predict(graph, plan, HARDWARE)

    measured = {name: picked(name) for name in names}
    return lessons(GRAPHS, measured, HARDWARE, model, limit=limit)


def test_every_plan_of_a_known_task_is_an_example() -> None:
    examples = taught(["conv_large", "attention_large"])
    assert {example.task for example in examples} == {"conv_large", "attention_large"}
    assert len(examples) == len(picked("conv_large")) + len(picked("attention_large"))
    for example in examples:
        assert example.rows.shape == (len(cut(GRAPHS[example.task])), len(FEATURES))
        assert np.isfinite(example.rows).all()
    assert sum(example.latency_us == inf for example in examples) == 2


def test_of_many_plans_some_at_random_from_all() -> None:
    names = ["conv_large", "matmul_packed", "depthwise_large"]
    examples = taught(names, limit=9)
    assert len(examples) == 9
    assert len({example.task for example in examples}) > 1
    assert [e.latency_us for e in examples] == [e.latency_us for e in taught(names, limit=9)]


def test_a_plan_that_its_task_cannot_follow_teaches_nothing() -> None:
    graph = GRAPHS["conv_large"]
    damaged = msgspec.structs.replace(next(iter(picked("conv_large"))), anchor=9)

    def model(graph: TileGraph, plan: TilePlan):  # type: ignore[no-untyped-def]
        return predict(graph, plan, HARDWARE)

    assert lessons(GRAPHS, {"conv_large": {damaged: inf}}, HARDWARE, model) == []
    space = TaskSpace(graph, HARDWARE, list(picked("conv_large")), model)
    space.take(damaged, inf)
    space.take(damaged, 0.1)
    assert space.examples() == []
    assert space.best != damaged


def test_a_task_without_a_graph_or_cut_otherwise_teaches_nothing() -> None:
    plans = picked("conv_large")
    model = lambda g, p: predict(g, p, HARDWARE)  # noqa: E731
    assert lessons({}, {"conv_large": plans}, HARDWARE, model) == []
    assert lessons(GRAPHS, {"attention_large": plans}, HARDWARE, model) == []
