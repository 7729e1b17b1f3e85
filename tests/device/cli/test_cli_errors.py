"""What users get wrong: one clear line, exit code 2, and nothing lost."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_case import DISK_BYTES, SHAPE, Command, good, make_model, record_lines, refused
from onnx import TensorProto, helper

from tvm_ext.records.record import decode_line


def broken_models(folder: Path) -> dict[str, Path]:
    whole = make_model(folder / "whole.onnx").read_bytes()
    contents = {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "text": b"import torch\nmodel.export()\n",
        "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    }
    paths = {name: folder / f"{name}.onnx" for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    extra = [
        helper.make_node("LSTM", ["r1", "w1", "w1"], ["l"], "lstm_1", hidden_size=2),
        helper.make_node("Fancy", ["y", "l"], ["z"], "fancy_2", domain="my.own"),
    ]
    paths["operators"] = make_model(folder / "operators.onnx", *extra)
    return paths


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", ["no such file"]),
        ("empty", ["is empty"]),
        ("truncated", ["is truncated", "copy or download it again"]),
        ("text", ["not an ONNX model"]),
        ("png", ["a PNG image"]),
    ],
)
def test_files_that_are_no_model(
    refuses: Callable[..., None], tmp_path: Path, name: str, words: list[str]
) -> None:
    path = broken_models(tmp_path).get(name, tmp_path / "missing.onnx")
    refuses("compile", path, *SHAPE, "-o", tmp_path / "m.so", words=[str(path), *words])
    assert not (tmp_path / "m.so").exists()


@pytest.mark.parametrize("verb", ["tune", "replay"])
def test_every_verb_that_reads_a_model_says_so(command: Command, tmp_path: Path, verb: str) -> None:
    path = broken_models(tmp_path)["truncated"]
    words = ["--log", tmp_path / "log", "-o", tmp_path / "m.so"]
    refused(command(verb, path, *SHAPE, *words), str(path), "is truncated")


def test_unsupported_operators_are_all_named(command: Command, tmp_path: Path) -> None:
    path = broken_models(tmp_path)["operators"]
    done = command("compile", path, *SHAPE, "-o", tmp_path / "m.so")
    refused(done, "lstm_1", "LSTM", "fancy_2", "Fancy")


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([], ["symbolic", "'x'", "--shape x=1,3,16,16"]),
        (["y=1,3,16,16"], ["no input 'y'", "'x'"]),
        (["x=1,3,16"], ["3 dimensions", "declares 4"]),
        (["x=1,3,16,17"], ["17", "fixes it to 16"]),
        (["x=1,three,16,16"], ["three"]),
        (["1,3,16,16"], ["names no input"]),
        (["x=n+1,3,16,16"], ["n is nowhere an extent by itself, only in n+1 of input 'x'"]),
        (["x=99999999999999999999,3,16,16"], ["'x'", "more than 1099511627776 elements"]),
        (["x=1,3,16,16", "x=2,3,16,16"], ["given twice"]),
    ],
)
def test_shapes_that_do_not_fit(
    refuses: Callable[..., None],
    model: Path,
    tmp_path: Path,
    shapes: list[str],
    words: list[str],
) -> None:
    given = [word for shape in shapes for word in ("--shape", shape)]
    refuses("compile", model, *given, "-o", tmp_path / "m.so", words=words)


def test_unknown_target(command: Command, model: Path, tmp_path: Path) -> None:
    words = [model, *SHAPE, "-o", tmp_path / "m.so", "--target", "cpu/x86-avx3"]
    refused(command("compile", *words), "cpu/x86-avx3", "did you mean", "cpu/x86-avx2")


def test_outputs_are_checked_before_the_model_is_read(command: Command, tmp_path: Path) -> None:
    absent = tmp_path / "absent.onnx"
    (tmp_path / "folder.so").mkdir()
    kept = tmp_path / "kept.so"
    kept.touch(0o444)
    for path, word in [
        (tmp_path / "nowhere" / "m.so", "no folder"),
        (tmp_path / "m.onnx", "must end in .so"),
        (tmp_path / "folder.so", "is a directory"),
        (kept, "read-only"),
    ]:
        refused(command("compile", absent, "-o", path), str(path), word)
    assert kept.read_bytes() == b""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody can write in")
def test_outputs_and_logs_that_cannot_be_written(
    command: Command, model: Path, artifact: Path, tmp_path: Path
) -> None:
    refused(command("compile", model, *SHAPE, "-o", "/proc/m.so"), "/proc/m.so", "written")
    refused(command("run", artifact, "--output", "/proc/o.npz"), "/proc/o.npz", "written")
    words = [model, *SHAPE, "-o", tmp_path / "m.so", "--log"]
    refused(command("tune", *words, "/proc/log"), "/proc/log")
    refused(command("tune", *words, model), "is no tuning log")


def test_a_log_that_is_not_there(command: Command, model: Path, tmp_path: Path) -> None:
    words = [model, *SHAPE, "-o", tmp_path / "m.so", "--log", tmp_path / "absent"]
    for verb in ("compile", "replay"):
        refused(command(verb, *words), "no tuning log", "absent")
    refused(command("logs", "show", tmp_path / "absent"), "no tuning log")


def test_a_full_disk_spares_the_log(command: Command, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [model, *SHAPE, "--trials", "40", "--log", log, "-o", tmp_path / "m.so"]
    refused(command("tune", *words, full_disk=True), "tuning log", "too large", "unharmed")
    (file,) = log.glob("*.jsonl")
    assert [decode_line(line).ok for line in record_lines(file.read_bytes())].count(True) > 0


def test_a_full_disk_spares_the_output(
    command: Command, model: Path, artifact: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.so"
    path.write_bytes(b"an earlier one")
    done = command("compile", model, *SHAPE, "-o", path, full_disk=True)
    refused(done, str(path), "too large", "nothing written")
    result = tmp_path / "out.npz"
    result.write_bytes(b"an earlier one")
    large = make_wide(tmp_path / "wide.onnx")
    good(command("compile", large, "-o", tmp_path / "wide.so"))
    done = command("run", tmp_path / "wide.so", "--output", result, full_disk=True)
    refused(done, str(result), "too large", "nothing was written")
    assert path.read_bytes() == result.read_bytes() == b"an earlier one"
    assert {entry.name for entry in tmp_path.iterdir()} == {
        *("m.so", "out.npz", "wide.onnx", "wide.so")
    }


def make_wide(path: Path) -> Path:
    """A model whose output does not fit on the full disk."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [DISK_BYTES])
    y = helper.make_tensor_value_info("file", TensorProto.FLOAT, [DISK_BYTES])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["file"])], "wide", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


