"""`Database`: a tuning log in memory, and the way to add to it."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median

from tvm_ext.arguments import is_path
from tvm_ext.errors import LogError, PlanError
from tvm_ext.records.files import CorruptLine, append, errors_named, file_for, log_files, prepare
from tvm_ext.records.record import Line, Record, TaskGraph, decode_line, encode_line
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import check_parts
from tvm_ext.tile.plan import TilePlan


class Database:
    """The records of a folder of `.jsonl` files or of one such file. Open it with `open`.

    Queries answer from what was read by `open`, `append` and `reload`. Lines that hold no usable
    record are listed in `corrupt` and stay where they are.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cursors: dict[Path, _Cursor] = {}
        self._records: list[Record] = []
        self._by_task: dict[tuple[str, str], list[Record]] = defaultdict(list)
        self._graphs: dict[str, TileGraph] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = False) -> Database:
        """Read the log at `path`; `create=True` makes an empty one if there is none, and sees that
        it can be written. LogError if there is none, or it cannot be read or written."""
        if not is_path(path):
            raise LogError(f"tuning log {path!r}: is no path; give a folder or a .jsonl file")
        database = cls(Path(path))
        if create:
            prepare(database.root)
        elif not database.root.exists():
            raise LogError(f"no tuning log at {path}; tune a model with this log to make one")
        database.reload()
        return database

    @property
    def corrupt(self) -> tuple[CorruptLine, ...]:
        """The lines read so far that hold no usable record, in file and line order."""
        return tuple(line for cursor in self._cursors.values() for line in cursor.corrupt)

    def append(self, records: Iterable[Line]) -> None:
        """Write records, and graphs of their tasks, to the log, in one locked write and fsync per
        file, and read them back.

        LogError if they cannot be written; what was in the log is unharmed then.
        """
        lines: dict[Path, list[bytes]] = defaultdict(list)
        for record in records:
            lines[file_for(self.root, record)].append(encode_line(record))
        for path, batch in lines.items():
            append(path, b"".join(batch))
        self.reload()

    def reload(self) -> None:
        """Read what was added since, by this process or others. A file that was replaced or cut
        short makes everything be read again."""
        with errors_named(self.root):
            paths = log_files(self.root)
            if any(cursor.stale() for cursor in self._cursors.values()):
                self._cursors.clear()
                self._records.clear()
                self._by_task.clear()
                self._graphs.clear()
            for path in paths:
                cursor = self._cursors.setdefault(path, _Cursor(path, self._graphs))
                for record in cursor.read():
                    self._records.append(record)
                    self._by_task[record.task.signature, record.hardware].append(record)

    def records(self, signature: str | None = None, fingerprint: str | None = None) -> list[Record]:
        """The records of one task, of one machine, of both, or all of them, in log order."""
        if signature is not None and fingerprint is not None:
            return list(self._by_task.get((signature, fingerprint), ()))
        return [
            record
            for record in self._records
            if signature in (None, record.task.signature) and fingerprint in (None, record.hardware)
        ]

    @property
    def graphs(self) -> Mapping[str, TileGraph]:
        """What the tasks compute, by signature, as far as the log says it."""
        return self._graphs

    def best(
        self,
        signature: str,
        fingerprint: str,
        beside_us: Callable[[TilePlan], float] = lambda plan: 0.0,
    ) -> Record | None:
        """The plan with the lowest median latency, the earliest of equals; None without one.
        `beside_us` is what a plan costs that no measurement of it alone shows; infinite for one
        that cannot be used.

        A plan is judged as `believed` says: a lucky first measurement does not stand against later
        ones, and one that ever failed is out. The record returned is the plan's latest.
        """
        believed_us = self.believed(signature, fingerprint)
        whole_us = {
            plan: us + beside_us(plan) for plan, us in believed_us.items() if us < float("inf")
        }
        plan = min(whole_us, key=whole_us.__getitem__, default=None)
        if plan is None or whole_us[plan] == float("inf"):
            return None
        return next(r for r in reversed(self.records(signature, fingerprint)) if r.plan == plan)

    def typical(self, signature: str, fingerprint: str) -> dict[TilePlan, float]:
        """The median latency of every plan tried, over all its records, in us of a machine as fast
        as usual; infinite for one that ever failed."""
        latency_us: dict[TilePlan, list[float]] = defaultdict(list)
        failed: set[TilePlan] = set()
        for record in self.records(signature, fingerprint):
            latency_us[record.plan].extend(us / record.drift for us in record.latency_us)
            if not record.ok:
                failed.add(record.plan)
        return {
            plan: float("inf") if plan in failed else median(values)
            for plan, values in latency_us.items()
        }

    def believed(self, signature: str, fingerprint: str) -> dict[TilePlan, float]:
        """As `typical`, but a plan measured once gets no credit for a machine that seemed slow
        then: it may have been slow before and after the measurement, and not in between."""
        latency_us = self.typical(signature, fingerprint)
        records = self.records(signature, fingerprint)
        counts = Counter(record.plan for record in records)
        alone = (record for record in records if counts[record.plan] == 1 and record.ok)
        return latency_us | {
            record.plan: median(record.latency_us) / min(1.0, record.drift) for record in alone
        }

    def measured(self, signature: str, fingerprint: str) -> dict[TilePlan, Record]:
        """The best record of every plan tried, failures included, so that none is tried again."""
        found: dict[TilePlan, Record] = {}
        for record in self.records(signature, fingerprint):
            known = found.get(record.plan)
            if known is None or record.best_us < known.best_us:
                found[record.plan] = record
        return found

    def hardware(self, signature: str | None = None) -> dict[str, tuple[str, int]]:
        """Name and number of records of every machine in the log (of one task, if given), by
        fingerprint."""
        found: dict[str, tuple[str, int]] = {}
        for record in self.records(signature):
            name, count = found.get(record.hardware, (record.hardware_name, 0))
            found[record.hardware] = (name, count + 1)
        return found


