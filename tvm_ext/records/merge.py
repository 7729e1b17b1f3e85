"""Several tuning logs into one: lines are copied as they are, exact duplicates once."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tvm_ext.errors import LogError
from tvm_ext.records.files import (
    CorruptLine,
    errors_named,
    file_for,
    locked,
    log_files,
    prepare,
    replace,
)
from tvm_ext.records.record import Line, Record, decode_line


class MergeReport(msgspec.Struct, frozen=True):
    """What a merge did."""

    added: int
    """Records new to the destination."""
    duplicates: int
    """Records that the destination, or an earlier source, held already."""
    corrupt: tuple[CorruptLine, ...]
    """Lines of the sources that hold no usable record; they are not copied."""


def merge(
    sources: Sequence[str | os.PathLike[str]], destination: str | os.PathLike[str]
) -> MergeReport:
    """Add the records of `sources` (folders or `.jsonl` files) to the log at `destination`.

    Order is kept: what the destination holds (corrupt lines too) comes first, then the sources as
    given. Each file of the destination is replaced at once, under its lock. Sources are only read.
    LogError if a source is missing or the destination cannot be written.
    """
    root = Path(destination)
    added = duplicates = 0
    corrupt: list[CorruptLine] = []
    graphs: set[bytes] = set()
    incoming: dict[Path, list[bytes]] = defaultdict(list)
    for source in map(Path, sources):
        for path, line, record in _lines_of(source, corrupt):
            target = file_for(root, record)
            if path.resolve() != target.resolve():
                incoming[target].append(line)
                if not isinstance(record, Record):
                    graphs.add(line)
    prepare(root)
    for target, lines in incoming.items():
        with errors_named(target), locked(target):
            held = [line for line in _read(target) if line.strip()] if target.exists() else []
            merged = dict.fromkeys([*held, *lines])
            known = set(held)
            fresh = sum(line not in known and line not in graphs for line in merged)
            added += fresh
            duplicates += sum(line not in graphs for line in lines) - fresh
            replace(target, b"".join(line + b"\n" for line in merged))
    return MergeReport(added, duplicates, tuple(corrupt))


def _lines_of(source: Path, corrupt: list[CorruptLine]) -> list[tuple[Path, bytes, Line]]:
    """The usable lines of a log: their file, text and record. The others go to `corrupt`."""
    if not source.exists():
        raise LogError(f"no tuning log at {source}; nothing was merged")
    found: list[tuple[Path, bytes, Line]] = []
    for path in log_files(source):
        for number, line in enumerate(_read(path), start=1):
            if not line.strip():
                continue
            try:
                found.append((path, line, decode_line(line)))
            except LogError as error:
                corrupt.append(CorruptLine(path, number, str(error)))
    return found


def _read(path: Path) -> list[bytes]:
    with errors_named(path):
        return path.read_bytes().split(b"\n")
