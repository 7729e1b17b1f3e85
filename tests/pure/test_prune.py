"""A pruned log gives the same best plans, and the log it came from is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import elementwise
from test_database import plan, record

from tvm_ext.errors import LogError
from tvm_ext.records.database import Database
from tvm_ext.records.prune import PruneReport, best_plans, prune
from tvm_ext.records.record import TaskGraph, TaskKey, encode_line

OTHER = TaskKey("other", "conv", 10, 10)
HOST = "aaaa00000000"


def write(path: Path, *records, junk: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(encode_line, records)) + junk)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three working plans, a failure, one that failed once, and two more tasks."""
    return write(
        tmp_path / "log.jsonl",
        record(1, 9.0),
        record(2, 5.0),
        record(3, None),
        record(4, 1.0),
        record(4, None),
        record(2, 7.0),
        record(5, 8.0),
        record(1, 3.0, task=OTHER),
        record(9, None, task=OTHER, hardware="bbbb"),
    )


def test_all_records_of_the_best_plan_stay_and_nothing_else(log, tmp_path):
    report = prune(log, tmp_path / "small.jsonl")
    assert report == PruneReport(kept=3, dropped=6, tasks=2, lost=1, corrupt=())
    small = Database.open(tmp_path / "small.jsonl")
    assert small.records() == [record(2, 5.0), record(2, 7.0), record(1, 3.0, task=OTHER)]


def test_the_best_plans_are_what_they_were(log, tmp_path):
    for keep in (1, 2, 9):
        prune(log, tmp_path / f"{keep}.jsonl", keep)
        whole, small = Database.open(log), Database.open(tmp_path / f"{keep}.jsonl")
        for signature in ("sig", "other"):
            assert small.best(signature, HOST) == whole.best(signature, HOST)
            plans = best_plans(whole, signature, HOST, keep)
            latency_us = whole.typical(signature, HOST)
            assert small.typical(signature, HOST) == {p: latency_us[p] for p in plans}


def test_more_plans_are_kept_the_best_first(log):
    database = Database.open(log)
    assert best_plans(database, "sig", HOST, 2) == [plan(2), plan(5)]
    assert best_plans(database, "sig", HOST, 9) == [plan(2), plan(5), plan(1)]
    assert best_plans(database, "other", "bbbb", 9) == []


def test_of_equal_plans_the_earliest_is_kept(tmp_path):
    log = write(tmp_path / "log.jsonl", record(2, 5.0), record(1, 5.0))
    assert prune(log, tmp_path / "small.jsonl").kept == 1
    assert Database.open(tmp_path / "small.jsonl").records() == [record(2, 5.0)]


def test_the_source_is_untouched_and_its_corrupt_lines_named(tmp_path):
    log = write(tmp_path / "log.jsonl", record(1), record(2, 99.0), junk=b"junk\n")
    before = log.read_bytes()
    report = prune(log, tmp_path / "small")
    assert [(line.path, line.line) for line in report.corrupt] == [(log, 3)]
    assert log.read_bytes() == before
    assert [path.name for path in (tmp_path / "small").glob("*.jsonl")] == [
        f"cpu-host-{HOST}.jsonl"
    ]


def test_a_log_with_records_is_never_pruned_into(log, tmp_path):
    before = log.read_bytes()
    for destination in (log, tmp_path):
        with pytest.raises(LogError, match="holds records already; name a new log"):
            prune(log, destination)
    with pytest.raises(LogError, match="no tuning log at"):
        prune(tmp_path / "none", tmp_path / "small")
    assert log.read_bytes() == before
    assert not (tmp_path / "small").exists()


def test_an_empty_log_stays_empty(tmp_path):
    log = write(tmp_path / "log.jsonl")
    assert prune(log, tmp_path / "small") == PruneReport(0, 0, 0, 0, ())
    assert Database.open(tmp_path / "small").records() == []


def test_what_a_kept_task_computes_is_kept_with_it(tmp_path):
    def graph(signature: str) -> TaskGraph:
        return TaskGraph(
            graph=elementwise(64),
            signature=signature,
            hardware=HOST,
            hardware_name="cpu/host",
        )

    lines = [graph("sig"), record(1, 9.0), record(2, 5.0), graph("other"), record(1, None)]
    log = write(tmp_path / "log.jsonl", *lines, record(3, None, task=OTHER))
    report = prune(log, tmp_path / "small.jsonl")
    assert (report.kept, report.dropped, report.tasks, report.lost) == (1, 3, 1, 1)
    wanted = encode_line(graph("sig")) + encode_line(record(2, 5.0))
    assert (tmp_path / "small.jsonl").read_bytes() == wanted
