"""Searches as curves and counts, and the picture of them."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from tvm_ext.errors import ArtifactError
from tvm_ext.report.search_picture import TaskTrials, Trial, draw_search, failure_counts

CONV = TaskTrials(
    "conv2d",
    (
        Trial(0.0, inf, 9.0, "compile"),
        Trial(1.0, 20.0, 10.0),
        Trial(2.0, 30.0, 11.0),
        Trial(4.0, 10.0, 12.0),
        Trial(5.0, inf, None, "wrong"),
    ),
)
DENSE = TaskTrials("dense", (Trial(6.0, inf, None, "wrong"),))


def test_a_curve_falls_from_the_first_plan_that_worked() -> None:
    assert CONV.best_us == 10.0
    assert CONV.curve() == [(2, 1.0, 1.0), (3, 2.0, 1.0), (4, 4.0, 0.5), (5, 5.0, 0.5)]
    assert DENSE.curve() == []


def test_failures_are_counted_by_kind_the_commonest_first() -> None:
    assert list(failure_counts([CONV, DENSE]).items()) == [("wrong", 2), ("compile", 1)]


@pytest.mark.parametrize("tasks", [[CONV, DENSE], [DENSE], []], ids=["two", "failed", "none"])
def test_equal_searches_give_equal_pictures(tasks: list[TaskTrials], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    draw_search(tasks, one)
    draw_search(tasks, other)
    assert one.read_bytes() == other.read_bytes()
    assert one.read_text().lstrip().startswith("<?xml")


def test_a_picture_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    with pytest.raises(ArtifactError, match="nothing written"):
        draw_search([CONV], tmp_path / "nowhere" / "a.svg")
