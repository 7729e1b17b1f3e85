"""The log loses nothing: not to other writers, killed writers, full disks or damaged lines."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from graphs import matmul

from tvm_ext.errors import LogError
from tvm_ext.records import files
from tvm_ext.records.database import Database
from tvm_ext.records.files import told
from tvm_ext.records.record import Record, RecordFailure, TaskGraph, TaskKey, encode_line
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

TILES = (LevelTile("core", Tile((8, 16, 64))), LevelTile("register", Tile((4, 16, 1))))
PRODUCT = TilePlan("tile", 0, TILES, (0, 1, 2), 1, 16)
"""A plan for a product of 8 x 64 by 64 x 16."""


def plan(size: int) -> TilePlan:
    return TilePlan("flat", 0, (LevelTile("core", Tile((size,))),), (0,), 1)


def record(size: int = 1, latency: float | None = 10.0, **changes: object) -> Record:
    """A record of plan `size`; without latency it is a failure."""
    fields = {
        "task": TaskKey("sig", "add", 100, 1200),
        "hardware": "aaaa00000000",
        "hardware_name": "cpu/host",
        "target": "{}",
        "plan": plan(size),
        "latency_us": () if latency is None else (latency,),
        "error": RecordFailure("crash", "SIGSEGV") if latency is None else None,
        "seed": 0,
        "tir_hash": "",
        "versions": {},
        "time": "",
    }
    return Record(**{**fields, **changes})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


# Where a log is


def test_folder_gets_one_file_per_machine(tmp_path):
    folder = tmp_path / "deep" / "logs"
    database = Database.open(folder, create=True)
    database.append([record(1), record(2, hardware="bbbb", hardware_name="cuda/sm_90"), record(3)])
    names = [path.name for path in sorted(folder.glob("*.jsonl"))]
    assert names == ["cpu-host-aaaa00000000.jsonl", "cuda-sm-90-bbbb.jsonl"]
    assert Database.open(folder).records(fingerprint="bbbb") == [
        record(2, hardware="bbbb", hardware_name="cuda/sm_90")
    ]
    assert Database.open(folder / names[0]).records() == [record(1), record(3)]


def test_missing_log_is_said_so_unless_it_is_to_be_made(tmp_path):
    with pytest.raises(LogError, match="no tuning log at"):
        Database.open(tmp_path / "nothing")
    assert Database.open(tmp_path / "nothing", create=True).records() == []


def test_a_new_folder_is_not_called_as_a_file_is(tmp_path):
    with pytest.raises(LogError, match=r"would be a folder; end its name in \.jsonl"):
        Database.open(tmp_path / "log.txt", create=True)
    assert not list(tmp_path.iterdir())
    assert Database.open(tmp_path / "logs.2026", create=True).root.is_dir()


def test_file_that_is_no_log_is_never_touched(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"precious")
    for create in (False, True):
        with pytest.raises(LogError, match="is no tuning log"):
            Database.open(model, create=create)
    with pytest.raises(LogError, match="tuning log"):
        Database.open(model / "below", create=True)
    assert model.read_bytes() == b"precious"


# Queries


def test_best_is_the_lowest_median_of_the_working_plans_of_that_machine(log):
    database = Database.open(log, create=True)
    database.append(
        [
            record(1, latency_us=(1.0, 30.0, 31.0)),
            record(2, latency_us=(20.0, 21.0, 900.0)),
            record(3, latency=None),
            record(4, 5.0, hardware="other"),
            record(5, 5.0, task=TaskKey("sig2", "add", 1, 1)),
        ]
    )
    assert database.best("sig", "aaaa00000000").plan == plan(2)
    dearer = database.best("sig", "aaaa00000000", lambda chosen: 1e6 * (chosen == plan(2)))
    assert dearer.plan == plan(1)
    assert database.best("sig", "other").plan == plan(4)
    assert database.best("sig", "unknown") is None
    assert len(database.records("sig")) == 4
    assert database.records() == Database.open(log).records()


def test_one_measurement_gets_no_credit_for_a_slow_machine(log):
    """Plan 2 seems to take 8 us of a machine as fast as usual, plan 3 took 9 us of a fast one."""
    database = Database.open(log, create=True)
    once = [record(2, 12.0, drift=1.5), record(3, 9.0, drift=0.9), record(4, None, drift=1.5)]
    database.append([record(1, 11.0), *once])
    inf = float("inf")
    typical = {plan(1): 11.0, plan(2): 8.0, plan(3): 10.0, plan(4): inf}
    assert database.typical("sig", "aaaa00000000") == pytest.approx(typical)
    believed = typical | {plan(2): 12.0}
    assert database.believed("sig", "aaaa00000000") == pytest.approx(believed)
    assert database.best("sig", "aaaa00000000").plan == plan(3)
    database.append([record(2, 9.0, drift=1.0)])
    assert database.best("sig", "aaaa00000000").plan == plan(2), "8.5 us, measured twice"


def test_task_with_failures_only_has_no_best(log):
    database = Database.open(log, create=True)
    database.append([record(1, latency=None)])
    assert database.best("sig", "aaaa00000000") is None


def test_measured_holds_every_plan_once_with_its_best_record(log):
    database = Database.open(log, create=True)
    tried = [record(1, 9.0), record(2, None), record(1, 7.0), record(1, None), record(2, 8.0)]
    database.append([*tried, record(3, None), record(4, 1.0, hardware="other")])
    assert database.measured("sig", "aaaa00000000") == {
        plan(1): tried[2],
        plan(2): tried[4],
        plan(3): record(3, None),
    }


def test_hardware_tells_whose_records_these_are(log):
    database = Database.open(log, create=True)
    database.append([record(1), record(2), record(1, hardware="bb", hardware_name="cuda/sm_90")])
    assert database.hardware() == {"aaaa00000000": ("cpu/host", 2), "bb": ("cuda/sm_90", 1)}
    assert database.hardware("another task") == {}


# Damage


def test_corrupt_lines_are_reported_skipped_and_kept(log):
    good = encode_line(record(1))
    newer = b'{"v":9}\n'
    content = good + b"garbage\n" + b"\n" + good[:50] + b"\n" + newer + b"\xff\xfe\n" + good
    log.write_bytes(content)
    database = Database.open(log, create=True)
    assert database.records() == [record(1), record(1)]
    assert [(line.path, line.line) for line in database.corrupt] == [(log, n) for n in (2, 4, 5, 6)]
    assert "format 9 is newer" in str(database.corrupt[2])
    assert str(database.corrupt[0]).startswith(f"{log}:2: not a tuning record")
    database.append([record(2)])
    assert log.read_bytes() == content + encode_line(record(2))


def test_of_many_corrupt_lines_the_first_are_told_and_the_others_counted(log):
    log.write_bytes(b"once upon a time\n" * 500)
    lines = told(Database.open(log).corrupt)
    assert [line.partition(": ")[0] for line in lines[:-1]] == [f"{log}:{n}" for n in (1, 2, 3)]
    assert lines[-1] == "and 497 more"
    assert told(()) == []


DAMAGED = {
    "stage 9 does not exist": {"anchor": 9},
    "stage -1 does not exist": {"anchor": -1},
    "stage 7 does not exist": {"attach": (Attach(7, "core"),)},
    "needs a tile at core": {"tiles": ()},
    "needs a tile at register": {"tiles": (LevelTile("core", Tile((8, 16, 64))),)},
    r"tile \(8,\)": {"tiles": tuple(LevelTile(at, Tile((8,))) for at in ("core", "register"))},
    r"tile \(0, 0, 0\)": {"tiles": (LevelTile("core", Tile((0, 0, 0))), *TILES[1:])},
    r"tile \(-1, 16, 1\)": {"tiles": (TILES[0], LevelTile("register", Tile((-1, 16, 1))))},
    "0 lanes": {"lanes": 0},
    "-2 parallel": {"parallel": -2},
    "0 iterations unrolled": {"unroll": 0},
    "no order": {"order": (0, 0, 0)},
    "rule 'guess' is unknown": {"rule": "guess"},
    "stage 5 does not exist": {"also": (TilePlan("flat", 5, TILES[:1], (0, 1, 2), 1),)},
}


@pytest.mark.parametrize("reason", DAMAGED)
def test_a_plan_that_its_task_cannot_follow_is_a_line_that_is_skipped(log, reason):
    graph = TaskGraph(
        graph=matmul(8, 16, 64), signature="sig", hardware="aaaa00000000", hardware_name="cpu/host"
    )
    right = record(10, latency=20.0, plan=PRODUCT)
    wrong = record(10, plan=msgspec.structs.replace(PRODUCT, **DAMAGED[reason]))
    failed = record(10, latency=None, plan=wrong.plan)
    log.write_bytes(b"".join(map(encode_line, (graph, wrong, right, failed))))
    database = Database.open(log)
    assert database.records() == [right, failed]
    (line,) = database.corrupt
    assert line.line == 2
    assert re.search(f"no plan for its task: .*{reason}", line.reason)


def test_torn_last_line_is_reported_and_nothing_is_glued_to_it(log):
    torn = encode_line(record(1)) + encode_line(record(2))[:-30]
    log.write_bytes(torn)
    database = Database.open(log)
    assert [line.line for line in database.corrupt] == [2]
    database.append([record(3)])
    assert log.read_bytes() == torn + b"\n" + encode_line(record(3))
    for view in (database, Database.open(log)):
        assert view.records() == [record(1), record(3)]
        assert [line.line for line in view.corrupt] == [2]


def test_line_still_being_written_is_read_once_it_is_whole(log):
    line = encode_line(record(1))
    log.write_bytes(line[:40])
    database = Database.open(log)
    assert (database.records(), len(database.corrupt)) == ([], 1)
    log.write_bytes(line + b"bad\n")
    database.reload()
    assert database.records() == [record(1)]
    assert [entry.line for entry in database.corrupt] == [2]


def test_last_line_that_lacks_only_its_end_counts(log):
    log.write_bytes(encode_line(record(1))[:-1])
    database = Database.open(log)
    assert database.records() == [record(1)]
    database.append([record(2)])
    with log.open("ab") as file:
        file.write(b"bad\n")
    database.reload()
    assert database.records() == [record(1), record(2)]
    assert [entry.line for entry in database.corrupt] == [3]


# Several processes


def test_reload_reads_only_what_is_new(log, monkeypatch):
    mine, other = Database.open(log, create=True), Database.open(log, create=True)
    mine.append([record(1), record(2)])
    other.reload()
    decoded = []
    from tvm_ext.records import database as room

    honest = room.decode_line
    monkeypatch.setattr(room, "decode_line", lambda line: decoded.append(line) or honest(line))
    mine.append([record(3)])
    decoded.clear()
    other.reload()
    assert len(decoded) == 1
    assert other.records() == [record(1), record(2), record(3)]
    assert other.best("sig", "aaaa00000000") == record(1)


def test_reload_sees_new_files_and_replaced_ones(tmp_path):
    reader, writer = Database.open(tmp_path), Database.open(tmp_path)
    writer.append([record(1), record(2)])
    reader.reload()
    assert len(reader.records()) == 2
    (path,) = tmp_path.glob("*.jsonl")
    with files.locked(path):
        files.replace(path, encode_line(record(5)) * 10)
    reader.reload()
    assert reader.records() == [record(5)] * 10
    path.unlink()
    reader.reload()
    assert reader.records() == []


WRITER = """
    import sys
    sys.path[:0] = {paths!r}
    from test_database import Database, record
    database = Database.open(sys.argv[1], create=True)
    who, batches, size = map(int, sys.argv[2:])
    for batch in range(batches):
        database.append([record(who * 10**6 + batch * size + n) for n in range(size)])
        print(batch, flush=True)
