"""Merging adds every record once, keeps the order, and damages nothing."""

from __future__ import annotations

import errno
import os

import pytest
from test_database import record

from tvm_ext.errors import LogError
from tvm_ext.records.database import Database
from tvm_ext.records.merge import MergeReport, merge
from tvm_ext.records.record import encode_line


def write(path, *records, junk: bytes = b""):
    path.write_bytes(b"".join(map(encode_line, records)) + junk)
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_each_record_once_in_the_order_given(tmp_path):
    a = write(tmp_path / "a.jsonl", record(1), record(2), record(1))
    b = write(tmp_path / "b.jsonl", record(3), record(2), record(1, latency=11.0))
    report = merge([a, b], tmp_path / "out.jsonl")
    assert report == MergeReport(added=4, duplicates=2, corrupt=())
    merged = Database.open(tmp_path / "out.jsonl").records()
    assert merged == [record(1), record(2), record(3), record(1, latency=11.0)]


def test_sources_are_untouched_and_their_corrupt_lines_named(tmp_path):
    (tmp_path / "sources").mkdir()
    a = write(
        tmp_path / "sources" / "a.jsonl", record(1), junk=b"junk\n\n" + encode_line(record(2))
    )
    b = write(tmp_path / "sources" / "b.jsonl", record(3), junk=b'{"v":9}\ntorn')
    before = contents(tmp_path / "sources")
    report = merge([a, b], tmp_path / "out.jsonl")
    assert [(line.path, line.line) for line in report.corrupt] == [(a, 2), (b, 2), (b, 3)]
    assert contents(tmp_path / "sources") == before
    out = Database.open(tmp_path / "out.jsonl")
    assert (out.records(), out.corrupt) == ([record(1), record(2), record(3)], ())


def test_what_the_destination_holds_stays_first_with_its_corrupt_lines(tmp_path):
    source = write(tmp_path / "a.jsonl", record(1), record(2))
    out = write(tmp_path / "out.jsonl", record(9), junk=b"kept as it is\n" + encode_line(record(2)))
    held = out.read_bytes()
    assert merge([source], out) == MergeReport(added=1, duplicates=1, corrupt=())
    assert out.read_bytes() == held + encode_line(record(1))


def test_merging_twice_changes_nothing(tmp_path):
    source = write(tmp_path / "a.jsonl", record(1), record(2))
    merge([source], tmp_path / "out.jsonl")
    before = (tmp_path / "out.jsonl").read_bytes()
    assert merge([source], tmp_path / "out.jsonl").added == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_destination_among_the_sources_is_no_duplicate_of_itself(tmp_path):
    a = write(tmp_path / "a.jsonl", record(1), record(2))
    b = write(tmp_path / "b.jsonl", record(3))
    assert merge([a, b], a) == MergeReport(added=1, duplicates=0, corrupt=())
    assert Database.open(a).records() == [record(1), record(2), record(3)]


def test_folder_destination_sorts_records_by_machine(tmp_path):
    mixed = write(
        tmp_path / "mixed.jsonl",
        record(1),
        record(2, hardware="bb", hardware_name="cuda/sm_90"),
        record(3),
    )
    assert merge([mixed], tmp_path / "logs").added == 3
    assert sorted(path.name for path in (tmp_path / "logs").glob("*.jsonl")) == [
        "cpu-host-aaaa00000000.jsonl",
        "cuda-sm-90-bb.jsonl",
    ]
    assert merge([tmp_path / "logs"], tmp_path / "one.jsonl").added == 3


def test_missing_source_stops_the_merge_before_it_begins(tmp_path):
    a = write(tmp_path / "a.jsonl", record(1))
    with pytest.raises(LogError, match=r"no tuning log at .*missing"):
        merge([a, tmp_path / "missing"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_full_disk_leaves_the_destination_as_it_was(tmp_path, monkeypatch):
    a = write(tmp_path / "a.jsonl", record(1))
    (tmp_path / "logs").mkdir()
    out = write(tmp_path / "logs" / "out.jsonl", record(2))
    merge([out], out)
    before = contents(tmp_path / "logs")

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LogError, match=r"out\.jsonl: No space left"):
        merge([a], out)
    left = contents(tmp_path / "logs")
    assert left.pop(".out.jsonl.lock") == b""
    assert left == before


def test_records_appended_after_a_merge_are_not_lost(tmp_path):
    out = tmp_path / "out.jsonl"
    tuner = Database.open(out, create=True)
    tuner.append([record(1)])
    merge([write(tmp_path / "a.jsonl", record(2))], out)
    tuner.append([record(3)])
    assert tuner.records() == [record(1), record(2), record(3)]
