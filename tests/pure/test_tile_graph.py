"""The picture of the tile graph: what lies where, and files that are the same each time."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from manifests import manifest
from msgspec.structs import replace

from tvm_ext.records.manifest import Group, Read, Stage, Step, decode_manifest, encode_manifest
from tvm_ext.report.tile_graph import draw_tile_graph, level_bytes, level_text

STAGES = (Stage("dense", "register", 4000), Stage("T_add", "", 4000))
DENSE = Group(name="dense", kind="dense_add", signature="s", source="picker", stages=STAGES)
ROWS = tuple(Stage(f"stage{place}", "l1", 100) for place in range(20))
NORM = Group(name="norm", kind="layer_norm", signature="t", source="none", stages=ROWS)
MODEL = replace(
    manifest(DENSE, NORM),
    steps=(
        Step("dense", (Read(-1, 1000, "dram"),)),
        Step("norm", (Read(0, 4000, "l2"),)),
        Step("dense", (Read(1, 4000, "l2"), Read(0, 4000, "l3"))),
    ),
)


def test_bytes_are_counted_where_they_lie() -> None:
    """Stages of a kernel as often as it is called."""
    assert level_bytes(MODEL) == {
        "register": 8000,
        "l1": 2000,
        "l2": 8000,
        "l3": 4000,
        "dram": 1000,
    }
    assert "l2 0.01 MB" in level_text(MODEL)


def test_artifacts_keep_it() -> None:
    assert decode_manifest(encode_manifest(MODEL)) == MODEL


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_the_picture_is_the_same_for_the_same_model(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    first, second = tmp_path / name, tmp_path / f"b{name}"
    draw_tile_graph(MODEL, first)
    draw_tile_graph(MODEL, second)
    assert first.read_bytes() == second.read_bytes()
    if name.endswith("svg"):
        assert ElementTree.parse(first).getroot().tag.endswith("svg")


def test_a_picture_of_nothing(tmp_path: Path) -> None:
    """An artifact of before, or of a model with branches, has no calls to draw."""
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")
    draw_tile_graph(manifest(DENSE), tmp_path / "a.svg")
    assert level_bytes(manifest(DENSE)) == {}
