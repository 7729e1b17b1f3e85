"""Groups that touch each byte once: how much of them is one row."""

from __future__ import annotations

import pytest
from graphs import GraphBuilder, total

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile import TileGraph
from tvm_ext.tile.legal import is_legal


def pooled_planes(channels: int, rows: int, columns: int, kernel: int) -> TileGraph:
    """Windows beside each other in planes: y[c, p, q] = max x[c, kernel p + r, kernel q + s]."""
    build = GraphBuilder("pooled_planes")
    x = build.tensor("x", (channels, rows * kernel, columns * kernel), "input")
    y = build.tensor("y", (channels, rows, columns), "output")
    build.node(
        "pool",
        {"c": channels, "p": rows, "q": columns, "r*": kernel, "s*": kernel},
        [(x, [{"c": 1}, {"p": kernel, "r": 1}, {"q": kernel, "s": 1}])],
        (y, [{"c": 1}, {"p": 1}, {"q": 1}]),
    )
    return build.graph()


@pytest.mark.parametrize("machine", ["cpu/x86-avx512", "cpu/x86-avx2", "arm/neoverse-n1"])
def test_small_windows_are_taken_side_by_side(machine: str) -> None:
    """One window at a time leaves nothing to make vectors of."""
    plan = pick(pooled_planes(64, 28, 28, 2), get(machine))[0].plan
    assert plan.rule == "rows"
    assert plan.at("core").extents == (1, 1, 28, 2, 2)
    assert plan.parallel == 2


def test_long_rows_are_taken_one_by_one() -> None:
    plan = pick(total(512, 768, kept=1), get("cpu/x86-avx512"))[0].plan
    assert plan.at("core").extents == (1, 768)
    plan = pick(pooled_planes(64, 7, 7, 8), get("cpu/x86-avx512"))[0].plan
    assert plan.at("core").extents[2] == 1


def test_rows_are_left_to_share_out() -> None:
    """A single axis of windows is shared out as it is."""
    plan = pick(total(100_000, 4, kept=1), get("cpu/x86-avx512"))[0].plan
    assert plan.at("core").extents[0] < 100_000


def several(rows: int, columns: int, reads: int = 1) -> TileGraph:
    """h = x + x; m = max of rows of h; y = h - m: h, m and y leave. Row i of y takes row `reads` i
    of h."""
    build = GraphBuilder("several")
    x = build.tensor("x", (rows, columns), "input")
    h = build.tensor("h", (rows, columns), "output")
    m = build.tensor("m", (rows,), "output")
    y = build.tensor("y", (rows, columns), "output")
    space = {"i": rows, "j": columns}
    here = [{"i": 1}, {"j": 1}]
    build.node("add", space, [(x, here)], (h, here))
    build.node("max", {"i": rows, "k*": columns}, [(h, [{"i": 1}, {"k": 1}])], (m, [{"i": 1}]))
    read = [{"i": reads}, {"j": 1}]
    build.node("subtract", space, [(h, read), (m, [{"i": reads}])], (y, here))
    return build.graph()


def test_results_share_their_rows() -> None:
    graph = several(64, 96)
    assert graph.results == (0, 1, 2)
    plan = pick(graph, get("cpu/x86-avx512"))[0].plan
    assert plan.rule == "rows"
    assert plan.at("core").extents == (1, 96)
    assert [entry.stage for entry in plan.attach] == [0, 1]
    assert is_legal(graph, plan, 16)


def test_another_row_of_a_result_is_not_at_hand() -> None:
    """Only all of it at once, on one core, is left."""
    graph = several(64, 96, reads=-1)
    plan = pick(graph, get("cpu/x86-avx512"))[0].plan
    shared = pick(several(64, 96), get("cpu/x86-avx512"))[0].plan
    assert plan.at("core").extents == (64, 96)
    assert plan.parallel == 0
    assert not is_legal(graph, shared, 16)


def test_short_rows_of_maps_are_no_tasks() -> None:
    """Of 4096 rows of 16 elements as many make a task as are worth one."""
    build = GraphBuilder("maps")
    x = build.tensor("x", (64, 64, 16), "input")
    here = [{"n": 1}, {"i": 1}, {"j": 1}]
    for name in "hy":
        out = build.tensor(name, (64, 64, 16), "output")
        build.node(name, {"n": 64, "i": 64, "j": 16}, [(x, here)], (out, here))
    plan = pick(build.graph(), get("cpu/x86-avx512"))[0].plan
    assert plan.rule == "rows"
    assert plan.at("core").extents == (1, 64, 16)
