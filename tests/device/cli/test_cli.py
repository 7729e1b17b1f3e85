"""The commands: what they make and what they print."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_case import SHAPE, TRIALS, Command, Tuned, answer, good, record_lines, refused
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tvm_ext.records.record import decode_line
from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan

VERBS = ("tune", "compile", "replay", "run", "logs", "report")


def test_compile_says_what_was_made(command: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    said = good(command("compile", model, *SHAPE, "-o", path, "--report")).stdout
    assert re.search(r"compiled .*tiny\.onnx in \d+\.\d s, for cpu/host \([0-9a-f]{12}\)", said)
    assert "log 0, picker" in said
    assert f"artifact  {path}" in said
    assert "GFLOP/s" in said
    assert path.is_file()


def test_compile_for_machines(command: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    data = answer(command("compile", model, *SHAPE, "-o", path, "--json", "--no-verify"))
    assert data["artifact"] == str(path)
    assert data["verified"] == 0
    assert sum(data["kernels"].values()) > 0
    assert data["kernels"]["none"] == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.so"]


def test_a_batch_that_is_left_open(command: Command, model: Path, tmp_path: Path) -> None:
    path, given, result = (tmp_path / name for name in ("m.so", "in.npz", "out.npz"))
    data = answer(command("compile", model, "--shape", "x=n,3,16,16", "-o", path, "--json"))
    assert data["kernels"]["none"] == 0
    for batch in (1, 6):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 16, 16)).astype(np.float32)
        np.savez(given, x=x)
        good(command("run", path, "--input", given, "--output", result))
        (expected,) = ReferenceEvaluator(str(model)).run(None, {"x": x})
        actual = np.load(result)["y"]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert "(1, 10)" in good(command("run", path, "--time", "--repeats", "3")).stdout


def test_run_computes_the_model(
    command: Command, model: Path, artifact: Path, tmp_path: Path
) -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    given, result = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(given, x=x)
    said = good(command("run", artifact, "--input", given, "--output", result)).stdout
    (expected,) = ReferenceEvaluator(str(model)).run(None, {"x": x})
    actual = np.load(result)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert re.search(r"y  float32 \(1, 10\)  mean -?\d", said)
    assert f"{expected.std():.3g}" in said


def test_run_times_random_inputs(command: Command, artifact: Path) -> None:
    said = good(command("run", artifact, "--time", "--repeats", "3", "--threads", "1")).stdout
    assert re.search(r"median \d+\.\d+ ms, min \d+\.\d+ ms, 3 runs", said)
    data = answer(command("run", artifact, "--time", "--json"))
    assert 0 < data["min_ms"] <= data["median_ms"]
    seeded = [
        answer(command("run", artifact, "--seed", seed, "--json"))["outputs"][0]["mean"]
        for seed in ("0", "7")
    ]
    assert seeded[0] == data["outputs"][0]["mean"] != seeded[1]


def test_report_lists_every_kernel(command: Command, artifact: Path) -> None:
    data = answer(command("report", artifact, "--json"))
    text = good(command("report", artifact)).stdout
    assert {group["kind"] for group in data["groups"]} <= set(re.findall(r"[\w+]+", text))
    assert data["code_hash"] in text
    assert data["model"] == "tiny.onnx"


def test_tune_shows_progress_and_where_everything_is(tuned: Tuned) -> None:
    said, progress = tuned.said.stdout, tuned.said.stderr
    assert re.search(
        rf"trial 1/{TRIALS}  \w+ [0-9a-f]{{8}}  best [\d.]+ us  \S+ GFLOP/s  \d+% of roof", progress
    )
    assert f"log       {tuned.log}" in said
    assert f"artifact  {tuned.artifact}" in said
    assert "failures  " in said
    assert "% of roof" in said
    assert len(tuned.lines) >= int(TRIALS)


def test_tune_prints_a_plan_to_paste(tuned: Tuned) -> None:
    code = tuned.said.stdout[tuned.said.stdout.index("from tvm_ext.tile") :]
    names = sorted(kind.__name__ for kind in (Attach, LevelTile, Tile, TilePlan))
    assert code.startswith(f"from tvm_ext.tile import {', '.join(names)}\n")
    pasted: dict[str, Any] = {}
    exec(code, pasted)
    assert pasted["plan"] in {decode_line(line).plan for line in tuned.lines}


def test_the_replay_command_to_paste(command: Command, tuned: Tuned) -> None:
    (typed,) = re.findall(r"^replay    (.*)$", tuned.said.stdout, re.MULTILINE)
    python, flag, module, *arguments = shlex.split(typed)
    assert (python, flag, module) == ("python", "-m", "tvm_ext.replay")
    assert "--strict" in arguments
    before = answer(command("report", tuned.artifact, "--json"))
    tuned.artifact.unlink()
    replayed = answer(command("replay", *arguments, "--json"))
    assert replayed["code_hash"] == before["code_hash"]
    assert replayed["measurements"] == sum(replayed["misses"].values()) == 0
    assert sum(replayed["hits"].values()) == len(before["groups"])
    after = answer(command("report", tuned.artifact, "--json"))
    assert [group["plan"] for group in after["groups"]] == [
        group["plan"] for group in before["groups"]
    ]
    assert tuned.file.read_bytes() == tuned.text


def test_tune_for_machines_goes_on_where_it_was(
    command: Command, tuned: Tuned, tmp_path: Path
) -> None:
    log = shutil.copytree(tuned.log, tmp_path / "log")
    words = [*tuned.words[:3], "--trials", "11", "--log", log, "-o", tmp_path / "m.so", "--json"]
    done = command("tune", *words)
    data = answer(done)
    assert not re.search(r"^trial", done.stderr, re.MULTILINE)
    assert data["trials"] == 11
    assert sum(task["trials"] for task in data["tasks"]) == 11
    assert data["hottest"]["plan"]["rule"]
    assert Path(data["artifact"]).is_file()
    now = (log / tuned.file.name).read_bytes()
    assert now.startswith(tuned.text)
    assert len(record_lines(now)) > len(tuned.lines)


def test_several_models_are_tuned_at_once(command: Command, tuned: Tuned, tmp_path: Path) -> None:
    """The same model twice: every task is one task, and what the log has is enough for both."""
    model = Path(tuned.words[0])
    other = shutil.copy(model, tmp_path / "other.onnx")
    log = shutil.copytree(tuned.log, tmp_path / "log")
    words = (model, other, *SHAPE, "--trials", TRIALS, "--log", log)
    data = answer(command("tune", *words, "--objective", "geomean", "--json", cwd=tmp_path))
    assert [entry["artifact"] for entry in data["models"]] == [f"{model.stem}.so", "other.so"]
    assert all((tmp_path / entry["artifact"]).is_file() for entry in data["models"])
    assert data["models"][0]["code_hash"] == data["models"][1]["code_hash"]
    signatures = [task["signature"] for task in data["models"][0]["tasks"]]
    assert len(signatures) == len(set(signatures))
    refused(command("tune", *words, "-o", tmp_path / "m.so"), "names one artifact")


def test_a_goal_that_is_met_ends_the_search(command: Command, tuned: Tuned, tmp_path: Path) -> None:
    log = shutil.copytree(tuned.log, tmp_path / "log")
    words = [*tuned.words[:3], "--log", log, "-o", tmp_path / "m.so", "--json"]
    data = answer(command("tune", *words, "--trials", "500", "--goal", "1000"))
    assert data["trials"] == int(TRIALS)


def test_compile_takes_plans_from_a_log(command: Command, tuned: Tuned, tmp_path: Path) -> None:
    words = [*tuned.words[:3], "--log", tuned.log, "-o", tmp_path / "m.so", "--json"]
    data = answer(command("compile", *words))
    assert data["kernels"]["log"] == sum(data["kernels"].values())


def test_ctrl_c_ends_tuning_with_the_best_so_far(
    environment: dict[str, str], model: Path, tmp_path: Path
) -> None:
    log, path = tmp_path / "log", tmp_path / "m.so"
    words = [str(word) for word in (model, *SHAPE, "--trials", 5000, "--log", log, "-o", path)]
    with subprocess.Popen(
        [sys.executable, "-m", "tvm_ext.tune", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        seen = next((line for line in running.stderr if line.startswith("trial 2/")), "")
        # As a terminal does it: to every process of the group.
        os.killpg(running.pid, signal.SIGINT)
        said, complaints = running.communicate(timeout=120)
    assert seen, complaints
    assert running.returncode == 0, complaints
    assert "Traceback" not in complaints
    assert "note: interrupted" in said
    assert path.is_file()
    (file,) = log.glob("*.jsonl")
    assert all(decode_line(line).ok for line in record_lines(file.read_bytes()))


def test_a_reader_that_leaves_early_is_no_error(
    environment: dict[str, str], artifact: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tvm_ext.report", str(artifact)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        complaints = running.stderr.read()
    assert running.returncode == 141
    assert "Traceback" not in complaints
    assert "BrokenPipe" not in complaints


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(command: Command, verb: str) -> None:
    text = good(command(verb, "--help")).stdout
    assert f"example:\n  python -m tvm_ext.{verb} " in text
    assert "--json" in text


def test_commands_do_not_hide_functions() -> None:
    walked = [module.name for module in pkgutil.walk_packages(tvm_ext.__path__, "tvm_ext.")]
    assert "tvm_ext.compile" in walked
    for name in ("compile", "tune", "replay"):
        with pytest.raises(ImportError, match=f"from tvm_ext import {name}"):
            importlib.import_module(f"tvm_ext.{name}")
        assert callable(getattr(tvm_ext, name))
    from tvm_ext import compile, replay, tune

    assert {compile.__name__, replay.__name__, tune.__name__} == {"compile", "replay", "tune"}