class _Cursor:
    """How far one file has been read. What it says that tasks compute goes to `graphs`."""

    def __init__(self, path: Path, graphs: dict[str, TileGraph]) -> None:
        self.path = path
        self._graphs = graphs
        self._inode = 0
        self._offset = 0
        self._lines = 0
        self._settled: list[CorruptLine] = []
        self._torn: list[CorruptLine] = []

    @property
    def corrupt(self) -> list[CorruptLine]:
        return self._settled + self._torn

    def stale(self) -> bool:
        """Whether the file is no longer the one read, or shorter than what was read of it."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        return status.st_ino != self._inode or status.st_size < self._offset

    def read(self) -> list[Record]:
        """The records added since the last call. A last line without its end, which its writer
        may still be at, is read again next time unless it is whole already."""
        with self.path.open("rb") as file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self._offset)
            *whole, rest = file.read().split(b"\n")
        self._torn = []
        found: list[Record] = []
        for line in whole:
            self._lines += 1
            self._offset += len(line) + 1
            if line.strip():
                self._take(line, self._lines, found, self._settled)
        if rest and self._take(rest, self._lines + 1, found, self._torn):
            self._offset += len(rest)
        return found

    def _take(
        self, line: bytes, number: int, found: list[Record], corrupt: list[CorruptLine]
    ) -> bool:
        try:
            read = decode_line(line)
            if isinstance(read, TaskGraph):
                self._graphs[read.signature] = read.graph
            else:
                self._check(read)
                found.append(read)
        except LogError as error:
            corrupt.append(CorruptLine(self.path, number, str(error)))
            return False
        return True

    def _check(self, record: Record) -> None:
        """LogError for a plan that was measured, it says, and that its task cannot follow, as far
        as the log says what that computes."""
        graph = self._graphs.get(record.task.signature)
        if graph is None or not record.ok:
            return
        try:
            check_parts(graph, record.plan)
        except (PlanError, ArithmeticError, LookupError, ValueError) as error:
            raise LogError(f"no plan for its task: {error}") from error
