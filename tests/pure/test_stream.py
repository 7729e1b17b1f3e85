"""Groups that touch each byte once: how much of them is one row."""

from __future__ import annotations

import pytest
from graphs import GraphBuilder, total

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tile import TileGraph


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
