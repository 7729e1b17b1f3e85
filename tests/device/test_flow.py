"""The public interface end to end, on small models: compile, tune, replay, save, load."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tvm
from tiny import X, assert_close, reference, saved

import tvm_ext
from tvm_ext import assembly, flow, trials
from tvm_ext.cli.compile import main
from tvm_ext.errors import (
    ArgumentError,
    ArtifactError,
    InputError,
    LogError,
    ModelError,
    ShapeError,
    TargetError,
    VerifyError,
)
from tvm_ext.flow import hardware_for, lower
from tvm_ext.hardware import get
from tvm_ext.records import Database
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.machine import tensor
from tvm_ext.source import read_source

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def compiled(model: Path) -> Compiled:
    return tvm_ext.compile(str(model))


@pytest.fixture(scope="module")
def log(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a record for every kernel of the model."""
    path = tmp_path_factory.mktemp("log")
    tvm_ext.tune(str(model), trials=14, log=path)
    return path


def test_matches_onnxruntime_however_inputs_are_given(model: Path, compiled: Compiled) -> None:
    expected = reference(model)
    assert_close(compiled({"x": X}), expected)
    assert_close(compiled(X), expected)
    assert_close(compiled(x=X), expected)
    assert_close(compiled(np.asfortranarray(X)), expected)


