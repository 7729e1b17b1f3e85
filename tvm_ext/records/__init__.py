"""The tuning log: append-only JSON lines, one measured plan each. Needs neither TVM nor XGBoost.

    record    Record and its parts, TaskGraph; one line and back
    files     a log on disk: which files, locked appends, atomic replacement
    database  Database: load, query, append, follow what other processes append
    merge     several logs into one;  prune: the best plans of one;  diff: two compared
    exchange  records and the marks that stand for them in a MetaSchedule database
    manifest  what a compiled artifact says of itself, plans included
    profile   what its kernels take, measured in place

A folder holds one `<hardware name>-<fingerprint>.jsonl` per machine. Lines are never rewritten:
one that cannot be read is reported, skipped and kept.
"""

from tvm_ext.records.database import Database
from tvm_ext.records.files import CorruptLine
from tvm_ext.records.record import Record, RecordFailure, TaskGraph, TaskKey

__all__ = ["CorruptLine", "Database", "Record", "RecordFailure", "TaskGraph", "TaskKey"]
