"""Operators as tensor programs of others write them: weights not packed, transpositions and
inserted zeros in the function, a single long sum. Every plan of the picker computes what they mean.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build_many
from tvm_ext.picker import pick
from tvm_ext.planner import Option, Planned, Task, make_task
from tvm_ext.tile import TilePlan, show_plan
from tvm_ext.tile.classify import is_affine, leaves_holes_out
from tvm_ext.tir import write
from tvm_ext.tvm_api import Target, te, tirx, topi
from tvm_ext.verify import check

TRIED = 12


def floats(*shape: int) -> Any:
    return te.placeholder(shape, "float32")


def product(rows: int, inner: int, columns: int) -> list[Any]:
    a, b = floats(rows, inner), floats(inner, columns)
    k = te.reduce_axis((0, inner), "k")
    return [a, b, te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))]


def grouped(size: int, groups: int, per_in: int, per_out: int) -> list[Any]:
    x, w = floats(1, size, size, groups * per_in), floats(3, 3, per_in, groups * per_out)
    bias = floats(groups * per_out)
    padded = topi.nn.pad(x, [0, 1, 1, 0])
    kh, kw, c = (te.reduce_axis((0, n)) for n in (3, 3, per_in))
    y = te.compute(
        (1, size, size, groups * per_out),
        lambda n, i, j, o: te.sum(
            padded[n, i + kh, j + kw, o // per_out * per_in + c] * w[kh, kw, c, o],
            axis=[kh, kw, c],
        ),
    )
    zero = tirx.const(0.0, "float32")
    relu = te.compute(y.shape, lambda n, i, j, o: te.max(y[n, i, j, o] + bias[o], zero))
    return [x, w, bias, relu]


def transposed(size: int, channels: int, out: int, kernel: int, step: int) -> list[Any]:
    """A transposed convolution as one reduction over an image with zeros in between."""
    x, w = floats(1, size, size, channels), floats(kernel, kernel, channels, out)
    edge = -(-(kernel - 1) // step)
    padded = topi.nn.pad(x, [0, edge, edge, 0])
    kh, kw, c = (te.reduce_axis((0, n)) for n in (kernel, kernel, channels))
    shift = edge * step - (kernel - 1)
    extent = (size - 1) * step + kernel

    def element(n: Any, i: Any, j: Any) -> Any:
        inside = te.all((i % step).equal(0), (j % step).equal(0))
        zero = tirx.const(0.0, "float32")
        return te.if_then_else(inside, padded[n, i // step, j // step, c], zero)

    y = te.compute(
        (1, extent, extent, out),
        lambda n, i, j, o: te.sum(
            element(n, i + kh + shift, j + kw + shift) * w[kernel - 1 - kh, kernel - 1 - kw, c, o],
            axis=[kh, kw, c],
        ),
    )
    return [x, w, y]


def attention_scores(length: int, heads: int, width: int) -> list[Any]:
    q, v = floats(1, length, heads, width), floats(1, length, heads, width)
    left = te.compute((1, heads, length, width), lambda b, h, i, d: q[b, i, h, d])
    right = te.compute((1, heads, width, length), lambda b, h, d, i: v[b, i, h, d])
    k = te.reduce_axis((0, width))
    scores = te.compute(
        (1, heads, length, length),
        lambda b, h, i, j: te.sum(left[b, h, i, k] * right[b, h, k, j], axis=k),
    )
    return [q, v, scores]


def total(rows: int, columns: int) -> list[Any]:
    x = floats(1, rows, columns)
    i, j = te.reduce_axis((0, rows)), te.reduce_axis((0, columns))
    squares = te.compute((1,), lambda b: te.sum(x[b, i, j] * x[b, i, j], axis=[i, j]))
    return [x, te.compute((1,), lambda b: te.sqrt(squares[b]))]


CASES = {
    "product_even": product(64, 96, 256),
    "product_odd": product(37, 53, 130),
    "grouped_whole_vectors": grouped(9, 4, 16, 32),
    "grouped_odd": grouped(7, 3, 5, 12),
    "transposed_4_by_2": transposed(5, 6, 32, 4, 2),
    "transposed_3_by_3": transposed(4, 3, 16, 3, 3),
    "transposed_3_by_2": transposed(6, 5, 3, 3, 2),
    "attention_scores": attention_scores(64, 3, 32),
    "attention_scores_odd": attention_scores(35, 2, 17),
    "total": total(64, 256),
    "total_odd": total(31, 77),
}


def task_of(name: str) -> Task:
    return make_task(te.create_prim_func(CASES[name]), name)


def plans_of(task: Task) -> list[TilePlan]:
    """The picker's best plans as the machine is, and where launches cost nothing."""
    assert task.graph is not None
    hardware = resolve("cpu")
    eager = msgspec.structs.replace(hardware, launch_us=0.0, cores=2)
    found = [*pick(task.graph, hardware, TRIED), *pick(task.graph, eager, TRIED)]
    return list(dict.fromkeys(candidate.plan for candidate in found))


@pytest.mark.parametrize("name", CASES)
def test_plans_are_right(name: str) -> None:
    task = task_of(name)
    planned = [
        Planned(task, write(task.func, plan), Option("picker", plan), []) for plan in plans_of(task)
    ]
    jobs = [(entry.func, None) for entry in planned]
    kernels = [one.kernel for one in build_many(jobs, Target(resolve("cpu").target))]
    wrong = []
    for entry, built in zip(planned, kernels, strict=True):
        error = check(entry, built.main) if isinstance(built, Built) else str(built)
        if error and entry.option.plan:
            wrong.append(f"{show_plan(entry.option.plan)}: {error}")
    assert planned
    assert not wrong, "\n".join(wrong)


def test_channels_of_groups_are_read_as_affine() -> None:
    graph = task_of("grouped_odd").graph
    assert graph is not None
    assert all(is_affine(node) for node in graph.nodes)


def test_a_transposition_of_outer_axes_is_no_stage_of_its_own() -> None:
    graph = task_of("attention_scores").graph
    assert graph is not None
    assert [node.kind for node in graph.nodes] == ["map", "reduce"]


def test_inserted_zeros_are_left_out() -> None:
    graph = task_of("transposed_4_by_2").graph
    assert graph is not None
    (node,) = (node for node in graph.nodes if node.holes)
    assert [hole.step for hole in node.holes] == [2, 2]
    assert node.flops_per_point == 0.5, "one product in four has no zero factor"
    plans = [candidate.plan.at("register") for candidate in pick(graph, resolve("cpu"), 24)]
    assert all(leaves_holes_out(node, register) for register in plans)
    taps = {tuple(register.extents[hole.reduce] for hole in node.holes) for register in plans}
    assert (2, 2) in taps, "so many that it is known of each which points it reaches"


def test_one_long_sum_is_shared_out() -> None:
    rules = {plan.rule for plan in plans_of(task_of("total"))}
    assert "split" in rules


def test_rows_that_lie_apart_are_copied_side_by_side() -> None:
    graph = task_of("product_even").graph
    assert graph is not None
    found = pick(graph, resolve("cpu/x86-avx512"), 100)
    assert any(candidate.plan.staged for candidate in found)
