"""What all commands share: arguments, errors and exit codes, output for people and for machines."""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from tvm_ext.arguments import MOST_THREADS
from tvm_ext.cli.interrupts import check_interrupt, interrupted, remembered
from tvm_ext.command import EXIT_INTERRUPTED
from tvm_ext.errors import TvmExtError

EXIT_ERROR = 2
EXIT_BROKEN_PIPE = 141


class CommandError(TvmExtError):
    """The command line is wrong, or a file it names cannot be used."""


class Answer(NamedTuple):
    """What a command says: `text` for people, `data` for machines."""

    text: str
    data: dict[str, Any]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `CommandError`s and whose help ends with an example."""

    def __init__(self, *, example: str = "", **options: Any) -> None:
        super().__init__(
            **options,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"example:\n  {example}" if example else None,
        )

    def error(self, message: str) -> NoReturn:
        """Raises CommandError instead of printing the usage and leaving."""
        raise CommandError(f"{message}; see {self.prog} --help")


def add_common(parser: Parser) -> None:
    """`--threads` and `--json`."""
    parser.add_argument(
        "--threads", type=thread_number, metavar="N", help="threads to run on (all physical cores)"
    )
    add_json(parser)


def add_json(parser: Parser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_model(parser: Parser, *, several: bool = False) -> None:
    """The model, or `several`, and what it is compiled for: `model`, `--target`, `--shape`."""
    parser.add_argument("model", metavar="model.onnx", nargs="+" if several else None)
    parser.add_argument(
        "--target",
        default="cpu",
        help='"cpu" (this machine), a catalog name such as cpu/x86-avx2, or a TVM target',
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="shape of an input, or number of a dimension by its name, where the model leaves it "
        "open; once for every such one; names for numbers leave up to three open",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="what products and convolutions multiply, where the machine is faster so (as the "
        "model does)",
    )


def positive(text: str) -> int:
    """A whole number from 1 up, as an argument type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def natural(text: str) -> int:
    """A whole number from 0 up, as an argument type."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)


def thread_number(text: str) -> int:
    """Threads to run on, as an argument type."""
    if positive(text) > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_THREADS} threads")
    return int(text)


def positive_ms(text: str) -> float:
    """Milliseconds, more than none, as an argument type."""
    if not re.fullmatch(r"\d+(\.\d+)?|\.\d+", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds above 0")
    return float(text)


def duration_s(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `1h` or `1h30m`, as an argument type."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    number = r"(\d+(?:\.\d+)?)"
    plain = re.fullmatch(number, text)
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text)
    if plain:
        seconds = float(text)
    elif parts:
        seconds = sum(
            float(amount or 0) * unit
            for amount, unit in zip(parts.groups(), units.values(), strict=True)
        )
    else:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write it as 90s, 10m or 1h30m")
    return seconds


def shapes_of(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    """The `--shape` arguments by name. Raises ShapeError; CommandError for a name given twice."""
    from tvm_ext.frontend.shapes import parse_shape

    shapes: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, shape = parse_shape(text)
        if name in shapes:
            raise CommandError(f"--shape {text!r}: {name!r} is given twice; give it once")
        shapes[name] = shape
    return shapes


def check_output(text: str, *suffixes: str) -> Path:
    """The path of a file that will be written, after making sure that it can be.

    Raises CommandError: it has no name, the suffix is wrong, the path is a directory or a read-only
    file, or its folder is missing or cannot be written.
    """
    path = Path(text)
    if not text or not path.name:
        raise CommandError(f"output {text!r}: names no file; give one that ends in {suffixes[0]}")
    if path.suffix not in suffixes:
        raise CommandError(
            f"output {path}: must end in {' or '.join(suffixes)}; "
            f"try {path.with_name(path.name + suffixes[0])}"
        )
    try:
        if path.is_dir():
            raise CommandError(f"output {path}: is a directory; name a file in it")
        if not path.parent.is_dir():
            raise CommandError(f"output {path}: no folder {path.parent}; create it first")
        if path.exists() and not path.stat().st_mode & 0o222:
            raise CommandError(f"output {path}: is read-only; remove it or name another file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise CommandError(
            f"output {path}: folder {path.parent} cannot be written "
            f"({error.strerror or error}); name another one"
        ) from error
    return path


def check_target(target: str) -> None:
    """Sees, before any work, that an artifact for a target can be linked here. Raises TargetError,
    ArtifactError."""
    from tvm_ext.hardware import resolve
    from tvm_ext.runtime.export import c_compiler

    c_compiler(str(resolve(target).target))


@contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows, while a command works, what it is at: on a terminal only. Yields what tells it, which
    raises KeyboardInterrupt if that was lost before."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: check_interrupt()
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, highlight=False).status("starting") as shown:

        def show(text: str) -> None:
            check_interrupt()
            shown.update(text)

        yield show


def text_style() -> dict[str, Any]:
    """How tables are drawn on stdout: coloured and as wide as the terminal, if it is one."""
    if not sys.stdout.isatty():
        return {}
    return {"width": shutil.get_terminal_size().columns, "color": True}


def note_lines(notes: Sequence[str]) -> list[str]:
    """Notes of a manifest as lines."""
    return [f"note: {note}" for note in notes]


def add_reference(parser: argparse.ArgumentParser) -> None:
    """The option for comparing the whole model."""
    parser.add_argument(
        "--reference",
        action="store_true",
        help="compare with onnx's reference evaluator where ONNX Runtime is not installed (slow)",
    )


def is_verified(compiled: Any) -> bool:
    """Whether any of its kernels is."""
    return any(group.verified for group in compiled.manifest.groups)


def whole_model(
    compiled: Any, model: str, args: argparse.Namespace, begun: Any = None
) -> tuple[str, dict[str, Any] | None]:
    """Compares a verified model with another engine, which may have `begun`: a line to print, and
    the same as data."""
    if not is_verified(compiled):
        left_out = getattr(args, "no_verify", False)
        why = "--no-verify" if left_out else "no kernel could be verified here"
        return f"checked   not compared with another engine: {why}", None
    from tvm_ext.check import check_model

    result = check_model(compiled, model, reference=args.reference, begun=begun)
    if result is None:
        lacking = find_spec("onnxruntime") is None
        hint = "install onnxruntime, or ask" if lacking else "ONNX Runtime fails on it; ask"
        hint += " for --reference"
        return f"checked   not compared with another engine: {hint}", None
    line = f"checked   max|Δ|/max|y| {result.error:.1e} against {result.engine}"
    if result.spread:
        line += f", {result.spread:.1e} between that engine and itself, asked otherwise"
    if result.undecided:
        line += f"; rounding decides of what is in {', '.join(result.undecided)}: not compared"
    return line, msgspec.to_builtins(result)


def run_main(
    parser: Parser, work: Callable[[argparse.Namespace], Answer], argv: Sequence[str] | None
) -> int:
    """Runs a command and returns its exit code.

    A TvmExtError is one `error:` line on stderr, with --json an object on stdout as well. Anything
    else that is raised is a bug of ours and keeps its traceback, unless Ctrl-C was pressed: what it
    cut short may fail in its own way.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    with warnings.catch_warnings(), remembered():
        warnings.showwarning = _show_warning
        try:
            answer = work(parser.parse_args(arguments))
            check_interrupt()
        except (Exception, KeyboardInterrupt) as error:
            if interrupted() or isinstance(error, KeyboardInterrupt):
                return _fail("interrupted", "KeyboardInterrupt", as_json, EXIT_INTERRUPTED)
            if not isinstance(error, TvmExtError):
                raise
            return _fail(" ".join(str(error).split()), type(error).__name__, as_json, EXIT_ERROR)
    return _print(_json(answer.data) if as_json else answer.text, 0)


def _fail(message: str, kind: str, as_json: bool, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return _print(_json({"error": message, "kind": kind}), code) if as_json else code


def _print(text: str, code: int) -> int:
    """Prints on stdout; returns `code`, or another if the reader has gone or the disk is full."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would be tried, and complained about, again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        print(f"error: output cannot be printed: {error.strerror or error}", file=sys.stderr)
        return EXIT_ERROR
    return code


def _json(data: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(data)).decode()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
