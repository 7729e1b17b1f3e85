"""The commands and tuning logs: looking into them, and logs that are not as they should be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_case import TRIALS, Command, Tuned, answer, good, refused

from tvm_ext.records.record import Record, decode_line


def test_logs_show(command: Command, tuned: Tuned) -> None:
    data = answer(command("logs", "show", tuned.log, "--json"))
    assert data["records"] == len(tuned.lines)
    assert sum(task["records"] for task in data["tasks"]) == len(tuned.lines)
    text = good(command("logs", "show", tuned.log)).stdout
    task = max(data["tasks"], key=lambda task: task["records"])
    for entry in data["tasks"]:
        assert entry["signature"] in text
    listed = answer(command("logs", "show", tuned.file, "--task", task["signature"], "--json"))
    assert len(listed["records"]) == task["records"]
    lines = good(command("logs", "show", tuned.file, "--task", task["signature"][:8])).stdout
    assert f"{task['records']} records" in lines
    assert lines.count("cpu/host") == task["records"]
    refused(command("logs", "show", tuned.log, "--task", "nothing"), task["signature"])


def test_logs_best(command: Command, tuned: Tuned) -> None:
    data = answer(command("logs", "best", tuned.log, "--json"))
    records = [decode_line(line) for line in tuned.lines]
    for task in data["tasks"]:
        mine = [record for record in records if record.task.signature == task["signature"]]
        assert task["best_us"] == min(record.best_us for record in mine)
    assert "register(" in good(command("logs", "best", tuned.log)).stdout


def test_logs_merge(command: Command, tuned: Tuned, tmp_path: Path) -> None:
    half, whole = tmp_path / "half.jsonl", tmp_path / "all"
    half.write_bytes(b"".join(line + b"\n" for line in tuned.lines[:4]))
    some, all_of_them = set(tuned.lines[:4]), set(tuned.lines)  # equal readings are one record
    data = answer(command("logs", "merge", half, whole, "--json"))
    assert (data["added"], data["duplicates"]) == (len(some), 4 - len(some))
    said = good(command("logs", "merge", half, tuned.log, whole)).stdout
    assert f"{len(all_of_them - some)} records added" in said
    merged = (whole / tuned.file.name).read_bytes().splitlines()
    assert sorted(merged) == sorted(set(tuned.text.splitlines()))
    refused(command("logs", "merge", tmp_path / "none", whole), "no tuning log")
    refused(command("logs", "merge", half), "DEST")


def test_logs_prune_and_diff(command: Command, tuned: Tuned, tmp_path: Path) -> None:
    small = tmp_path / "small"
    data = answer(command("logs", "prune", tuned.log, small, "--json"))
    records = [line for line in map(decode_line, tuned.lines) if isinstance(line, Record)]
    tasks = {record.task.signature for record in records}
    assert data["kept"] + data["dropped"] == len(records)
    assert (data["tasks"], data["lost"]) == (len(tasks), 0)
    more = good(command("logs", "prune", tuned.file, tmp_path / "more", "--keep", "99")).stdout
    assert "0 dropped: the 99 best plans" in more
    refused(command("logs", "prune", tuned.log, small), "holds records already")
    refused(command("logs", "prune", tuned.log, tmp_path / "new", "--keep", "0"), "--keep")
    refused(command("logs", "prune", tmp_path / "none", tmp_path / "new"), "no tuning log")

    said = good(command("logs", "diff", tuned.log, small)).stdout
    assert f"1.00x over {len(tasks)} tasks that both logs have" in said
    assert said.count("same plan") == len(tasks)
    data = answer(command("logs", "diff", small, tuned.log, "--json"))
    assert data["geomean"] == pytest.approx(1.0)
    assert {task["task"]["signature"] for task in data["tasks"]} == tasks
    assert all(task["speedup"] == pytest.approx(1.0) for task in data["tasks"])
    refused(command("logs", "diff", tuned.log, tmp_path / "none"), "no tuning log")


def test_logs_export_and_import(command: Command, tuned: Tuned, tmp_path: Path) -> None:
    folder, back = tmp_path / "database", tmp_path / "back"
    model, shape = tuned.words[0], tuned.words[1:3]
    out = ("logs", "export", model, *shape, "--log", tuned.log, "--to", "metaschedule", folder)
    data = answer(command(*out, "--json"))
    assert data["exported"] == data["verified"] == len(data["tasks"]) > 0
    assert all("32-bit indices" in task["left_out"] for task in data["tasks"])
    refused(command(*out), "holds a MetaSchedule database already")
    refused(command(*out[:-2], "ansor", tmp_path / "other"), "metaschedule")

    bring = ("logs", "import", "--from", "metaschedule", folder, "--log", back)
    ours = sum(not task["picked"] for task in data["tasks"])  # others replay faster here
    assert f"{ours} of them plans of ours" in good(command(*bring)).stdout
    assert answer(command(*bring, "--json"))["added"] == 0
    if ours:
        said = good(command("logs", "diff", tuned.log, back)).stdout
        assert f"over {ours} tasks that both logs have" in said
    refused(command("logs", "import", "--from", "metaschedule", tuned.log), "is missing")


def test_an_export_needs_plans_of_this_machine(
    command: Command, tuned: Tuned, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.jsonl"
    own = decode_line(tuned.lines[0]).hardware
    foreign.write_bytes(tuned.file.read_bytes().replace(own.encode(), b"0badc0ffee00"))
    words = (*tuned.words[:3], "--log", foreign, "--to", "metaschedule", tmp_path / "database")
    refused(command("logs", "export", *words), "no plan for any", own, "tune the model")
    assert not (tmp_path / "database").exists()


@pytest.fixture
def torn_log(tuned: Tuned, tmp_path: Path) -> Path:
    """The log with a corrupt second line."""
    log = shutil.copytree(tuned.log, tmp_path / "torn")
    lines = [tuned.lines[0], tuned.lines[1][:40], *tuned.lines[1:]]
    (log / tuned.file.name).write_bytes(b"".join(line + b"\n" for line in lines))
    return log


def test_a_corrupt_line_is_reported_skipped_and_kept(
    command: Command, tuned: Tuned, torn_log: Path, tmp_path: Path
) -> None:
    file = torn_log / tuned.file.name
    before = file.read_bytes()
    where = f"{file}:2: not a tuning record"
    words = [*tuned.words[:3], "--log", torn_log, "-o", tmp_path / "m.so"]
    assert where in good(command("compile", *words)).stdout
    assert where in good(command("replay", *words, "--strict")).stdout
    assert where in good(command("logs", "show", torn_log)).stdout
    data = answer(command("logs", "best", torn_log, "--json"))
    assert [(line["path"], line["line"]) for line in data["corrupt"]] == [(str(file), 2)]
    assert file.read_bytes() == before


def test_tuning_keeps_a_corrupt_line_and_ends_in_time(
    command: Command, tuned: Tuned, torn_log: Path, tmp_path: Path
) -> None:
    file = torn_log / tuned.file.name
    before = file.read_bytes()
    words = [*tuned.words[:3], "--log", torn_log, "-o", tmp_path / "m.so", "--json"]
    data = answer(command("tune", *words, "--time", "5s"))
    assert int(TRIALS) < data["trials"] < 5000, "time is the limit, not a number of trials"
    assert file.read_bytes().startswith(before)


def test_records_of_other_hardware_are_not_used(
    command: Command, tuned: Tuned, tmp_path: Path
) -> None:
    own = decode_line(tuned.lines[0]).hardware
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_bytes(tuned.file.read_bytes().replace(own.encode(), b"0badc0ffee00"))
    words = [*tuned.words[:3], "--log", foreign, "-o", tmp_path / "m.so"]
    data = answer(command("compile", *words, "--json"))
    assert data["kernels"]["log"] == 0
    (note,) = [note for note in data["notes"] if "other hardware" in note]
    assert "0badc0ffee00" in note
    assert own in note
    refused(command("replay", *words, "--strict"), "no record", own)


def test_a_miss_is_listed_and_strict_refuses_it(
    command: Command, tuned: Tuned, tmp_path: Path
) -> None:
    missing = decode_line(tuned.lines[0]).task
    log = tmp_path / "most.jsonl"
    kept = [line for line in tuned.lines if missing.signature.encode() not in line]
    log.write_bytes(b"".join(line + b"\n" for line in kept))
    path = tmp_path / "m.so"
    words = [*tuned.words[:3], "--log", log, "-o", path]
    refused(command("replay", *words, "--strict"), "no record", missing.kind)
    assert not path.exists()
    said = good(command("replay", *words)).stdout
    assert "nothing was measured" in said
    assert f"  1 x {missing.kind}" in said[said.index("misses    1 of") :]
    assert path.is_file()