"""


def start_writer(log: Path, who: int, batches: int, size: int) -> subprocess.Popen[str]:
    script = textwrap.dedent(WRITER).format(paths=[str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", script, str(log), str(who), str(batches), str(size)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_four_writers_on_one_log_lose_nothing(tmp_path):
    writers = [start_writer(tmp_path / "logs", who, 40, 5) for who in range(4)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 4
    for writer in writers:
        writer.stdout.close()
    database = Database.open(tmp_path / "logs")
    assert database.corrupt == ()
    sizes = [entry.plan.at("core").extents[0] for entry in database.records()]
    assert sorted(sizes) == sorted(who * 10**6 + n for who in range(4) for n in range(200))
    for who in range(4):
        assert [s for s in sizes if s // 10**6 == who] == sorted(
            s for s in sizes if s // 10**6 == who
        ), "each writer's order is kept"


def test_killed_writer_loses_nothing_that_it_finished(log):
    chance = random.Random(0)
    finished: list[int] = []
    for who in range(3):
        writer = start_writer(log, who, 10**6, 20)
        assert writer.stdout.readline() == "0\n"
        time.sleep(chance.uniform(0.0, 0.2))
        writer.send_signal(signal.SIGKILL)
        batches = 1 + len(writer.stdout.read().splitlines())
        writer.wait()
        writer.stdout.close()
        finished += [who * 10**6 + n for n in range(20 * (batches - 1))]
    database = Database.open(log)
    database.append([record(7)])
    sizes = {entry.plan.at("core").extents[0] for entry in database.records()}
    assert sizes >= {*finished, 7}
    assert len(database.corrupt) <= 3, "at most one torn line per kill"


# Full disks and other refusals


def test_full_disk_leaves_the_log_as_it_was(log, monkeypatch):
    database = Database.open(log, create=True)
    database.append([record(1)])
    before = log.read_bytes()
    honest = os.write

    def nearly_full(file: int, data: memoryview) -> int:
        if len(data) <= 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return honest(file, data[: len(data) - 100])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        with pytest.raises(LogError, match=r"log\.jsonl: No space left on device"):
            database.append([record(2), record(3)])
    assert log.read_bytes() == before
    assert database.records() == [record(1)]
    database.append([record(4)])
    assert Database.open(log).records() == [record(1), record(4)]


def test_disk_that_fails_to_sync_leaves_the_log_as_it_was(log, monkeypatch):
    database = Database.open(log, create=True)
    database.append([record(1)])

    def refuse(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(LogError, match="Input/output error"):
            database.append([record(2)])
    assert Database.open(log).records() == [record(1)]


def test_log_that_cannot_be_written_is_found_out_at_once(tmp_path, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(LogError, match="Permission denied"):
        Database.open(tmp_path, create=True)


def test_log_that_turned_read_only_gives_a_log_error(log, monkeypatch):
    database = Database.open(log, create=True)
    honest = os.open

    def refuse(path: os.PathLike[str], *rest: int, **options: int) -> int:
        if str(path).endswith(".jsonl"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return honest(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(LogError, match=r"log\.jsonl: Permission denied"):
        database.append([record(1)])


def test_stuck_lock_is_reported_not_waited_for_for_ever(log, monkeypatch):
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.05)
    with files.locked(log), pytest.raises(LogError, match="another process has held its lock"):
        Database.open(log, create=True).append([record(1)])


def test_one_write_and_one_sync_per_batch(log, monkeypatch):
    calls: list[str] = []
    database = Database.open(log, create=True)
    for name in ("write", "fsync"):
        honest = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *a, name=name, honest=honest: calls.append(name) or honest(*a)
        )
    database.append([record(size) for size in range(50)])
    assert calls == ["write", "fsync"]


def test_records_of_different_tasks_in_one_file_do_not_mix(log):
    database = Database.open(log, create=True)
    keys = [TaskKey(f"sig{n}", "add", 1, 1) for n in range(5)]
    database.append([record(n, task=key) for n, key in enumerate(keys)] * 3)
    for n, key in enumerate(keys):
        assert database.records(key.signature, "aaaa00000000") == [record(n, task=key)] * 3
        assert msgspec.structs.asdict(database.best(key.signature, "aaaa00000000"))["task"] == key


def test_a_folder_that_another_tuner_makes_meanwhile_is_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It appears right after the first look at it."""
    root, looked = tmp_path / "logs", []

    def look(path: Path, real: Callable[[Path], bool]) -> bool:
        found = real(path)
        if path == root and not looked:
            looked.append(path)
            root.mkdir()
        return found

    for name in ("exists", "is_dir"):
        real = getattr(Path, name)
        monkeypatch.setattr(Path, name, lambda path, real=real: look(path, real))
    assert not files.is_file_log(root)
    assert looked
