"""Kernels beside the machine's roofs: the figures, the table and the picture."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from math import hypot
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from manifests import manifest

from tvm_ext.errors import ArtifactError, InstallError
from tvm_ext.hardware import HardwareModel, get
from tvm_ext.hardware.model import MemoryLevel
from tvm_ext.hardware.roofline import level_gbps, peak_gflops, roof
from tvm_ext.records.manifest import Group
from tvm_ext.records.profile import Profile, with_profile
from tvm_ext.report import picture
from tvm_ext.report.roofline import group_lines, roofline_text

MACHINE = msgspec.structs.replace(
    get("cpu/x86-avx2"),
    cores=2,
    peak_gflops={"float32": 50.0},
    levels=(
        MemoryLevel("register", 512, 400.0),
        MemoryLevel("l1", 32 << 10, 200.0),
        MemoryLevel("l2", 1 << 20, 100.0),
        MemoryLevel("l3", 16 << 20, 40.0, shared=True, total_gbps=60.0),
        MemoryLevel("dram", 1 << 34, 15.0, shared=True, total_gbps=20.0),
    ),
)
"""100 GFLOP/s; 200, 60 and 20 GB/s."""

GEMM = Group("g0", "dense", "aa", "picker", flops=1.1e6, multiply_flops=1e6, io_bytes=4000, calls=2)
WINOGRAD = msgspec.structs.replace(
    GEMM, name="g1", kind="winograd", flops=2e6, multiply_flops=1.5e6, calls=1
)
ADD = Group("g2", "add", "bb", "picker", flops=1e6, io_bytes=8_000_000, predicted_us=100.0)
COPY = Group("g3", "copy", "cc", "loose", io_bytes=100)
MEASURED = {"g0": 12.5, "g1": 25.0, "g2": 200.0, "g3": 1.0}
PROFILE = Profile(7, MEASURED, {"g0": 2, "g1": 1, "g2": 1, "g3": 1}, 3.0, 290.0, 250.0)

PROFILED = with_profile(manifest(GEMM, WINOGRAD, ADD, COPY, hardware_name="cpu/x86-avx2"), PROFILE)


def test_a_roof_is_the_slower_of_arithmetic_and_traffic() -> None:
    assert peak_gflops(MACHINE) == 100
    assert [level_gbps(MACHINE, x) for x in MACHINE.levels[2:]] == [200, 60, 20]
    computing = roof(1e6, 100, MACHINE)
    assert (computing.bound, computing.latency_us, computing.compute_us) == ("compute", 10, 10)
    for size_bytes, level, gbps in (
        (1 << 20, "l2", 200),
        (8 << 20, "l3", 60),
        (1 << 30, "dram", 20),
    ):
        moving = roof(1e3, size_bytes, MACHINE)
        assert moving.bound == level
        assert moving.latency_us == pytest.approx(size_bytes / gbps / 1e3)


def test_fewer_cores_get_no_more_than_their_own_bandwidth() -> None:
    alone = msgspec.structs.replace(MACHINE, cores=1)
    assert [level_gbps(alone, x) for x in alone.levels[2:]] == [100, 40, 15]


def test_figures_of_each_kernel() -> None:
    add, gemm, winograd, copy = group_lines(PROFILED, MACHINE)
    assert [line.total_us for line in (add, gemm, winograd, copy)] == [200, 25, 25, 1]
    assert gemm.share + winograd.share + add.share + copy.share == pytest.approx(1)
    assert gemm.gflops == pytest.approx(88)
    assert gemm.intensity == pytest.approx(275)
    assert gemm.roof_percent == pytest.approx(88)
    assert add.roof.bound == "l3"
    assert add.roof_percent == pytest.approx(100 * (8e6 / 60e3) / 200)
    assert add.predicted_gflops == pytest.approx(10)
    assert copy.gflops == copy.predicted_gflops == 0


def test_peak_counts_multiply_adds_only_and_only_where_compute_binds() -> None:
    add, gemm, winograd, copy = group_lines(PROFILED, MACHINE)
    assert gemm.peak_percent == pytest.approx(80)
    # 1.5 MFLOP of products in 25 us; its transforms are work, but no progress.
    assert winograd.peak_percent == pytest.approx(60)
    assert add.peak_percent is copy.peak_percent is None


def test_peaks_are_those_beside_the_runs() -> None:
    """A machine that reached half its probe's peak meanwhile: the kernel lost nothing by it."""
    slow = msgspec.structs.replace(PROFILE, peak_gflops=50.0)
    before = group_lines(PROFILED, MACHINE)
    after = group_lines(PROFILED, MACHINE, slow)
    assert [line.peak_gflops for line in after] == [50.0] * 4
    assert after[1].peak_percent == 2 * before[1].peak_percent
    assert "peak beside the runs 50 GFLOP/s" in roofline_text(PROFILED, MACHINE, slow)


def test_a_profile_replaces_every_measured_time_and_nothing_else() -> None:
    tuned = msgspec.structs.replace(GEMM, measured_us=99.0, source="log")
    unseen = msgspec.structs.replace(ADD, name="never called", measured_us=5.0)
    groups = with_profile(manifest(tuned, unseen), PROFILE).groups
    assert groups[0] == msgspec.structs.replace(tuned, measured_us=12.5)
    assert groups[1].measured_us == 0
    assert PROFILE.kernels_us == 251


