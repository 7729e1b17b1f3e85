"""The logs that ship with the package can be read by this version, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_ext.records import Database
from tvm_ext.tile.legal import LEVELS

LOGS = sorted((Path(__file__).parents[2] / "tuning_logs").glob("*.jsonl"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_line_is_a_record_of_the_machine_the_file_is_named_for(path: Path) -> None:
    log = Database.open(path)
    assert not log.corrupt
    records = log.records()
    assert len(records) == len(path.read_text().splitlines())
    assert {record.hardware for record in records} == {path.stem.rpartition("-")[2]}
    assert {part.rule for r in records if r.plan for part in r.plan.parts()} <= set(LEVELS)


def test_there_are_logs() -> None:
    assert LOGS
