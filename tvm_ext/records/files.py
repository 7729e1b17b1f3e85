"""A tuning log on disk: which files it is, and the two safe ways of writing one."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from tvm_ext.errors import LogError
from tvm_ext.records.record import Line

SUFFIX = ".jsonl"
FILE_SUFFIXES = (".csv", ".json", ".log", ".txt")
"""What nobody calls a folder."""
LOCK_TIMEOUT_S = 60.0
"""Writers hold the lock for one batch; one that holds it for a minute is stuck."""


TOLD = 3
"""Lines without a usable record that are told one by one."""


class CorruptLine(msgspec.Struct, frozen=True):
    """A line of a log that holds no usable record. It is skipped and stays in the file."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def told(corrupt: Sequence[CorruptLine]) -> list[str]:
    """The first of such lines, and how many more there are: a file that is no log has one after
    the other."""
    first = [str(line) for line in corrupt[:TOLD]]
    more = len(corrupt) - len(first)
    return [*first, f"and {more} more"] if more else first


def is_file_log(root: Path) -> bool:
    """Whether the log at `root` is a single file. LogError if it cannot be a log at all."""
    if root.suffix != SUFFIX and root.exists() and not root.is_dir():
        raise LogError(f"{root} is no tuning log: give a folder, or a file ending in {SUFFIX}")
    return root.suffix == SUFFIX and not root.is_dir()


def log_files(root: Path) -> list[Path]:
    """The files of the log at `root` that exist: itself, or the `.jsonl` files of a folder."""
    if is_file_log(root):
        return [root] if root.exists() else []
    return sorted(path for path in root.glob(f"*{SUFFIX}") if path.is_file())


def file_for(root: Path, line: Line) -> Path:
    """Where a line goes in the log at `root`: in a folder, the file of its hardware."""
    if is_file_log(root):
        return root
    return root / f"{_slug(line.hardware_name)}-{_slug(line.hardware)}{SUFFIX}"


def prepare(root: Path) -> None:
    """Make the folder that `root` is or lies in, and see that the log can be written.

    LogError now is better than one after minutes of tuning, or than a folder called `log.txt`.
    """
    if root.suffix.lower() in FILE_SUFFIXES and not root.exists():
        raise LogError(f"tuning log {root}: would be a folder; end its name in {SUFFIX} for a file")
    folder = root.parent if is_file_log(root) else root
    with errors_named(root):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for path in log_files(root):
            os.close(os.open(path, os.O_RDWR | os.O_APPEND))


def append(path: Path, lines: bytes) -> None:
    """Add whole lines to a log file, all of them or none, and have them on the disk on return.

    A last line left without its end by a killed writer is ended first, so nothing is glued to it.
    LogError if the disk is full or the file cannot be written: it is then as long as before.
    """
    with errors_named(path), locked(path):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            before = os.fstat(file).st_size
            torn = before > 0 and os.pread(file, 1, before - 1) != b"\n"
            try:
                _write_all(file, b"\n" + lines if torn else lines)
                os.fsync(file)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file, before)
                raise
        finally:
            os.close(file)


def replace(path: Path, content: bytes) -> None:
    """Put `content` in the place of a log file whose lock is held, at once or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    with errors_named(path):
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            try:
                _write_all(file, content)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of one log file: a hidden file beside it, left there for the next one."""
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout:
        raise LogError(
            f"tuning log {path}: another process has held its lock for {LOCK_TIMEOUT_S:g} s; "
            "end that process, or use another log"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn what the operating system says about `path` into a LogError."""
    try:
        yield
    except OSError as error:
        raise LogError(
            f"tuning log {path}: {error.strerror or error}; what it held before is unharmed"
        ) from error


def _write_all(file: int, data: bytes) -> None:
    """One write, unless the system takes less at a time: it does when the disk is almost full."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
