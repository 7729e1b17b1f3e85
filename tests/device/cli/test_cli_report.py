"""`report --measure --roofline`: what it prints, draws and refuses."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cli_case import SHAPE, Command, answer, good

from tvm_ext.hardware import get


def test_measured_in_place(command: Command, artifact: Path) -> None:
    before = artifact.read_bytes()
    text = good(command("report", artifact, "--measure", "--runs", "3")).stdout
    assert re.search(r"medians of 3 runs: kernels [\d.,]+ us, \d+% of the model's latency", text)
    assert re.search(r"^ all +\d+ ", text, re.MULTILINE)
    data = answer(command("report", artifact, "--measure", "--runs", "2", "--json"))
    assert data["profile"]["runs"] == 2
    names = {group["name"] for group in data["groups"]}
    assert names == {line["name"] for line in data["roofline"]} == set(data["profile"]["calls"])
    assert all(group["measured_us"] > 0 for group in data["groups"])
    assert sum(line["share"] for line in data["roofline"]) == pytest.approx(1)
    assert artifact.read_bytes() == before


def test_what_fusion_decided(command: Command, artifact: Path) -> None:
    data = answer(command("report", artifact, "--fusion", "--json"))
    text = good(command("report", artifact, "--fusion")).stdout
    assert f"{sum(len(f['kernels']) == 1 for f in data['fusions'])} stayed alone" in text


def test_a_picture_of_what_is_predicted(command: Command, artifact: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    path = tmp_path / "a.svg"
    said = good(command("report", artifact, "--roofline", path)).stdout
    assert f"picture   {path}" in said
    assert "in place" not in said
    assert path.read_text().lstrip().startswith("<?xml")


def test_the_tile_graph_is_drawn(command: Command, artifact: Path, tmp_path: Path) -> None:
    """Every call, and bytes by level; of calls that read others the level is known."""
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    path = tmp_path / "tiles.svg"
    data = answer(command("report", artifact, "--graph", path, "--json"))
    manifest = answer(command("report", artifact, "--json"))
    assert len(manifest["steps"]) == sum(group["calls"] for group in manifest["groups"])
    assert sum(data["levels"].values()) >= sum(
        read["size_bytes"] for step in manifest["steps"] for read in step["reads"]
    )
    assert path.read_text().lstrip().startswith("<?xml")


def test_another_machine_is_drawn_by_its_catalog_figures(
    command: Command, model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    other = tmp_path / "other.so"
    good(command("compile", model, *SHAPE, "-o", other, "--target", "cpu/x86-avx2"))
    data = answer(command("report", other, "--roofline", tmp_path / "a.png", "--json"))
    assert data["machine"]["peak_gflops"] == get("cpu/x86-avx2").peak_gflops
    assert "profile" not in data


def test_without_either_option_nothing_is_run_or_drawn(command: Command, artifact: Path) -> None:
    assert not {"profile", "roofline"} & set(answer(command("report", artifact, "--json")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--roofline", "a.pdf"], ["a.pdf", "must end in .svg or .png"]),
        (["--roofline", "nowhere/a.svg"], ["no folder nowhere"]),
        (["--graph", "a.pdf"], ["a.pdf", "must end in .svg or .png"]),
        (["--roofline"], ["--roofline", "--help"]),
        (["--measure", "--runs", "0"], ["'0' is no whole number from 1 up"]),
    ],
)
def test_refused(
    refuses: Callable[..., None], artifact: Path, words: list[str], message: list[str]
) -> None:
    refuses("report", artifact, *words, words=message)


def test_no_matplotlib_is_said_before_anything_is_run(
    refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "a.svg"
    refuses("report", "absent.so", "--roofline", path, words=["tvm_ext[plot]", "matplotlib"])
    assert not path.exists()


def test_roofs_of_somebody_elses_machine_are_not_known(
    refuses: Callable[..., None], artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same artifact on a machine that calls itself otherwise.
    other = msgspec.structs.replace(get("cpu/x86-sse"), name="cpu/host")
    monkeypatch.setattr(importlib.import_module("tvm_ext.hardware.resolve"), "host", lambda: other)
    refuses("report", artifact, "--measure", words=["another machine", "compile the model here"])
