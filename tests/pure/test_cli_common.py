"""What every command does with answers, errors and output paths."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tvm_ext.cli.common import (
    Answer,
    CommandError,
    Parser,
    add_json,
    check_output,
    run_main,
    shapes_of,
    status,
)
from tvm_ext.errors import LogError, ShapeError


def run(work: Callable[[argparse.Namespace], Answer], *argv: str) -> int:
    parser = Parser(prog="verb", example="verb file")
    parser.add_argument("file")
    add_json(parser)
    return run_main(parser, work, argv)


def answer(args: argparse.Namespace) -> Answer:
    return Answer(f"did {args.file}", {"done": args.file, "us": float("inf")})


def fail(error: BaseException) -> Callable[[argparse.Namespace], Answer]:
    def work(args: argparse.Namespace) -> Answer:
        raise error

    return work


def test_text_for_people_and_json_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(answer, "f") == 0
    assert capsys.readouterr() == ("did f\n", "")
    assert run(answer, "f", "--json") == 0
    # JSON has no infinity; a parser that is strict must still read it.
    assert json.loads(capsys.readouterr().out) == {"done": "f", "us": None}


def test_an_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    work = fail(LogError("log a:\n  torn\nin two"))
    assert run(work, "f") == 2
    assert capsys.readouterr() == ("", "error: log a: torn in two\n")
    assert run(work, "f", "--json") == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "log a: torn in two", "kind": "LogError"}
    assert err == "error: log a: torn in two\n"


def test_a_wrong_command_line_is_an_error_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(answer, "f", "--jsn") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert "--jsn" in err
    assert "verb --help" in err
    assert run(answer, "--json") == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "CommandError"


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fail(KeyboardInterrupt()), "f") == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("meanwhile", [None, ZeroDivisionError(), LogError("cut short")])
def test_an_interrupt_that_was_lost_ends_a_command_all_the_same(
    capsys: pytest.CaptureFixture[str], meanwhile: Exception | None
) -> None:
    """As in a call back whose exceptions are printed and forgotten, or become others."""

    def work(args: argparse.Namespace) -> Answer:
        try:
            press()
        except KeyboardInterrupt:
            if meanwhile is not None:
                raise meanwhile from None
        return answer(args)

    assert run(work, "f") == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")
    assert run(answer, "f") == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_was_lost_is_raised_again_at_the_next_step() -> None:
    def work(args: argparse.Namespace) -> Answer:
        with status(args.json) as notify:
            with suppress(KeyboardInterrupt):
                press()
            notify("linking")
            raise AssertionError("an artifact would be written")

    assert run(work, "f") == 130


def test_a_command_that_is_told_to_ignore_interrupts_does_so() -> None:
    def work(args: argparse.Namespace) -> Answer:
        press()
        return answer(args)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run(work, "f") == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_a_command_is_imported() -> None:
    code = (
        "from unittest import mock; from tvm_ext import command\n"
        "with mock.patch.object(command, 'import_module', side_effect=KeyboardInterrupt):\n"
        "    command.run_command('compile')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_a_command_leaves_with_its_code_and_all_that_it_printed() -> None:
    code = (
        "import atexit; from types import SimpleNamespace; from unittest import mock\n"
        "from tvm_ext import command\n"
        "atexit.register(print, 'last', end='')\n"
        "verb = SimpleNamespace(main=lambda: print('first') or 2)\n"
        "with mock.patch.object(command, 'import_module', return_value=verb):\n"
        "    command.run_command('compile')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "first\nlast", "")


def test_our_own_bugs_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(fail(ZeroDivisionError()), "f")


def test_warnings_are_one_line_without_source(capsys: pytest.CaptureFixture[str]) -> None:
    def work(args: argparse.Namespace) -> Answer:
        warnings.warn("slow\nmachine", RuntimeWarning, stacklevel=1)
        return answer(args)

    assert run(work, "f") == 0
    assert capsys.readouterr().err == "warning: slow machine\n"


def test_help_ends_with_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(answer, "--help")
    assert stopped.value.code == 0
    assert capsys.readouterr().out.endswith("example:\n  verb file\n")


def test_outputs_are_checked_before_work(tmp_path: Path) -> None:
    good = tmp_path / "a.so"
    assert check_output(str(good), ".so") == good
    assert list(tmp_path.iterdir()) == []
    good.write_text("earlier")
    assert check_output(str(good), ".so") == good
    assert good.read_text() == "earlier"


def refused(path: Path, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        check_output(str(path), ".so")


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    for nameless in ("", ".", "/"):
        with pytest.raises(CommandError, match=r"names no file; give one that ends in \.so"):
            check_output(nameless, ".so")
    refused(tmp_path / "model.onnx", r"must end in \.so")
    refused(tmp_path / "no" / "a.so", "no folder .*no; create it")
    (tmp_path / "folder.so").mkdir()
    refused(tmp_path / "folder.so", "is a directory")
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "a.so", "no folder")
    kept = tmp_path / "kept.so"
    kept.touch(0o444)
    refused(kept, "read-only")
    refused(tmp_path / ("x" * 300 + ".so"), "cannot be written")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody can write in")
def test_outputs_in_a_folder_that_cannot_be_written() -> None:
    refused(Path("/proc/a.so"), "cannot be written")


def test_shapes_by_name() -> None:
    assert shapes_of(["x=1,3,224,224", "ids:0=1,128"]) == {"x": (1, 3, 224, 224), "ids:0": (1, 128)}
    with pytest.raises(ShapeError, match="names no input"):
        shapes_of(["1,3"])
    with pytest.raises(CommandError, match="'x' is given twice"):
        shapes_of(["x=1", "x=2"])


def test_an_output_may_have_one_of_several_formats(tmp_path: Path) -> None:
    assert check_output(str(tmp_path / "a.png"), ".svg", ".png") == tmp_path / "a.png"
    with pytest.raises(CommandError, match=r"must end in \.svg or \.png; try .*a\.pdf\.svg"):
        check_output(str(tmp_path / "a.pdf"), ".svg", ".png")
