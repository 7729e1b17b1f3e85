"""Plans and log lines that must not change by accident. After a deliberate change run

    pytest tests/golden --update-golden

and read the difference before committing it: it is what users of the old plans will see.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.records.record import Record, TaskKey, decode_line, encode_line
from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan, show_plan

PLANS = Path(__file__).with_name("plans.json")
LINE = Path(__file__).with_name("record.jsonl")

MACHINES = ("cpu/x86-avx512", "cpu/x86-avx2", "arm/neoverse-n1")
OPERATORS = (
    "conv_large",
    "conv_stem",
    "conv_1x1",
    "depthwise_large",
    "grouped_large",
    "pool_large",
    "matmul_packed",
    "matmul_vector",
    "softmax_large",
    "elementwise_large",
    "transpose_large",
    "fused_attention_large",
)


def plans_now() -> dict[str, list[str]]:
    """The three best plans for each operator and machine, as people read them."""
    return {
        f"{name} on {machine}": [
            f"{show_plan(found.plan)} order {','.join(map(str, found.plan.order))}"
            for found in pick(GRAPHS[name], get(machine), 3)
        ]
        for name in OPERATORS
        for machine in MACHINES
    }


def test_picked_plans_are_those_on_file(update_golden: bool) -> None:
    now = plans_now()
    if update_golden:
        PLANS.write_text(json.dumps(now, indent=1) + "\n")
    on_file = json.loads(PLANS.read_text())
    changes = [line for key in sorted({*now, *on_file}) for line in difference(key, on_file, now)]
    assert not changes, "\n".join(
        ["plans changed; if that is meant: pytest tests/golden --update-golden", *changes]
    )


def difference(key: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The lines of one entry that differ, under its name."""
    old, new = before.get(key, []), after.get(key, [])
    lines = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    return [f"{key}:", *(f"  {line}" for line in lines)] if lines else []


RECORD = Record(
    task=TaskKey("0123456789abcdef", "conv2d+add+relu", 231211008, 1663744),
    hardware="89abcdef0123",
    hardware_name="cpu/x86-avx512",
    target='{"kind":"llvm","mcpu":"x86-64-v4"}',
    plan=TilePlan(
        rule="tile",
        anchor=1,
        tiles=(
            LevelTile("core", Tile((1, 14, 56, 64, 3, 3, 64))),
            LevelTile("register", Tile((1, 1, 14, 32, 1, 1, 4))),
        ),
        order=(3, 0, 1, 2, 4, 5, 6),
        parallel=3,
        lanes=16,
        unroll=4,
        attach=(Attach(2, "register"),),
    ),
    latency_us=(101.5, 99.25, 100.0),
    seed=7,
    tir_hash="fedcba987654",
    versions={"tvm": "0.27.0.post1", "tvm_ext": "0.1.0"},
    time="2025-01-02T03:04:05+00:00",
)


def test_a_log_line_reads_and_writes_as_it_always_did(update_golden: bool) -> None:
    """Old logs must stay readable, and a merged log must not rewrite what it holds."""
    if update_golden:
        LINE.write_bytes(encode_line(RECORD))
    line = LINE.read_bytes()
    record = decode_line(line)
    assert record == RECORD
    assert record.best_us == pytest.approx(100.0)
    assert encode_line(record) == line