def test_every_kernel_is_planned_verified_and_reported(compiled: Compiled) -> None:
    groups = compiled.manifest.groups
    assert {group.source for group in groups} == {"picker"}
    assert all(group.verified and group.plan is not None for group in groups)
    text = str(compiled.report)
    assert all(group.kind in text for group in groups)
    assert compiled.report.to_dict()["code_hash"] == compiled.manifest.code_hash


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"y": X},), "no such input"),
        ((), "not given"),
        ((X, X), "2 given"),
        ((X.astype("float64"),), "dtype float64, the model takes float32; convert it with .astype"),
        ((X.tolist(),), "convert it with numpy.asarray(x).astype('float32')"),
        (([[1.0, 2.0], [3.0]],), "list is no array of numbers; give a numpy array of float32"),
        ((None,), "NoneType is no array of numbers"),
        (("image.png",), "str is no array of numbers"),
        ((tensor(X),), "Tensor is no array of numbers"),
        ((X[:, :, :5],), "shape (1, 3, 5, 17)"),
    ],
)
def test_wrong_inputs(compiled: Compiled, arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(InputError, match="input") as error:
        compiled(*arguments)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_same_model_gives_the_same_code(model: Path, compiled: Compiled) -> None:
    again = tvm_ext.compile(onnx.load(str(model)))
    assert again.manifest.code_hash == compiled.manifest.code_hash
    assert [g.plan for g in again.manifest.groups] == [g.plan for g in compiled.manifest.groups]


def test_threads_compile_one_after_another(model: Path, compiled: Compiled) -> None:
    """TVM's state is that of the process: passes in two threads failed at random."""

    def made(_: int) -> Compiled:
        return tvm_ext.compile(str(model))

    with ThreadPoolExecutor(3) as pool:
        several = list(pool.map(made, range(3)))
    assert {one.manifest.code_hash for one in several} == {compiled.manifest.code_hash}
    assert not any(one.manifest.notes for one in several)


@tvm.transform.module_pass(opt_level=0, name="Interrupted")
def interrupted(mod: tvm.IRModule, context: object) -> tvm.IRModule:
    raise KeyboardInterrupt


def test_an_interrupt_inside_a_pass_is_none_of_its_failures(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM made a RuntimeError of it: the pass was left out, and the compile went on."""
    monkeypatch.setattr(flow, "graph_passes", lambda *_, **__: [interrupted])
    monkeypatch.delenv("TVM_EXT_STRICT")
    with pytest.raises(KeyboardInterrupt):
        tvm_ext.compile(str(model))
    path = tmp_path / "model.so"
    assert main([str(model), "-o", str(path)]) == 130
    assert not path.exists()


@pytest.mark.parametrize("count", [-1, 0, 1.5, True, "2", 5000])
def test_thread_counts_that_are_none(model: Path, count: object) -> None:
    for made in (tvm_ext.compile, tvm_ext.tune, tvm_ext.load):
        with pytest.raises(TargetError, match=r"num_threads=.* no whole number from 1 to 1024"):
            made(str(model), num_threads=count)


@pytest.mark.parametrize("given", [None, b"\x08\x09", 5, "", ["model.onnx"]])
def test_what_is_no_model(given: object) -> None:
    with pytest.raises(ModelError, match="is neither a path nor a model"):
        tvm_ext.compile(given)


@pytest.mark.parametrize("log", [5, b"log", "", True])
def test_what_is_no_log(model: Path, log: object) -> None:
    with pytest.raises(LogError, match="is no path"):
        tvm_ext.compile(str(model), log=log)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trials": 0}, "trials=0: is no whole number from 1 up"),
        ({"trials": -3}, "trials=-3"),
        ({"trials": 1.5}, "trials=1.5"),
        ({"seed": -1}, "seed=-1: is no whole number from 0 up"),
        ({"time_budget_s": 0}, "time_budget_s=0: is no number above 0"),
        ({"goals_us": (-1.0,)}, "goal_us=-1.0"),
        ({"goals_us": (1.0, 2.0)}, "2 for 1 models"),
        ({"objective": "x"}, "objective='x'.*'latency' or 'geomean'"),
        ({"models": []}, "no list of models"),
        ({"models": "small.onnx"}, "no list of models"),
    ],
)
def test_tuning_arguments_are_checked_before_any_work(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    given = {"models": ["no.onnx"], "log": tmp_path / "log", **options}
    with pytest.raises(ArgumentError, match=words):
        tvm_ext.tune_all(**given)
    assert not (tmp_path / "log").exists()
    if "trials" in options:
        with pytest.raises(ArgumentError, match=words):
            tvm_ext.tune_tir(None, trials=options["trials"])


@pytest.mark.skipif(platform.machine() == "aarch64", reason="kernels for AArch64 run here")
def test_kernels_of_another_processor_are_not_measured_here(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"do not run on this .*fleet"):
        tvm_ext.tune(str(model), "arm/cortex-a72", log=tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_legalise_may_be_left_out(model: Path, compiled: Compiled) -> None:
    """Convolutions from planes to channels last, that only it lowers, are not made then."""
    with tvm.transform.PassContext(disabled_pass=["Legalise"]):
        plain = tvm_ext.compile(str(model))
    assert plain.manifest.code_hash != compiled.manifest.code_hash
    assert_close(plain(X), reference(model))


def test_a_disabled_pass_that_is_none_is_warned_of(model: Path) -> None:
    with (
        tvm.transform.PassContext(disabled_pass=["ChanelsLast", "DispatchSortScan", "FuseOps"]),
        pytest.warns(UserWarning, match="'ChanelsLast'; is it ChannelsLast") as told,
    ):
        tvm_ext.compile(str(model))
    assert len([one for one in told if "disabled_pass" in str(one.message)]) == 1


def test_what_a_check_refuses_takes_no_place(compiled: Compiled, tmp_path: Path) -> None:
    """It is called when all is linked; what stood there before stays."""
    path = tmp_path / "model.so"
    path.write_text("before")

    def refuse() -> None:
        raise VerifyError("output 'y': differs")

    with pytest.raises(VerifyError):
        compiled.save(path, check=refuse)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(VerifyError):
        tvm_ext.load(compiled.save(tmp_path / "other.so", check=list)).save(path, check=refuse)
    assert path.read_text() == "before"


def test_save_and_load(compiled: Compiled, tmp_path: Path) -> None:
    path = compiled.save(tmp_path / "model.so")
    loaded = tvm_ext.load(path)
    assert loaded.manifest == compiled.manifest
    np.testing.assert_array_equal(loaded(X)[0], compiled(X)[0])
    loaded.save(tmp_path / "copy.so")
    assert (tmp_path / "copy.so").read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.so", "model.so"]


def test_an_artifact_runs_with_stock_tvm_alone(compiled: Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.so")
    np.save(tmp_path / "x.npy", X)
    script = (
        "import sys; sys.modules['tvm_ext'] = None\n"
        f"sys.path.insert(0, {str(ROOT / 'examples')!r})\n"
        "import deploy, numpy\n"
        "outputs = deploy.main('model.so', 'x.npy')\n"
        "numpy.savez('y.npz', *outputs)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    with np.load(tmp_path / "y.npz") as saved:
        for place, expected in enumerate(compiled(X)):
            np.testing.assert_array_equal(saved[f"arr_{place}"], expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["own_flow.py"], "one by one"), (["tune_function.py", "6"], "right")],
    ids=["own_flow", "tune_function"],
)
def test_an_example_runs(words: list[str], said: str) -> None:
    """Each asserts that what it computes is right."""
    name, *arguments = words
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_relax_module_compiles(model: Path, compiled: Compiled) -> None:
    from tvm_ext.frontend.from_onnx import import_onnx

    other = tvm_ext.compile(import_onnx(str(model)).mod)
    np.testing.assert_allclose(other(X)[0], compiled(X)[0], rtol=1e-5)


def test_whether_weights_fit_into_the_last_cache_is_known_of_files(model: Path) -> None:
    """A module's constants are not counted."""
    assert lower(model, "cpu", None, None).hardware.weights_fit
    module = read_source(model, None).mod
    assert not lower(module, "cpu", None, None).hardware.weights_fit


def test_a_module_without_main() -> None:
    with pytest.raises(ModelError, match="no function main"):
        tvm_ext.compile(tvm.IRModule())


def test_a_model_for_a_gpu_elsewhere(model: Path, tmp_path: Path) -> None:
    """Where there is no device its kernels are CUDA code in the artifact, and nothing is run."""
    foreign = tvm_ext.compile(str(model), target="cuda/sm_90")
    assert foreign.manifest.device == "cuda"
    assert {group.source for group in foreign.manifest.groups} == {"picker"}
    assert any("not verified" in note for note in foreign.manifest.notes)
    path = foreign.save(tmp_path / "gpu.so")
    assert b"__global__" in path.read_bytes()
    with pytest.raises(ArtifactError, match="is for a CUDA device"):
        tvm_ext.load(path)


def test_threads_are_no_multiprocessors() -> None:
    assert hardware_for("cuda/sm_90", 2) == get("cuda/sm_90")
    assert hardware_for("cpu/x86-avx2", 2).cores == 2


def test_kernels_of_a_gpu_elsewhere_are_not_measured(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="measured on the device beside this CPU only"):
        tvm_ext.tune(str(model), target="cuda/sm_90", trials=1, log=tmp_path)


def test_extents_left_open_are_not_for_a_gpu(model: Path) -> None:
    with pytest.raises(ShapeError, match="n cannot be left open"):
        tvm_ext.compile(str(model), "cuda/sm_90", shapes={"x": ("n", 3, 18, 17)})


def test_another_machines_code_is_not_run(model: Path) -> None:
    foreign = tvm_ext.compile(str(model), target="arm/neoverse-n1")
    assert not any(group.verified for group in foreign.manifest.groups)
    assert any("not verified" in note for note in foreign.manifest.notes)


def test_tuning_fills_the_log_and_resumes(model: Path, log: Path) -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in log.glob("*.jsonl"))
    seen: list[int] = []
    tuned = tvm_ext.tune(str(model), trials=14, log=log, watch=lambda _, done: seen.append(done))
    assert {group.source for group in tuned.manifest.groups} == {"log"}
    assert seen[0] >= 14
    again = sum(len(path.read_bytes().splitlines()) for path in log.glob("*.jsonl"))
    assert again - lines <= 2 * len(tuned.manifest.groups)
    assert_close(tuned(X), reference(model))


def test_replay_measures_nothing_and_gives_the_same_code(
    model: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("replay measured or ran something")

    expected = tvm_ext.compile(str(model), log=log)
    monkeypatch.setattr(trials.Measurer, "measure", never)
    monkeypatch.setattr(assembly, "check", never)
    script = (
        "import sys, tvm_ext\n"
        "print(tvm_ext.replay(sys.argv[1], sys.argv[2], strict=True).manifest.code_hash)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(model), str(log)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    replayed = tvm_ext.replay(str(model), log, strict=True)
    assert replayed.manifest.code_hash == expected.manifest.code_hash == done.stdout.strip()
    assert [g.plan for g in replayed.manifest.groups] == [g.plan for g in expected.manifest.groups]


def test_a_replay_says_what_is_not_the_kernel_that_was_measured(
    model: Path, log: Path, tmp_path: Path
) -> None:
    def about(log: Path) -> list[str]:
        notes = tvm_ext.replay(str(model), log).manifest.notes
        return [note for note in notes if "no longer those measured" in note]

    assert about(log) == []
    database = Database.open(tmp_path, create=True)
    first, *rest = [record for record in Database.open(log).records() if record.ok]
    others = [record for record in rest if record.task != first.task]
    database.append([msgspec.structs.replace(first, tir_hash="0" * 12), *others])
    (note,) = about(tmp_path)
    assert note.startswith("1 of ")


def test_a_strict_replay_lists_what_is_missing(model: Path, tmp_path: Path) -> None:
    Database.open(tmp_path / "empty", create=True)
    with pytest.raises(LogError, match=r"no record for .* kernels") as error:
        tvm_ext.replay(str(model), tmp_path / "empty", strict=True)
    assert "conv2d" in str(error.value)


def test_a_killed_tuner_loses_nothing(model: Path, tmp_path: Path) -> None:
    """SIGKILL between two batches; the next run keeps every record and goes on."""
    log = tmp_path / "log"
    script = "import sys, tvm_ext; tvm_ext.tune(sys.argv[1], trials=60, log=sys.argv[2])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(model), str(log)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = list(log.glob("*.jsonl"))
        if files and files[0].read_bytes().count(b'"latency_us"') >= 4:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = Database.open(log).records()
    assert len(kept) >= 4
    seen: list[int] = []
    tvm_ext.tune(str(model), trials=len(kept) + 2, log=log, watch=lambda _, done: seen.append(done))
    assert seen[0] == len({(record.task.signature, record.plan) for record in kept})
    after = Database.open(log)
    assert not after.corrupt
    assert after.records()[: len(kept)] == kept


def test_ctrl_c_compiles_the_best_so_far(model: Path, tmp_path: Path) -> None:
    def interrupt(_: object, done: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    tuned = tvm_ext.tune(str(model), trials=50, log=tmp_path, watch=interrupt)
    assert any("interrupted" in note for note in tuned.manifest.notes)
    assert "log" in {group.source for group in tuned.manifest.groups}
    assert_close(tuned(X), reference(model))
