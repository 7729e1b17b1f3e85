"""Functions of open extents without tiles: what is moved comes along, outer loops are shared."""

from __future__ import annotations

from typing import Any

from tvm_ext.tir.write_open import write_open
from tvm_ext.tvm_api import PrimFunc, Schedule, is_scheduled, te, tirx, topi

N = tirx.Var("n", "int64")


def made(*tensors: Any) -> PrimFunc:
    return te.create_prim_func(list(tensors)).without_attr("global_symbol")


def loops(func: PrimFunc, name: str) -> list[tuple[bool, int]]:
    """Whether each loop around a block is parallel, and its extent, 0 where it is not known."""
    schedule = Schedule(func)
    found = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock(name))]
    return [
        (
            one.kind == tirx.ForKind.PARALLEL,
            int(one.extent) if isinstance(one.extent, tirx.IntImm) else 0,
        )
        for one in found
    ]


def test_enough_tasks_leave_the_loops_inside_alone() -> None:
    x = te.placeholder((N, 8, N, 64), "float32", "x")
    y = te.compute((N, 8, N, 64), lambda b, h, j, d: x[b, h, N - 1 - j, d], "y")
    func = write_open(made(x, y), cores=2)
    assert func is not None
    assert is_scheduled(func)
    assert loops(func, "y") == [(True, 0), (False, 0), (False, 64)]


def test_too_few_tasks_take_all_but_the_innermost_loop() -> None:
    x = te.placeholder((N, N), "float32", "x")
    y = te.compute((N, 1, N, N), lambda b, h, i, j: x[b, j] + x[b, i], "y")
    func = write_open(made(x, y), cores=2)
    assert func is not None
    assert loops(func, "y") == [(True, 0), (False, 0)]


def test_stages_that_only_move_are_taken_in_and_sums_stay() -> None:
    x = te.placeholder((N, 5, N), "float32", "x")
    turned = te.compute((N, N, 5), lambda i, j, k: x[i, k, j] * 2, "turned")
    over = te.reduce_axis((0, N), "over")
    summed = te.compute((N, 5), lambda i, k: te.sum(turned[i, over, k], [over]), "summed")
    y = te.compute((N, 5), lambda i, k: summed[i, k] + 1, "y")
    func = write_open(made(x, y), cores=2)
    assert func is not None
    names = [block for block in ("turned", "summed", "y") if f'"{block}"' in func.script()]
    assert names == ["turned", "summed", "y"], (
        "the sum reads each element once for all that it adds"
    )
    assert loops(func, "summed") == [(True, 0), (False, 0)]
    chained = te.compute((N, 5), lambda i, k: y[i, k] * 3, "chained")
    func = write_open(made(x, chained), cores=2)
    assert func is not None
    assert '"y"' not in func.script()


def test_a_single_loop_stays() -> None:
    x = te.placeholder((N,), "float32", "x")
    assert write_open(made(x, topi.nn.relu(x)), cores=2) is None
