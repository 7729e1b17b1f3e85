"""A record survives its line in the log; a line that holds none says why."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import LogError
from tvm_ext.records.record import (
    VERSION,
    Record,
    RecordFailure,
    TaskKey,
    decode_line,
    encode_line,
)
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

texts = st.text(max_size=20)
counts = st.integers(0, 2**62)
tiles = st.builds(Tile, st.lists(counts, max_size=6).map(tuple))
plans = st.builds(
    TilePlan,
    rule=st.sampled_from(["contract", "rows", "map", "serial"]) | texts,
    anchor=counts,
    tiles=st.lists(st.builds(LevelTile, texts, tiles), max_size=4).map(tuple),
    order=st.lists(counts, max_size=6).map(tuple),
    parallel=counts,
    lanes=counts,
    unroll=counts,
    attach=st.lists(st.builds(Attach, counts, texts), max_size=4).map(tuple),
    instruction=texts,
)
latencies = st.lists(st.floats(min_value=0, allow_nan=False, allow_infinity=False), max_size=8).map(
    tuple
)
records = st.builds(
    Record,
    task=st.builds(TaskKey, texts, texts, counts, counts),
    hardware=texts,
    hardware_name=texts,
    target=texts,
    plan=plans,
    latency_us=latencies,
    error=st.none() | st.builds(RecordFailure, texts, texts),
    seed=counts,
    tir_hash=texts,
    versions=st.dictionaries(texts, texts, max_size=3),
    time=texts,
)


def example(**changes: object) -> Record:
    fields = {
        "task": TaskKey("5f1d", "conv2d+relu", 231211008, 4816896),
        "hardware": "0123456789ab",
        "hardware_name": "cpu/host",
        "target": '{"kind":"llvm"}',
        "plan": TilePlan("contract", 0, (LevelTile("core", Tile((64, 32, 8))),), (0, 1, 2), 1),
        "latency_us": (12.5, 11.0, 90.0),
        "seed": 7,
        "tir_hash": "beef",
        "versions": {"tvm_ext": "0.1.0"},
        "time": "2025-01-31T12:00:00+00:00",
    }
    return Record(**{**fields, **changes})


@given(records)
def test_every_record_comes_back_from_its_line(record):
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == record
    assert hash(decode_line(line).plan) == hash(record.plan)


def test_line_is_plain_json_that_others_can_read():
    told = msgspec.json.decode(encode_line(example()))
    assert next(iter(told)) == "v"
    assert told["v"] == VERSION
    assert told["plan"]["tiles"] == [{"level": "core", "tile": {"extents": [64, 32, 8]}}]
    assert told["latency_us"] == [12.5, 11.0, 90.0]


def test_best_is_the_median_so_that_one_lucky_repeat_does_not_win():
    assert example().best_us == 12.5


def test_failed_record_has_no_latency_to_win_with():
    failed = example(latency_us=(), error=RecordFailure("crash", "SIGSEGV"))
    assert not failed.ok
    assert failed.best_us == float("inf")
    assert not example(latency_us=()).ok
    assert not example(error=RecordFailure("wrong", "element 3")).ok


@pytest.mark.parametrize("latency", [float("inf"), float("nan")])
def test_latency_that_json_cannot_say_is_refused_when_written(latency):
    with pytest.raises(ValueError, match="finite"):
        encode_line(example(latency_us=(1.0, latency)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "truncated"),
        (b"hello", "malformed"),
        (b"\x80\xff\n", "malformed|utf-8"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `task`"),
        (encode_line(example())[:-40], "truncated"),
        (encode_line(example()).replace(b"[64,32,8]", b'"64,32,8"'), r"plan\.tiles"),
        (encode_line(example()).replace(b'"seed":7', b'"seed":"7"'), r"seed"),
    ],
)
def test_line_without_a_record_says_what_is_wrong(line, reason):
    with pytest.raises(LogError, match=f"not a tuning record: .*({reason})"):
        decode_line(line)


@pytest.mark.parametrize("line", [b'{"v": 2, "all": "different"}', None])
def test_newer_format_is_told_apart_from_a_damaged_line(line):
    with pytest.raises(LogError, match=r"format 2 is newer than 1.*upgrade tvm_ext"):
        decode_line(line or encode_line(example(v=2)))


def test_fields_added_by_a_later_writer_are_ignored():
    line = encode_line(example())[:-2] + b',"mood":"fine"}\n'
    assert decode_line(line) == example()
