"""The logs that ship with the package can be read by this version, whole, and learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_ext.hardware.catalog import get
from tvm_ext.picker import predict
from tvm_ext.records import Database
from tvm_ext.search import CostModel, lessons
from tvm_ext.search.cost_model import pairwise_accuracy, throughputs
from tvm_ext.tile.legal import LEVELS

FOLDER = Path(__file__).parents[2] / "tuning_logs"
LOGS = sorted(FOLDER.glob("*.jsonl"))
MACHINE = "2454c42f6f35"
TAUGHT = FOLDER / f"cpu-host-{MACHINE}.jsonl"
"""Random plans of single operators, with what the operators are."""


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_line_is_a_record_of_the_machine_the_file_is_named_for(path: Path) -> None:
    log = Database.open(path)
    assert not log.corrupt
    records = log.records()
    assert len(records) + len(log.graphs) == len(path.read_text().splitlines())
    assert {record.hardware for record in records} == {path.stem.rpartition("-")[2]}
    assert {part.rule for r in records if r.plan for part in r.plan.parts()} <= set(LEVELS)


def test_there_are_logs() -> None:
    assert LOGS


def test_the_cost_model_learns_from_a_shipped_log_what_holds_for_other_operators() -> None:
    """Every fifth operator held out; by the performance model alone 75 % of pairs are in order."""
    log = Database.open(TAUGHT)
    hardware = get("cpu/x86-avx2")
    measured = {
        task: {p: us for p, us in log.typical(task, MACHINE).items() if us < float("inf")}
        for task in sorted(log.graphs)
    }
    count = sum(map(len, measured.values()))
    examples = lessons(
        log.graphs, measured, hardware, lambda g, p: predict(g, p, hardware), 0, count
    )
    held_out = set(list(measured)[::5])
    model = CostModel(threads=2)
    model.fit([example for example in examples if example.task not in held_out])
    accuracies = []
    for task in held_out:
        own = [example for example in examples if example.task == task]
        scores = model.scores([example.rows for example in own])
        accuracies.append(pairwise_accuracy(scores, throughputs(own)))
    assert len(examples) > 2000
    assert np.mean(accuracies) > 0.78
