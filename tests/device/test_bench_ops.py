"""The operator benchmark end to end, in a process of its own: it forks, so none may have run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def ops(*arguments: str, figures: Path) -> tuple[str, dict[str, Any]]:
    """What the script prints, and its JSON."""
    command = [sys.executable, ROOT / "benchmarks" / "ops.py", *arguments, "--json", figures]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(figures.read_text())


def test_the_first_plan_is_checked_timed_and_held_against_random_ones(tmp_path: Path) -> None:
    printed, figures = ops(
        "--only", "GMM/0", "--batch", "1", "--random", "4", figures=tmp_path / "ops.json"
    )
    (row,) = figures["operators"]
    assert row["name"] == "GMM/0 b1"
    assert row["source"] == "picker"
    assert row["ours_us"] > 0
    assert row["random_us"] > 0
    assert row["random_tried"] == 4
    assert row["mflop"] == pytest.approx(2 * 128**3 / 1e6)
    assert figures["summary"]["against_random"] == 1
    assert "within 10% of the best random plan for" in printed


def test_the_first_plan_is_timed_beside_what_metaschedule_finds(tmp_path: Path) -> None:
    searches = tmp_path / "searches"
    arguments = ("--only", "GMM/0", "--batch", "1", "--trials", "4", "--searches", str(searches))
    _, figures = ops(*arguments, figures=tmp_path / "ops.json")
    (row,) = figures["operators"]
    assert row["metaschedule_us"] > 0
    assert not row["other_failure"]
    assert list(searches.glob("4 trials*/GMM/0 b1/search_s"))


def test_an_operator_that_tvm_cannot_build_is_a_line_and_no_failure(tmp_path: Path) -> None:
    printed, figures = ops(
        "--only", "C2D_WIN_NHWC", "--batch", "1", "--trials", "0", figures=tmp_path / "ops.json"
    )
    assert "TVM cannot make it" in printed
    assert figures["summary"]["operators"] == 0


def test_an_unknown_operator_is_a_usage_error() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "ops.py", "--only", "C9D"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "no operator named C9D" in done.stderr
