"""Plans as MetaSchedule records: TVM replays them without us, and ours come back as they were."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_strassen import program
from test_transpose import plan_of, scores
from test_tune_tir import matmul

from tvm_ext.errors import LogError
from tvm_ext.flow import hardware_for
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.metaschedule import MARK, RECORDS, WORKLOADS, stock, workload_of
from tvm_ext.metaschedule_export import export
from tvm_ext.metaschedule_import import read
from tvm_ext.picker import pick
from tvm_ext.planner import Task, make_task
from tvm_ext.records import Database, Record, TaskKey
from tvm_ext.records.exchange import ExportedTask, add_missing
from tvm_ext.report.log_changes import export_text, foreign_text
from tvm_ext.tile import LevelTile, Tile, TilePlan
from tvm_ext.tile.plan import Attach
from tvm_ext.tvm_api import PrimFunc, Target, s_tir, te


@dataclass(frozen=True)
class Logged:
    """A task with plans in a log, none of them measured."""

    task: Task
    log: Database
    hardware: HardwareModel

    def add(self, plan: TilePlan, *latency_us: float) -> Record:
        record = Record(
            task=TaskKey(self.task.signature, self.task.kind, 7, 7),
            hardware=self.hardware.fingerprint(),
            hardware_name=self.hardware.name,
            target=str(Target(self.hardware.target)),
            plan=plan,
            latency_us=latency_us,
            seed=0,
            tir_hash="",
            versions={"tvm": '0.27 "quoted" \\ é'},
            time="",
        )
        self.log.append([record])
        return record

    def best_plan(self) -> TilePlan:
        assert self.task.graph is not None
        return pick(self.task.graph, self.hardware, 1)[0].plan

    def export(self, folder: Path) -> ExportedTask:
        (entry,) = export([self.task], self.log, self.hardware, folder)
        return entry


@pytest.fixture(autouse=True)
def replays_as_fast_as_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's latencies are made up here: no replay is to be found slow beside them."""
    monkeypatch.setattr("tvm_ext.metaschedule_export._latency_us", lambda *_: 1.0)


def logged(func: PrimFunc, tmp_path: Path) -> Logged:
    log = Database.open(tmp_path / "log.jsonl", create=True)
    return Logged(make_task(func, "main"), log, hardware_for("cpu", 2))


@pytest.fixture
def product(tmp_path: Path) -> Logged:
    return logged(matmul(48, 64, 40), tmp_path)


