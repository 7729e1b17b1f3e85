"""The arithmetic of the benchmark tables: which peer is best, which way a ratio points."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from compare import relative_error
from results import Model, Row, engines_text, models_text, summary


def model(name: str, ours: list[float], roof_us: float = 500.0, **peers: list[float]) -> Model:
    """A model with these seconds a round."""
    mine = Row("tvm_ext", load_s=1.0, round_s=ours, facts={"roof_us": roof_us})
    return Model(name, [mine, *(Row(peer, round_s=times) for peer, times in peers.items())])


def test_the_ratio_is_that_of_the_fastest_peer_and_above_one_when_ours_is_faster() -> None:
    found = model("m", [0.001, 0.001], onnxruntime=[0.003, 0.003], openvino=[0.002, 0.002])
    assert found.best_peer is not None
    assert found.best_peer.engine == "openvino"
    assert found.ratio == pytest.approx(2.0)
    assert found.roof_share == pytest.approx(0.5)


def test_ratios_are_taken_round_by_round() -> None:
    """A slow spell of the machine that covers a round cancels out."""
    found = model("m", [0.001, 0.010, 0.001], openvino=[0.002, 0.020, 0.002])
    assert found.ratio == pytest.approx(2.0)


def test_an_engine_that_failed_is_no_peer_and_shows_its_reason() -> None:
    found = model("m", [0.001], onnxruntime=[0.002])
    found.rows.append(Row("torch", failure="no converter for Loop"))
    assert found.ratio == pytest.approx(2.0)
    assert "failed: no converter for Loop" in engines_text(found)
    assert "failed" in models_text([found], ["tvm_ext", "onnxruntime", "torch"]).splitlines()[1]


def test_the_summary_names_the_worst_model_and_leaves_out_what_has_no_ratio() -> None:
    fast, slow = model("fast", [0.001], ort=[0.004]), model("slow", [0.001], ort=[0.001])
    alone = model("alone", [0.001])
    figures = summary([fast, slow, alone])
    assert figures["geomean"] == pytest.approx(2.0)
    assert (figures["least_model"], figures["models"]) == ("slow", 2)


def test_without_our_own_figures_nothing_is_claimed() -> None:
    broken = Model("m", [Row("tvm_ext", failure="crash"), Row("onnxruntime", round_s=[0.001])])
    assert broken.ratio is None
    assert broken.roof_share is None
    assert summary([broken]) == {"models": 0}


def test_an_error_that_is_not_finite_counts_as_infinite() -> None:
    good = np.ones(4, np.float32)
    assert relative_error([good * 1.5], [good]) == pytest.approx(0.5)
    assert relative_error([good * np.nan], [good]) == float("inf")
    assert relative_error([good[:3]], [good]) == float("inf")
