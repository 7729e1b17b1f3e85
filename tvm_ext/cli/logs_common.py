"""What the verbs of `python -m tvm_ext.logs` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ext.cli.common import Answer, text_style
from tvm_ext.records import CorruptLine, Database, Record
from tvm_ext.records.files import told


def read_logs(paths: Sequence[str]) -> tuple[list[Record], list[CorruptLine]]:
    """All records of several logs, and the lines that hold none."""
    databases = [Database.open(path) for path in paths]
    records = [record for database in databases for record in database.records()]
    return records, [line for database in databases for line in database.corrupt]


def logs_answer(
    lines: Sequence[str], corrupt: Sequence[CorruptLine], data: dict[str, Any]
) -> Answer:
    """With the lines of the logs that were skipped, which stay where they are."""
    skipped = [f"skipped: {line}" for line in told(corrupt)]
    plain = [{"path": str(c.path), "line": c.line, "reason": c.reason} for c in corrupt]
    return Answer("\n".join([*lines, *skipped]), {**data, "corrupt": plain})


def table_width() -> dict[str, Any]:
    """The width of tables on stdout, if it is a terminal."""
    return {name: value for name, value in text_style().items() if name == "width"}
