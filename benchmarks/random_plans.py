"""Random legal plans: what the picker's first choice is held against."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tvm_ext.errors import PlanError
from tvm_ext.search import sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.tile.cut import cut, joined
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc

DRAWS_PER_PLAN = 50  # draws before an operator is taken to have no more plans


def random_plans(
    func: PrimFunc, graph: TileGraph, lanes: int, cores: int, count: int, seed: int
) -> Iterator[tuple[TilePlan, PrimFunc]]:
    """Up to `count` distinct legal plans of `func`, each with its scheduled function, of all
    sketches in turn. `lanes`: elements in the widest vector."""
    source = random.Random(seed)
    pieces = cut(graph)
    dice = [Annotator(piece.graph, lanes, source) for piece in pieces]
    known = [sketches(piece.graph, cores) for piece in pieces]
    seen: set[TilePlan] = set()
    found = 0
    for turn in range(count * DRAWS_PER_PLAN if all(known) else 0):
        parts = [die.draw(own[turn % len(own)]) for die, own in zip(dice, known, strict=True)]
        plan = joined(pieces, tuple(parts))
        if plan in seen:
            continue
        seen.add(plan)
        try:
            scheduled = write(func, plan)
        except PlanError:
            continue
        yield plan, scheduled
        found += 1
        if found == count:
            return
