"""Drafting plans: an evolving population, scored without measuring (Ansor §5.1, Pruner).

Parents are drawn in proportion to their score, children are mutated or crossed, what is illegal or
known is dropped. The performance model drafts, for it costs a fraction of a millisecond a plan; the
learned model, once it is trained, has the last word.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from math import exp
from typing import Any

from numpy.typing import NDArray

from tvm_ext.search.mutate import crossed, mutated, settled
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import TilePlan

Score = Callable[[Sequence[TilePlan]], NDArray[Any]]
"""Of plans, numbers that are higher for faster ones."""

POPULATION = 64
GENERATIONS = 3
CROSSED = 0.2
"""Part of the children that have two parents."""
STEPS = (1, 1, 2, 3)
"""Mutations of a child."""
SHARPNESS = 8.0
"""How much likelier the best of a generation is drawn than the worst, as a power of e."""


def evolve(
    graph: TileGraph,
    seeds: Sequence[TilePlan],
    score: Score,
    lanes: int,
    known: Callable[[TilePlan], bool],
    source: random.Random,
) -> list[TilePlan]:
    """New legal plans bred from `seeds`, the highest score first.

    lanes  elements in the widest vector
    known  plans that are not wanted again: those measured, or found illegal
    """
    pool: dict[TilePlan, float] = {}
    _take(pool, seeds, score)
    children: dict[TilePlan, None] = {}
    for _ in range(GENERATIONS):
        ranked = sorted(pool, key=lambda plan: -pool[plan])[:POPULATION]
        weights = [exp(-SHARPNESS * place / len(ranked)) for place in range(len(ranked))]
        fresh: dict[TilePlan, None] = {}
        for _ in range(2 * POPULATION):
            child = _child(graph, ranked, weights, source)
            if child in pool or child in fresh or not is_legal(graph, child, lanes):
                continue
            fresh[child] = None
            if len(fresh) == POPULATION:
                break
        _take(pool, list(fresh), score)
        children |= fresh
    wanted = [plan for plan in {**dict.fromkeys(seeds), **children} if not known(plan)]
    return sorted(wanted, key=lambda plan: -pool[plan])


def _child(
    graph: TileGraph, parents: Sequence[TilePlan], weights: Sequence[float], source: random.Random
) -> TilePlan:
    one, other = source.choices(parents, weights, k=2)
    if source.random() < CROSSED:
        return settled(graph, crossed(one, other, source))
    for _ in range(source.choice(STEPS)):
        one = mutated(graph, one, source)
    return one


def _take(pool: dict[TilePlan, float], plans: Iterable[TilePlan], score: Score) -> None:
    fresh = [plan for plan in plans if plan not in pool]
    if fresh:
        pool.update(zip(fresh, map(float, score(fresh)), strict=True))