def grouped(groups: int, inputs: int, outputs: int) -> PrimFunc:
    """A convolution in groups whose channels are not apart: its writer turns a block's axes."""
    x, w = te.placeholder((1, 9, 9, inputs)), te.placeholder((3, 3, inputs // groups, outputs))
    c, k, m = (te.reduce_axis((0, extent)) for extent in (inputs // groups, 3, 3))
    each, own = outputs // groups, inputs // groups
    y = te.compute(
        (1, 7, 7, outputs),
        lambda n, i, j, o: te.sum(
            x[n, i + k, j + m, o // each * own + c] * w[k, m, c, o], axis=[c, k, m]
        ),
    )
    return te.create_prim_func([x, w, y])


def pointwise(biased: bool) -> PrimFunc:
    """A 1x1 convolution of three images of 5 x 7, perhaps with a bias."""
    x, w, b = te.placeholder((3, 5, 7, 24)), te.placeholder((24, 32)), te.placeholder((32,))
    c = te.reduce_axis((0, 24))
    y = te.compute((3, 5, 7, 32), lambda n, i, j, o: te.sum(x[n, i, j, c] * w[c, o], axis=c))
    if not biased:
        return te.create_prim_func([x, w, y])
    z = te.compute(y.shape, lambda n, i, j, o: y[n, i, j, o] + b[o])
    return te.create_prim_func([x, w, b, z])


def padded(rows: int) -> PrimFunc:
    """A sum over windows of a padded input, of its exponentials."""
    x = te.placeholder((rows, 64))
    pad = te.compute(
        (rows + 2, 64), lambda i, j: te.if_then_else(te.all(i >= 1, i <= rows), x[i - 1, j], 0.0)
    )
    k = te.reduce_axis((0, 3))
    total = te.compute((rows, 64), lambda i, j: te.sum(pad[i + k, j], axis=k))
    return te.create_prim_func([x, te.compute((rows, 64), lambda i, j: te.exp(total[i, j]))])


# Out


REPLAY = """
import sys
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule

database = meta_schedule.database.JSONDatabase(work_dir=sys.argv[1], allow_missing=False)
(record,) = database.get_all_tuning_records()
func = record.workload.mod["main"]
schedule = meta_schedule.tir_integration.compile_tir(database, func, record.target)
assert schedule.mod["main"].script() != func.script()
with record.target:
    applied = relax.transform.MetaScheduleApplyDatabase(sys.argv[1])(tvm.IRModule({"f": func}))
assert int(applied["f"].attrs["tirx.is_scheduled"]) == 1
kernel = tvm.compile(
    tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}), record.target
)
a, b = (np.load(f"{sys.argv[1]}/{name}.npy") for name in "ab")
y = tvm.runtime.empty((a.shape[0], b.shape[1]), "float32")
kernel.jit()["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), y)
np.testing.assert_allclose(y.numpy(), a @ b, rtol=1e-4, atol=1e-4)
assert "tvm_ext" not in sys.modules
"""


def test_tvm_replays_a_record_without_us(product: Logged, tmp_path: Path) -> None:
    product.add(product.best_plan(), 5.0, 7.0)
    folder = tmp_path / "database"
    entry = product.export(folder)
    assert (entry.plan, entry.latency_us, entry.verified) == (product.best_plan(), 6.0, True)
    assert entry.reasons == ()
    random = np.random.default_rng(0)
    for name, shape in {"a": (48, 40), "b": (40, 64)}.items():
        np.save(folder / f"{name}.npy", random.standard_normal(shape, dtype=np.float32))
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_latencies_are_seconds_of_every_repeat(product: Logged, tmp_path: Path) -> None:
    product.add(product.best_plan(), 5.0, 7.0)
    product.add(product.best_plan(), 6.0)
    product.export(tmp_path / "database")
    (line,) = (tmp_path / "database" / RECORDS).read_text().splitlines()
    assert json.loads(line)[1][1] == pytest.approx([5e-6, 7e-6, 6e-6])


@pytest.mark.parametrize("groups", [2, 4])
def test_turned_axes_of_a_block_are_exported(groups: int, tmp_path: Path) -> None:
    conv = logged(grouped(groups, 16, 64), tmp_path)
    conv.add(conv.best_plan(), 5.0)
    assert conv.export(tmp_path / "database").verified
    assert "TransformBlockLayout" in (tmp_path / "database" / RECORDS).read_text()


@pytest.mark.parametrize("biased", [False, True])
def test_joined_axes_are_exported(biased: bool, tmp_path: Path) -> None:
    conv = logged(pointwise(biased), tmp_path)
    plan = conv.best_plan()
    assert plan.at("core").extents[0] > 3, "pixels of several images are one axis"
    conv.add(plan, 5.0)
    assert conv.export(tmp_path / "database").verified


def grouped_apart(groups: int, inputs: int, outputs: int) -> PrimFunc:
    """A convolution whose groups are an axis of their own, with a bias by channel behind it."""
    own, each = inputs // groups, outputs // groups
    x, w = te.placeholder((1, 9, 9, groups, own)), te.placeholder((groups, 3, 3, own, each))
    b = te.placeholder((outputs,))
    c, k, m = (te.reduce_axis((0, extent)) for extent in (own, 3, 3))
    y = te.compute(
        (1, 7, 7, groups, each),
        lambda n, i, j, g, o: te.sum(x[n, i + k, j + m, g, c] * w[g, k, m, c, o], axis=[c, k, m]),
    )
    z = te.compute((1, 7, 7, outputs), lambda n, i, j, o: y[n, i, j, o // each, o % each] + b[o])
    return te.create_prim_func([x, w, b, z])


def test_channels_in_groups_are_exported(tmp_path: Path) -> None:
    conv = logged(grouped_apart(4, 24, 136), tmp_path)
    conv.add(conv.best_plan(), 5.0)
    assert conv.export(tmp_path / "database").verified


@pytest.mark.parametrize("name", ["odd", "images of odd rows"])
def test_products_of_quarters_are_exported(name: str, tmp_path: Path) -> None:
    quarters = logged(program(name), tmp_path)
    plan = quarters.best_plan()
    assert plan.rule == "strassen"
    quarters.add(plan, 5.0)
    assert quarters.export(tmp_path / "database").verified


def test_what_no_primitive_says_is_left_out_and_named(tmp_path: Path) -> None:
    sums = logged(padded(30), tmp_path)
    others = [entry for entry in sums.best_plan().attach if entry.stage != 0]
    in_place = [*others, Attach(0, "register")]
    sums.add(msgspec.structs.replace(sums.best_plan(), attach=tuple(in_place)), 5.0)
    entry = sums.export(tmp_path / "sums")
    assert entry.verified
    assert entry.left_out == ("vector maths", "padding read in place")


def test_a_transposition_by_squares_is_one_by_loops(tmp_path: Path) -> None:
    func = scores(32, 2, 32)
    turned = logged(func, tmp_path)
    turned.add(plan_of(func, "cpu/x86-avx512"), 5.0)
    entry = turned.export(tmp_path / "turned")
    assert entry.verified
    assert "transposition by squares of vectors" in entry.left_out


def test_the_best_plan_that_can_be_said_is_taken(product: Logged, tmp_path: Path) -> None:
    good = product.best_plan()
    odd = msgspec.structs.replace(good, tiles=(LevelTile("core", Tile((3, 3))),))
    product.add(odd, 1.0)
    product.add(good, 9.0)
    entry = product.export(tmp_path / "database")
    assert (entry.plan, entry.latency_us, len(entry.reasons)) == (good, 9.0, 1)
    assert entry.reasons[0].startswith("plan of 1 us, PlanError")


def test_a_task_none_of_whose_plans_can_be_said_has_one_of_whole_tiles(
    product: Logged, tmp_path: Path
) -> None:
    odd = msgspec.structs.replace(product.best_plan(), tiles=(LevelTile("core", Tile((3, 3))),))
    product.add(odd, 1.0)
    entry = product.export(tmp_path / "database")
    assert (entry.verified, entry.picked) == (True, True)
    assert entry.reasons[0].startswith("plan of 1 us, PlanError")


def test_of_plans_near_the_best_the_fastest_replay_is_taken(
    product: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may live by what our compiler does around its schedule."""
    assert product.task.graph is not None
    near, other, far = (one.plan for one in pick(product.task.graph, product.hardware, 3))
    for plan, own_us in ((near, 5.0), (other, 6.0), (far, 7.0)):
        product.add(plan, own_us)
    replays_us = iter([9.0, 6.5, 8.0, 8.0, 8.0, 8.0])
    monkeypatch.setattr("tvm_ext.metaschedule_export._latency_us", lambda *_: next(replays_us))
    entry = product.export(tmp_path / "database")
    assert (entry.plan, entry.latency_us, entry.replay_us) == (other, 6.0, 6.5)
    assert entry.reasons == ("plan of 5 us, replayed in 9",)


def test_a_plan_of_whole_tiles_stands_for_one_that_replays_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """55 rows by 14 leave a tail that only our compiler moves back; by 11 they leave none."""
    rows = logged(matmul(55, 64, 40), tmp_path)
    register = Tile((14, 32, 4))
    tail = msgspec.structs.replace(
        rows.best_plan(),
        tiles=(LevelTile("core", Tile((55, 64, 40))), LevelTile("register", register)),
    )
    rows.add(tail, 5.0)
    replays_us = iter([9.0, 5.2])
    monkeypatch.setattr("tvm_ext.metaschedule_export._latency_us", lambda *_: next(replays_us))
    entry = rows.export(tmp_path / "database")
    assert entry.plan is not None
    assert 55 % entry.plan.at("register").extents[0] == 0
    assert (entry.picked, entry.latency_us, entry.replay_us) == (True, 5.0, 5.2)
    assert entry.reasons == ("plan of 5 us, replayed in 9",)
    (found,) = read(tmp_path / "database")
    assert (found.records, found.latency_us) == ((), pytest.approx(5.2))
    assert "the picker's plan of whole tiles" in export_text([entry])


def test_a_kernel_that_is_not_right_stays_behind(
    product: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product.add(product.best_plan(), 5.0)
    monkeypatch.setattr("tvm_ext.metaschedule_export.check", lambda *_: "output 0: 1, not 2")
    with pytest.raises(LogError, match=r"none of its plans can be exported; .*NotRight: output 0"):
        product.export(tmp_path / "database")
    assert not (tmp_path / "database").exists()


def test_tasks_without_a_plan_are_listed(product: Logged, tmp_path: Path) -> None:
    other = make_task(matmul(8, 8, 8), "other")
    with pytest.raises(LogError, match=r"no plan for any of 1 kernels on hardware .*; tune"):
        product.export(tmp_path / "database")
    product.add(product.best_plan(), 5.0)
    found = export([other, product.task], product.log, product.hardware, tmp_path / "database")
    assert [entry.plan is None for entry in found] == [True, False]
    assert (found[0].latency_us, found[0].reasons) == (
        inf,
        ("no plan in the log that works on this hardware",),
    )


def test_functions_that_differ_in_attributes_have_a_record_each(
    product: Logged, tmp_path: Path
) -> None:
    product.add(product.best_plan(), 5.0)
    func = product.task.original
    same, marked = make_task(func, "same"), make_task(func.with_attr("op_pattern", 4), "marked")
    assert marked.signature == product.task.signature
    tasks = [product.task, same, marked]
    found = export(tasks, product.log, product.hardware, tmp_path / "database")
    assert [entry.verified for entry in found] == [True, True]
    assert [bool(entry.records) for entry in read(tmp_path / "database")] == [True, True]


def test_a_database_is_never_written_over(product: Logged, tmp_path: Path) -> None:
    product.add(product.best_plan(), 5.0)
    product.export(tmp_path / "database")
    with pytest.raises(LogError, match="holds a MetaSchedule database already; name a new one"):
        product.export(tmp_path / "database")
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="file"):
        product.export(tmp_path / "file")


def test_a_database_that_cannot_be_read_back_is_taken_away(
    product: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which TVM's writer does not notice."""
    product.add(product.best_plan(), 5.0)
    monkeypatch.setattr(stock().database.JSONDatabase, "commit_tuning_record", lambda *_: None)
    with pytest.raises(LogError, match=r"0 of 1 records can be read\); is the disk full"):
        product.export(tmp_path / "database")
    assert list((tmp_path / "database").iterdir()) == []


# Back in


@pytest.fixture
def exported(product: Logged, tmp_path: Path) -> Path:
    product.add(product.best_plan(), 5.0, 7.0)
    product.add(product.best_plan(), 6.0)
    product.export(tmp_path / "database")
    return tmp_path / "database"


def edit(folder: Path, change: Any) -> None:
    """Changes the first line of the file of records, as plain data."""
    path = folder / RECORDS
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(change(json.loads(first))), *rest]) + "\n")


def test_what_we_exported_comes_back_as_it_was(
    exported: Path, product: Logged, tmp_path: Path
) -> None:
    (entry,) = read(exported)
    assert (entry.line, entry.reason) == (1, "")
    assert list(entry.records) == product.log.records()
    assert entry.latency_us == pytest.approx(6.0)
    fresh = Database.open(tmp_path / "fresh", create=True)
    assert [add_missing(fresh, entry.records) for _ in range(2)] == [2, 0]
    assert fresh.records() == product.log.records()


def test_a_record_of_another_tuner_says_why_it_is_no_plan(exported: Path) -> None:
    database = stock().database
    workload = database.Workload(workload_of(matmul(48, 64, 40)))
    schedules = [s_tir.Schedule(workload.mod) for _ in range(2)]
    for schedule in schedules:
        row = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[0])[0]
        factors = schedule.sample_perfect_tile(row, 2) if schedule is schedules[0] else [None, 4]
        schedule.split(row, factors)
    both = database.JSONDatabase(work_dir=str(exported))
    for schedule, seconds in zip(schedules, ([1e-6], [1e10]), strict=True):
        both.commit_tuning_record(
            database.TuningRecord(schedule.trace, workload, seconds, Target("llvm"), [])
        )
    own, drawn, split = read(exported)
    assert own.records
    assert "MetaSchedule's own loop structure (SamplePerfectTile)" in drawn.reason
    assert drawn.latency_us == pytest.approx(1.0)
    assert split.reason == "a schedule that no plan of ours is written as"
    assert split.latency_us == inf


def test_a_trace_that_is_not_its_plan_is_not_believed(exported: Path) -> None:
    def less(line: Any) -> Any:
        steps = line[1][0][0]
        del steps[next(i for i, step in enumerate(steps) if step[0] == "Unroll")]
        return line

    edit(exported, less)
    (entry,) = read(exported)
    assert entry.records == ()
    assert "its steps are not those" in entry.reason


def test_the_records_of_another_task_are_not_believed(exported: Path, product: Logged) -> None:
    mark = product.task.signature
    path = exported / RECORDS
    path.write_text(path.read_text().replace(mark, "0" * len(mark)))
    (entry,) = read(exported)
    assert (entry.records, entry.reason) == (
        (),
        f"{MARK} names another task than its workload is",
    )


def test_damaged_lines_are_entries_that_say_so(exported: Path) -> None:
    path = exported / RECORDS
    whole = path.read_text()
    path.write_text(whole + whole[:90] + "\n\n" + whole.replace("[0,", "[7,", 1) + "[0, [[[1]]]]\n")
    good, torn, beyond, short = read(exported)
    assert good.records
    assert "not a tuning record" in torn.reason
    assert beyond.reason == "workload 7: the database has 1"
    assert "not a tuning record" in short.reason
    assert [entry.line for entry in (good, torn, beyond, short)] == [1, 2, 4, 5]
    text = foreign_text([good, good, torn])
    assert re.search(r" 0 +compute +2 +6.00 +tile core", text)
    assert "none: not a tuning record" in text
    (exported / WORKLOADS).write_text('["1", "AAAA"]\n')
    assert read(exported)[0].reason.startswith("this TVM cannot read its workload")


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=f"no MetaSchedule database, {WORKLOADS} is missing"):
        read(tmp_path)
