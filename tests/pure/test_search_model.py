"""Features, the learned model, the search space of a task, and the scheduler over tasks."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick, predict
from tvm_ext.search import CostModel, TaskHistory, TaskScheduler, TaskSpace, sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.search.cost_model import Example, pairwise_accuracy, recall, throughputs
from tvm_ext.search.features import FEATURES, Features, slog
from tvm_ext.search.task_scheduler import likeness
from tvm_ext.tile import TileGraph, TilePlan
from tvm_ext.tile.cut import cut

HARDWARE = get("cpu/x86-avx512")
LANES = HARDWARE.lanes(4)
BATCH = 16


def plans_of(graph: TileGraph, count: int) -> list[TilePlan]:
    dice = Annotator(graph, LANES, random.Random(1))
    return [p for s in sketches(graph, HARDWARE.cores) for p in dice.plans(s, count)]


def made_up_us(graph: TileGraph, plan: TilePlan) -> float:
    """A latency that the performance model does not know of: it likes wide, hates high tiles."""
    base = predict(graph, plan, HARDWARE).latency_us
    register = plan.at("register").extents if plan.rule == "tile" else plan.at("core").extents
    return base * (1 + 3 / register[-2] + register[0] / 8)


@pytest.mark.parametrize("name", GRAPHS)
def test_features_are_finite_and_one_row(name: str) -> None:
    for piece in cut(GRAPHS[name]):
        features = Features(piece.graph, HARDWARE)
        for plan in plans_of(piece.graph, 4):
            rows = features.rows(plan, predict(piece.graph, plan, HARDWARE))
            assert rows.shape == (1, len(FEATURES))
            assert rows.dtype == np.float32
            assert np.isfinite(rows).all()
            row = dict(zip(FEATURES, rows[0], strict=True))
            before = (row[f"before_{place}"] for place in ("core", "register", "apart"))
            assert sum(before) == plan.anchor


def test_features_tell_plans_apart() -> None:
    graph = GRAPHS["conv_large"]
    features = Features(graph, HARDWARE)
    rows = {
        plan: features.rows(plan, predict(graph, plan, HARDWARE)).tobytes()
        for plan in plans_of(graph, 40)
    }
    assert len(set(rows.values())) > 0.9 * len(rows)


def test_slog_is_odd_and_grows() -> None:
    assert slog(0) == 0
    assert slog(-3) == -slog(3) == -2
    assert slog(5) < slog(6)


def test_throughputs_are_relative_to_the_best_of_a_task() -> None:
    row = np.zeros((1, len(FEATURES)), np.float32)
    examples = [Example("a", row, 10), Example("a", row, 20), Example("b", row, 5)]
    failed = Example("b", row, inf)
    assert throughputs([*examples, failed]).tolist() == [1.0, 0.5, 1.0, 0.0]


def test_accuracy_and_recall() -> None:
    targets = np.array([0.1, 0.5, 0.5, 1.0])
    assert pairwise_accuracy(targets, targets) == 1
    assert pairwise_accuracy(-targets, targets) == 0
    assert recall(targets, targets, 2) == 1
    assert recall(-targets, targets, 1) == 0


def test_the_model_learns_what_the_performance_model_does_not_know() -> None:
    """Trained on half of the plans, it orders the other half; without training it is not there."""
    graph = GRAPHS["conv_large"]
    features = Features(graph, HARDWARE)
    examples = [
        Example("t", features.rows(p, predict(graph, p, HARDWARE)), made_up_us(graph, p))
        for p in plans_of(graph, 240)
    ]
    model = CostModel(seed=0)
    assert not model.trained
    model.fit(examples[:1])
    assert not model.trained
    model.fit(examples[::2])
    assert model.trained
    held_out = examples[1::2]
    scores = model.scores([example.rows for example in held_out])
    assert pairwise_accuracy(scores, throughputs(held_out)) > 0.8
    again = CostModel(seed=0)
    again.fit(examples[::2])
    assert np.array_equal(scores, again.scores([example.rows for example in held_out]))


def space_of(name: str, seed: int = 0) -> TaskSpace:
    graph = GRAPHS[name]
    picked = [candidate.plan for candidate in pick(graph, HARDWARE, 6)]
    return TaskSpace(graph, HARDWARE, picked, lambda g, p: predict(g, p, HARDWARE), seed)


def search(name: str, batches: int, seed: int = 0) -> TaskSpace:
    space, model = space_of(name, seed), CostModel(seed)
    for _ in range(batches):
        model.fit(space.examples())
        for plan in space.propose(BATCH, model):
            space.take(plan, made_up_us(GRAPHS[name], plan))
    return space


def test_the_pickers_plan_comes_first_and_nothing_twice() -> None:
    space, model = space_of("conv_large"), CostModel()
    first = space.propose(BATCH, model)
    assert first[0] == space.picked[0]
    second = space.propose(BATCH, model)
    assert len(set(first + second)) == 2 * BATCH


def test_a_search_ends_better_than_it_began_and_is_reproducible() -> None:
    space = search("conv_prime", 4)
    assert space.best_us < 0.9 * space.measured[space.picked[0]]
    assert space.best_us == min(space.measured.values())
    assert list(search("conv_prime", 4).measured) == list(space.measured)
    assert list(search("conv_prime", 4, seed=1).measured) != list(space.measured)


def test_the_best_is_the_one_that_costs_least_with_what_it_costs_others() -> None:
    graph = GRAPHS["conv_large"]
    first, second = (candidate.plan for candidate in pick(graph, HARDWARE, 2))
    beside = {first: 5.0, second: 0.0}
    space = TaskSpace(
        graph, HARDWARE, [first], lambda g, p: predict(g, p, HARDWARE), beside_us=beside.__getitem__
    )
    space.take(first, 10.0)
    space.take(second, 12.0)
    assert space.best == second
    assert space.best_us == 12.0


def test_what_is_promising_need_not_be_best() -> None:
    space = space_of("conv_large")
    first, second = (candidate.plan for candidate in pick(GRAPHS["conv_large"], HARDWARE, 2))
    assert space.promising == space.best == space.picked[0]
    space.take(first, 10.0)
    space.take(second, 8.0, believed_us=12.0)
    assert (space.promising, space.best, space.best_us) == (second, first, 10.0)
    space.take(second, 9.0)
    assert (space.promising, space.best, space.best_us) == (second, second, 9.0)


def test_plans_that_fail_are_never_best() -> None:
    space = space_of("conv_large")
    for plan in space.propose(4, CostModel()):
        space.take(plan, inf)
    assert space.best == space.picked[0]
    assert space.best_us == inf
    assert space.propose(4, CostModel())


def test_a_small_space_comes_to_its_end() -> None:
    space, model = space_of("elementwise_one"), CostModel()
    found = [plan for _ in range(8) for plan in space.propose(BATCH, model)]
    assert len(set(found)) == len(found)
    assert space.propose(BATCH, model) == []


def test_pieces_are_varied_one_at_a_time() -> None:
    space, model = space_of("attention_large"), CostModel()
    for _ in range(3):
        for plan in space.propose(BATCH, model):
            space.take(plan, 1.0 + len(space.measured))
    by_pieces = [plan for plan in space.measured if plan.rule != "strips"]
    assert space.best.rule == "strips"
    assert len(by_pieces) > BATCH  # what is varied where the best are strips
    first = by_pieces[0].parts()
    changed = {sum(a != b for a, b in zip(plan.parts(), first, strict=True)) for plan in by_pieces}
    assert changed <= {0, 1}
    assert len(space.examples()) == len(by_pieces)
    assert all(len(example.rows) == len(space.pieces) for example in space.examples())


def spent(best_us: float, roof_us: float = 1.0, calls: float = 1.0, **more: object) -> TaskHistory:
    return TaskHistory((calls,), 1e6, roof_us, "x", trials=1, history_us=[best_us], **more)  # type: ignore[arg-type]


def choice(*tasks: TaskHistory, **options: object) -> int | None:
    source = random.Random(0)
    source.random = lambda: 1.0  # type: ignore[method-assign]
    return TaskScheduler(tasks, source, **options).next()  # type: ignore[arg-type]


def test_trials_go_where_most_is_to_gain() -> None:
    assert choice(spent(100), spent(10)) == 0
    assert choice(spent(100), spent(60, calls=4)) == 1
    assert choice(spent(100, roof_us=99.9), spent(10)) == 1
    assert choice(spent(100, exhausted=True), spent(10)) == 1
    assert choice(spent(100, exhausted=True)) is None


def test_a_task_that_still_gains_goes_on() -> None:
    gaining = TaskHistory((1.0,), 1e6, 1.0, "a", 3, [200.0, 150.0, 100.0])
    standing = TaskHistory((1.0,), 1e6, 1.0, "b", 3, [100.0, 100.0, 100.0])
    assert choice(standing, gaining) == 1


def test_a_task_slower_than_those_like_it_is_worth_more() -> None:
    """Equal but for what similar tasks reach: 1 MFLOP in 10 us against 100 us."""
    fast = TaskHistory((1.0,), 1e6, 1.0, "conv 5", 2, [10.0, 10.0])
    slow = TaskHistory((1.0,), 1e6, 1.0, "conv 5", 2, [100.0, 100.0])
    alone = TaskHistory((1.0,), 1e6, 1.0, "pool 5", 2, [100.0, 100.0])
    scheduler = TaskScheduler([fast, slow, alone], random.Random(0))
    assert scheduler.gradient(1) >= scheduler.gradient(2) > scheduler.gradient(0)


def test_a_model_fast_enough_needs_no_trials() -> None:
    tasks = [spent(100), spent(50)]
    assert TaskScheduler(tasks, random.Random(0), targets_us=[200]).next() is None
    assert TaskScheduler(tasks, random.Random(0), targets_us=[140]).next() is not None


def test_geomean_counts_a_small_model_as_much_as_a_large_one() -> None:
    large = TaskHistory((1.0, 0.0), 1e6, 1.0, "a", 1, [1000.0])
    small = TaskHistory((0.0, 1.0), 1e6, 1.0, "b", 1, [10.0])
    by_sum = TaskScheduler([large, small], random.Random(0), "latency")
    by_mean = TaskScheduler([large, small], random.Random(0), "geomean")
    assert by_sum.gradient(0) > 10 * by_sum.gradient(1)
    assert by_mean.gradient(0) == pytest.approx(by_mean.gradient(1), rel=0.01)


def test_likeness_is_by_operators_and_size() -> None:
    assert likeness("conv", 1e6) == likeness("conv", 1.05e6)
    assert likeness("conv", 1e6) != likeness("conv", 4e6)
    assert likeness("conv", 1e6) != likeness("pool", 1e6)
