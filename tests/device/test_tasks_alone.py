"""A task needs nothing that another one did: run by itself, on data no other has seen, it writes
the right values, and all tasks together write everything."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tvm_ext.errors import PlanError
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.planner import make_task
from tvm_ext.search import sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan, show_plan
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc, Target, structural_map, structural_walk, te, tirx, tvm

PLANS = 12
DRAWS = 60 * PLANS


def parallel_loops(func: PrimFunc) -> list[Any]:
    found: list[Any] = []
    structural_walk(func.body, (tirx.For, found.append))
    return [loop for loop in found if loop.kind == tirx.ForKind.PARALLEL]


def one_task(func: PrimFunc) -> PrimFunc:
    """parallel for t < n: .. → for t < n: if t == chosen: .., `chosen` the last parameter."""
    chosen = tirx.Var("chosen", "int32")

    def alone(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        body = tirx.IfThenElse(loop.loop_var == chosen, loop.body, None)
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)

    body = structural_map(func.body, [(tirx.For, alone)], order="post")
    return PrimFunc([*func.params, chosen], body, func.ret_type, func.attrs)


def product(m: int, n: int, k: int) -> PrimFunc:
    """A plain product with a producer that may be computed for a task: (2 a) b."""
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    twice = te.compute((m, k), lambda i, r: a[i, r] * 2, name="twice")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(twice[i, r] * b[r, j], axis=r), name="c")
    return te.create_prim_func([a, b, c])


def run_one_by_one(scheduled: PrimFunc, plan: TilePlan) -> None:
    built = build(one_task(scheduled), Target(resolve("cpu").target))
    assert isinstance(built, Built), built
    left, right, result = [[int(extent) for extent in one.shape] for one in scheduled.params]
    written = np.zeros(result, bool)
    for task in range(int(parallel_loops(scheduled)[0].extent)):
        noise = np.random.default_rng(task)
        a, b = (noise.standard_normal(shape).astype("float32") for shape in (left, right))
        c = tvm.runtime.tensor(np.full(result, np.inf, "float32"))
        built.main(tvm.runtime.tensor(a), tvm.runtime.tensor(b), c, task)
        touched = ~np.isinf(c.numpy())
        np.testing.assert_allclose(
            c.numpy()[touched], (2 * a @ b)[touched], rtol=1e-4, atol=1e-3, err_msg=show_plan(plan)
        )
        written |= touched
    assert written.all(), show_plan(plan)


@pytest.mark.parametrize("sizes", [(64, 96, 32), (31, 67, 13), (50, 80, 24), (7, 500, 8)])
def test_products_by_random_plans(sizes: tuple[int, int, int]) -> None:
    func = product(*sizes)
    graph = make_task(func, "product").graph
    assert graph is not None
    annotator = Annotator(graph, 8, random.Random(0))
    known = sketches(graph, 2)
    done: set[TilePlan] = set()
    for turn in range(DRAWS):
        plan = annotator.draw(known[turn % len(known)])
        try:
            scheduled = write(func, plan)
        except PlanError:
            continue
        if plan not in done and len(parallel_loops(scheduled)) == 1:
            run_one_by_one(scheduled, plan)
            done.add(plan)
        if len(done) == PLANS:
            break
    assert len(done) == PLANS


@pytest.mark.parametrize("inside", [{"staged": (1,)}, {"attach": (Attach(0, "core"),)}])
def test_a_moved_tile_that_begins_in_another_task(inside: dict[str, Any]) -> None:
    """96 columns by 80 leave 16, less than the register tile of 40: it begins 24 columns before its
    task, and before what that has copied of the right operand; the left one has no columns."""
    levels = (LevelTile("core", Tile((8, 80, 32))), LevelTile("register", Tile((4, 40, 4))))
    plan = TilePlan("tile", 1, levels, (1, 0, 2), 2, 8, 4, **inside)
    func = product(64, 96, 32)
    if plan.staged:
        with pytest.raises(PlanError, match="tail"):
            write(func, plan)
    else:
        run_one_by_one(write(func, plan), plan)