X = np.zeros((1, 3, 16, 16), np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": X}, ["'image'", "no such input", "it takes x"]),
        ({}, ["'x'", "not given"]),
        ({"x": X, "y": X}, ["'y'", "no such input"]),
        ({"x": X.astype(np.float64)}, ["float64", "float32"]),
        ({"x": X[:, :2]}, ["(1, 2, 16, 16)", "(1, 3, 16, 16)"]),
        ({"x": np.array([None])}, ["not an .npz file of plain arrays"]),
    ],
)
def test_inputs_that_do_not_fit(
    refuses: Callable[..., None],
    artifact: Path,
    tmp_path: Path,
    arrays: dict[str, np.ndarray],
    words: list[str],
) -> None:
    given = tmp_path / "in.npz"
    np.savez(given, **arrays)
    refuses("run", artifact, "--input", given, words=words)


def test_files_that_hold_no_inputs(command: Command, artifact: Path, tmp_path: Path) -> None:
    refused(command("run", artifact, "--input", tmp_path / "none.npz"), "no such file")
    np.save(tmp_path / "x.npy", X)
    refused(command("run", artifact, "--input", tmp_path / "x.npy"), "one array without a name")
    (tmp_path / "text.npz").write_text("x = 1")
    refused(command("run", artifact, "--input", tmp_path / "text.npz"), "not an .npz file")
    refused(command("run", artifact, "--input", tmp_path), "cannot be read")


def test_files_that_are_no_artifact(command: Command, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("hello")
    (tmp_path / "short.so").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(33) + b"\xff" * 24)
    for verb in ("run", "report"):
        refused(command(verb, tmp_path / "none.so"), "no such file")
        refused(command(verb, tmp_path / "text.so"), "not a shared library")
        refused(command(verb, tmp_path / "short.so"), "cut short")
        refused(command(verb, tmp_path), "is a directory; name the .so file in it")
        refused(command(verb, "/proc/self/mem"), "cannot be read")


def test_an_error_for_machines(command: Command, tmp_path: Path) -> None:
    done = command("compile", tmp_path / "none.onnx", "-o", tmp_path / "m.so", "--json")
    message = refused(done).removeprefix("error: ")
    assert json.loads(done.stdout) == {"error": message, "kind": "ModelError"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "m.so", "--repeats", "3"], "counts runs that are timed; add --time"),
        (["run", "m.so", "--output", ""], "names no file"),
        (["run", "m.so", "--input", ""], "cannot be read"),
        (["report", "m.so", "--runs", "3"], "counts runs that are timed; add --measure"),
        (["report", "m.so", "--roofline", ""], "names no file"),
        (["compile", "m.onnx", "-o", ""], "names no file"),
        (["tune", "m.onnx", "-o", ""], "names no file"),
        (["tune", "a/m.onnx", "n.onnx", "b/m.onnx"], "models a/m.onnx and b/m.onnx: would all be"),
        (["logs", "prune", "no_logs", "best.txt"], "no tuning log at no_logs"),
    ],
)
def test_arguments_that_cannot_be_meant(
    refuses: Callable[..., None], words: list[str], said: str
) -> None:
    verb, *rest = words
    refuses(verb, *rest, words=[said])


@pytest.mark.skipif(
    platform.machine() == "aarch64" or shutil.which("aarch64-linux-gnu-gcc") is not None,
    reason="artifacts for AArch64 can be linked",
)
@pytest.mark.parametrize("verb", ["compile", "tune"])
def test_an_artifact_that_could_not_be_linked_is_refused_before_any_work(
    refuses: Callable[..., None], verb: str, tmp_path: Path
) -> None:
    words = ["no.onnx", "--target", "arm/cortex-a72", "-o", str(tmp_path / "m.so")]
    refuses(verb, *words, words=["install aarch64-linux-gnu-gcc"])


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("run", ["m.so", "--seed", "-1"]),
        ("run", ["m.so", "--threads", "5000"]),
        ("tune", ["m.onnx", "--seed", "-1"]),
        ("tune", ["m.onnx", "--trials", "0"]),
        ("tune", ["m.onnx", "--time", "soon"]),
        ("compile", ["m.onnx"]),
        ("replay", ["m.onnx", "-o", "m.so"]),
        ("run", []),
        ("run", ["m.so", "--threads", "none"]),
        ("logs", []),
        ("logs", ["erase", "tuning_logs"]),
    ],
)
def test_wrong_command_lines(refuses: Callable[..., None], verb: str, words: list[str]) -> None:
    refuses(verb, *words, words=[f"python -m tvm_ext.{verb}", "--help"])