def cells(text: str, kind: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{kind} "))
    return re.split(r"\s{2,}", line.strip())


def test_the_table() -> None:
    text = roofline_text(PROFILED, MACHINE, PROFILE)
    assert cells(text, "dense")[2:12] == [
        *("2", "-", "12.5", "25.0", "10.0", "88.0", "compute", "88.0", "80.0", "picker")
    ]
    assert cells(text, "add")[2:11] == [
        *("1", "100", "200", "200", "79.7", "5.0", "l3", "66.7", "-")
    ]
    assert "loose (fell back)" in text
    # All five calls: 5.2 MFLOP in 251 us; at their roofs 175.3 us.
    assert cells(text, "all") == ["all", "5", "100", "251", "251", "100.0", "20.7", "69.9"]
    order = [text.index(f"\n {kind} ") for kind in ("add", "dense", "winograd", "copy", "all")]
    assert order == sorted(order)


def test_what_the_table_says_in_words() -> None:
    text = roofline_text(PROFILED, MACHINE, PROFILE)
    for words in (
        "2 cores: peak 100 GFLOP/s; L2 200, L3 60, DRAM 20 GB/s",
        "medians of 7 runs: kernels 251 us, 100% of the model's latency of 250 us",
        "every call 290 us, of which memory and shapes 3.00 us",
        "2 kernels bound by compute take 20% of the time: together at 70.0% of peak, "
        "the least 60.0% (winograd aa)",
    ):
        assert words in text
    predicted = roofline_text(manifest(ADD), MACHINE)
    assert "measured   in place" not in predicted
    assert "of peak," not in predicted


def test_roofs_meet_the_peak_where_they_should() -> None:
    lines = {name: (xs, ys) for name, xs, ys in picture.roof_lines(MACHINE, 0.1, 100.0)}
    assert lines == {
        "peak 100 GFLOP/s": ((0.5, 100.0), (100, 100)),
        "L2 200 GB/s": ((0.1, 0.5), (20, 100)),
        "L3 60 GB/s": ((0.1, 100 / 60), (6, 100)),
        "DRAM 20 GB/s": ((0.1, 5), (2, 100)),
    }


def test_kernels_without_arithmetic_or_time_are_not_drawn() -> None:
    short = msgspec.structs.replace(ADD, name="short", kind="short", measured_us=0.01)
    shown = picture.drawn_lines(
        group_lines(msgspec.structs.replace(PROFILED, groups=(*PROFILED.groups, short)), MACHINE)
    )
    assert [line.group.kind for line in shown] == ["add", "dense", "winograd"]


def test_numbers_keep_clear_of_dots_and_of_one_another() -> None:
    dots = [(100.0 + 3 * step, 100.0, 6.0) for step in range(10)]
    taken = list(dots)
    for dot in dots:
        taken.append((*picture.free_spot(dot, taken), picture.TAG_RADIUS))
    numbers = taken[len(dots) :]
    for place, (x, y, radius) in enumerate(numbers):
        for a, b, other in (*dots, *numbers[:place]):
            assert hypot(x - a, y - b) > radius + other


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InstallError, match=r"needs matplotlib.*pip install tvm_ext\[plot\]"):
        picture.draw_roofline(PROFILED, MACHINE, tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="pictures need tvm_ext[plot]")


@pytest.mark.usefixtures("matplotlib")
def test_the_picture_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{name}.svg" for name in "abc")
    picture.draw_roofline(PROFILED, MACHINE, first)
    picture.draw_roofline(PROFILED, MACHINE, second)
    picture.draw_roofline(manifest(ADD), MACHINE, other)
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    assert ElementTree.parse(first).getroot().tag.endswith("svg")


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("groups", [(), (COPY,), PROFILED.groups], ids=["none", "copy", "all"])
def test_a_picture_of_whatever_there_is(tmp_path: Path, groups: tuple[Group, ...]) -> None:
    for name in ("cpu/x86-avx512", "arm/neoverse-n1"):
        path = tmp_path / "a.png"
        picture.draw_roofline(manifest(*groups), get(name), path)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.usefixtures("matplotlib")
def test_words_of_the_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import matplotlib as library

    with library.rc_context({"svg.fonttype": "none"}):
        picture.draw_roofline(PROFILED, MACHINE, tmp_path / "a.svg")
    texts = [(element.text or "") for element in ElementTree.parse(tmp_path / "a.svg").iter()]
    for words in ("m.onnx on cpu/x86-avx2", "GFLOP/s", "FLOP per byte", "dense x2", "79.7%"):
        assert any(words in text for text in texts), words
    numbers = [text for text in texts if text in ("1", "2", "3", "4")]
    # Each drawn kernel is numbered beside its dot and in the list; one more `1` and `2` are ticks.
    assert all(numbers.count(number) >= 2 for number in ("1", "2", "3"))


@pytest.mark.usefixtures("matplotlib")
def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"roofline picture .*No such file.*nothing written"):
        picture.draw_roofline(PROFILED, MACHINE, tmp_path / "no" / "a.svg")


def test_every_catalog_machine_has_roofs_that_fall_outward(hardware: HardwareModel) -> None:
    rates = [level_gbps(hardware, level) for level in hardware.levels[1:]]
    assert all(inner >= outer > 0 for inner, outer in pairwise(rates))
