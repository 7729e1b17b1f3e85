"""Tables: what they must say, whatever they look like."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from math import inf
from typing import Any

import msgspec
from manifests import manifest

from tvm_ext.records import Record, RecordFailure, TaskKey
from tvm_ext.records.manifest import Fusion, Group, TensorInfo
from tvm_ext.report.fusions import fusions_text
from tvm_ext.report.groups import groups_text, header, sources
from tvm_ext.report.log_tables import best_text, records_text, summarise, summary_text
from tvm_ext.report.text import draw, gflops_text, us_text
from tvm_ext.report.tune_table import TaskLine, batch_line, failures, tune_table
from tvm_ext.tile import LevelTile, Tile, TilePlan, show_plan

PLAN = TilePlan("tile", 0, (LevelTile("core", Tile((1, 16))),), (0, 1), 1, lanes=16)
PICKED = Group(
    "conv",
    "conv2d_relu",
    "aa",
    "picker",
    PLAN,
    bound="compute",
    predicted_us=10.0,
    flops=2e6,
    calls=3,
    verified=True,
)
LOGGED = Group("dense", "dense", "bb", "log", PLAN, measured_us=40.0, flops=1e6, verified=True)
LOOSE = Group(
    "sort",
    "sort",
    "cc",
    "loose",
    PLAN,
    fallback=("picker plan, vector: lanes [16] do not fit", "picker plan, wrong: output 0"),
)
UNTOUCHED = Group("gather", "gather", "dd", "none")


def row(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def test_header() -> None:
    text = groups_text(manifest(PICKED, notes=("log line skipped: a:3: torn",)))
    for word in ("m.onnx", "cpu/host", "0123456789ab", "2 threads", "feedc0de0000", "tvm 0.27"):
        assert word in text
    assert "log line skipped: a:3: torn" in text


def test_fusions_say_what_was_saved_and_why_they_stopped() -> None:
    merged = Fusion("Stitch", ("fused_max", "exp"), "dense is a product", 9.0, 5.0, 4_000_000, 1, 3)
    alone = Fusion("Stitch", ("take",), "with cast: slower: 7.0 us, 6.0 us apart", 0, 0, 20_000)
    text = fusions_text(msgspec.structs.replace(manifest(PICKED), fusions=(alone, merged)))
    assert "6 kernels became 3, 12.0 MB 0.0; 1 stayed alone" in text
    first, second = (line for line in text.splitlines() if line.strip().startswith("Stitch"))
    assert "max + exp" in first
    assert "dense is a product" in first
    assert "take" in second
    assert "slower: 7.0 us" in second


def test_every_kernel_with_its_plan_and_its_figures() -> None:
    text = groups_text(manifest(PICKED, LOGGED, LOOSE, UNTOUCHED))
    picked = row(text, "conv2d_relu")
    assert show_plan(PLAN) in picked
    # 2 MFLOP in 10 us are 200 GFLOP/s; three calls take 30 us.
    figures = ["10.0", "-", "30.0", "200", "yes"]
    assert re.split(r"\s{2,}", picked.strip())[1:10] == ["aa", "3", "picker", "compute", *figures]
    measured = re.split(r"\s{2,}", row(text, "dense").strip())
    assert measured[4:10] == ["-", "-", "40.0", "40.0", "25.0", "yes"]
    assert "as TVM wrote it" in row(text, "gather")
    assert text.index("dense") < text.index("conv2d_relu", text.index("GFLOP/s"))


def test_fallbacks_are_marked_counted_and_explained() -> None:
    text = groups_text(manifest(PICKED, LOGGED, LOOSE, UNTOUCHED))
    assert "log 1, picker 1, written 0, loop 0, loose 1, none 1; 2 verified" in text
    assert "loose (fell back)" in row(text, "sort")
    assert "none (fell back)" in row(text, "gather")
    assert "fell back" not in row(text, "conv2d_relu")
    assert "2 of 4 kernels fell back" in text
    for reason in LOOSE.fallback:
        assert reason in text
    counts = {"log": 0, "picker": 1, "written": 0, "loop": 0, "loose": 1, "none": 0}
    assert sources(manifest(PICKED, LOOSE)) == counts


def test_a_kernel_that_runs_its_second_plan_says_why() -> None:
    second = msgspec.structs.replace(PICKED, fallback=("log plan, wrong: output 0",))
    text = groups_text(manifest(second, LOGGED))
    assert "fell back" not in text
    assert "log plan, wrong: output 0" in text


def test_total_time_says_what_it_is_made_of() -> None:
    assert "30.0 us predicted" in groups_text(manifest(PICKED))
    mixed = row(groups_text(manifest(PICKED, LOGGED, UNTOUCHED)), "time")
    assert "70.0 us" in mixed
    assert "1 kernels as measured" in mixed
    assert "1 kernels without a figure" in mixed


def test_plain_by_default_and_within_a_width_if_given() -> None:
    shown = manifest(PICKED, LOOSE)
    assert "\x1b" not in groups_text(shown)
    assert not any(line != line.rstrip() for line in groups_text(shown).splitlines())
    long = msgspec.structs.replace(PLAN, tiles=PLAN.tiles * 6)
    shown = manifest(msgspec.structs.replace(PICKED, plan=long), LOOSE)
    narrow, wide = groups_text(shown, width=140), groups_text(shown)
    assert max(map(len, narrow.splitlines())) <= 140 < max(map(len, wide.splitlines()))
    assert show_plan(long) in wide
    # Narrower than the figures need: plans are broken, figures are not.
    assert "predicted us" in groups_text(shown, width=20)


def test_nothing_in_a_text_is_taken_for_markup() -> None:
    assert draw("a [bold]b[/] :smile:") == "a [bold]b[/] :smile:"


def test_numbers() -> None:
    assert [us_text(us) for us in (0.0, inf, 0.094, 12.34, 123.4, 12345.6)] == [
        *("-", "-", "0.09", "12.3", "123", "12,346")
    ]
    assert gflops_text(0, 1) == gflops_text(1e6, inf) == gflops_text(1e6, 0) == "-"


def line(**changes: Any) -> TaskLine:
    given: dict[str, Any] = {
        "signature": "aa",
        "kind": "conv2d",
        "calls": 2,
        "trials": 5,
        "flops": 2e6,
        "roof_us": 10.0,
        "best_us": 20.0,
        "failures": {"timeout": 1},
    }
    return TaskLine(**{**given, **changes})


def test_a_task_in_figures() -> None:
    assert line().roof_percent == 50
    assert line().weight_us == 40
    assert line(best_us=inf).weight_us == 20
    assert json.loads(json.dumps(line(best_us=inf).to_dict()))["best_us"] is None
    assert line().to_dict()["gflops"] == 100
    text = batch_line(line(), 7, 64)
    for word in ("7/64", "conv2d", "20.0 us", "100 GFLOP/s", "50% of roof", "1 failed"):
        assert word in text
    assert batch_line(line(), 7, None).startswith("trial 7  ")
    assert batch_line(line(), 19, 3).startswith("trial 19, more than 3  ")


def test_the_table_shows_the_longest_tasks_and_counts_the_others() -> None:
    lines = [line(kind=f"k{number}", best_us=float(number)) for number in range(1, 9)]
    text = draw(tune_table(lines, rows=3))
    assert re.findall(r"k\d", text) == ["k8", "k7", "k6"]
    assert "and 5 tasks" in text
    assert "tasks that" not in draw(tune_table(lines))


def test_failures_by_kind() -> None:
    lines = [line(), line(failures={"wrong": 4, "timeout": 2}), line(failures={})]
    assert failures(lines) == {"wrong": 4, "timeout": 3}


def record(signature: str, *latency_us: float, hardware: str = "h1", error: str = "") -> Record:
    return Record(
        task=TaskKey(signature, f"kind_{signature}", 1000, 10),
        hardware=hardware,
        hardware_name=f"cpu/{hardware}",
        target="llvm",
        plan=PLAN,
        latency_us=latency_us,
        error=RecordFailure(error, "because") if error else None,
        seed=0,
        tir_hash="",
        versions={},
        time="2025-01-01T00:00:00+00:00",
    )


def test_records_by_machine_and_task() -> None:
    records = [
        record("aa", 3.0, 5.0),
        record("aa", 2.0, 3.0),
        record("aa", error="timeout"),
        record("aa", 1.0, hardware="h2"),
        record("bb", error="wrong"),
    ]
    summaries = summarise(records)
    assert [(s.hardware, s.signature, s.records) for s in summaries] == [
        ("h1", "aa", 3),
        ("h1", "bb", 1),
        ("h2", "aa", 1),
    ]
    assert summaries[0].best is records[1]
    assert summaries[0].failures == {"timeout": 1}
    assert summaries[0].to_dict()["best_us"] == 2.5
    assert summaries[1].best is None
    assert "2.50" in summary_text(summaries)
    assert show_plan(PLAN) in best_text(summaries)
    assert "none that works" in row(best_text(summaries), "cpu/h1    bb")
    listed = records_text(records[:3])
    assert listed.index("2.50") < listed.index("4.00") < listed.index("timeout: because")


def test_only_drawing_loads_rich() -> None:
    code = (
        "import sys, tvm_ext.report.groups, tvm_ext.report.tune_table, tvm_ext.report.log_tables\n"
        "import tvm_ext.cli.tune, tvm_ext.cli.logs\n"
        "assert not {'rich', 'tvm', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_is_left_open_says_how_much_it_takes() -> None:
    inputs = (
        TensorInfo("x", "float32", (1, "new", 8)),
        TensorInfo("kept", "float32", ("texts", "past", 8)),
    )
    fewest, most = {"past": 0, "texts": 2}, {"new": 512, "new+past": 600}
    found = msgspec.structs.replace(manifest(), inputs=inputs, fewest=fewest, most=most)
    assert found.limits() == (
        "new 1 to 512",
        "past 0 or more",
        "texts 2 or more",
        "new+past 600 at most",
    )
    assert any(line.startswith("open       new 1 to 512, ") for line in header(found))
    assert manifest().limits() == ()
