"""The lines of a log: `Record`, one measured plan, and `TaskGraph`, what a task computes."""

from __future__ import annotations

from math import isfinite
from statistics import median

import msgspec

from tvm_ext.errors import LogError
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import TilePlan

VERSION = 1
"""The newest record format this code reads, and the one it writes."""


class TaskKey(msgspec.Struct, frozen=True):
    """What was computed: a fused group, whatever its names are."""

    signature: str
    """Hash of the group's structure, shapes and types."""
    kind: str
    """Its operators for people, such as `conv2d+relu`."""
    flops: int
    bytes: int
    """Least traffic: every input read once, every output written once."""


class RecordFailure(msgspec.Struct, frozen=True):
    """Why a plan has no latency; `kind` is the short word failures are counted by."""

    kind: str
    message: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a tuning log."""

    v: int = VERSION
    """Format version."""
    task: TaskKey
    hardware: str
    """Fingerprint of the machine; a record holds for this one only."""
    hardware_name: str
    target: str
    """TVM target, as its JSON text."""
    plan: TilePlan
    latency_us: tuple[float, ...] = ()
    """Every repeat."""
    drift: float = 1.0
    """How slow the machine was at the time: what a plan known before took beside this one, over
    what it usually takes. 1 where that was not looked at."""
    error: RecordFailure | None = None
    seed: int
    tir_hash: str
    """Hash of the scheduled function, whatever its names: tells whether a replay makes the same
    kernel."""
    versions: dict[str, str]
    time: str
    """When it was measured, ISO 8601."""

    @property
    def ok(self) -> bool:
        """Whether the plan ran, correctly, and has a latency."""
        return self.error is None and bool(self.latency_us)

    @property
    def best_us(self) -> float:
        """Median latency of a machine as fast as usual; infinite if the plan failed."""
        return median(self.latency_us) / self.drift if self.ok else float("inf")


class TaskGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A line that says what the task of later records computes, once for each machine's file.

    With it a search can learn from records of models it has never seen: features of a plan are
    worked out from the graph when they are needed, so they may change without a new log.
    """

    v: int = VERSION
    graph: TileGraph
    signature: str
    hardware: str
    hardware_name: str


Line = Record | TaskGraph


class _AnyVersion(msgspec.Struct):
    v: int


_decoder = msgspec.json.Decoder(Record)
_graph_decoder = msgspec.json.Decoder(TaskGraph)
_GRAPH = b'"graph":'
_HEAD_BYTES = 24
"""A graph stands at the beginning of its line: `{"v":1,"graph":`."""
_encoder = msgspec.json.Encoder()


def encode_line(line: Line) -> bytes:
    """One line of JSON, newline included. ValueError if a latency is not finite, which JSON cannot
    say."""
    if isinstance(line, Record) and not all(isfinite(latency) for latency in line.latency_us):
        raise ValueError(f"latency_us must be finite, got {line.latency_us}")
    return _encoder.encode(line) + b"\n"


def decode_line(line: bytes) -> Line:
    """What one line of a log holds. LogError says what is wrong with a line that holds nothing."""
    record: Line
    try:
        is_graph = _GRAPH in line[:_HEAD_BYTES]
        record = _graph_decoder.decode(line) if is_graph else _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse_newer(line)
        raise LogError(f"not a tuning record: {error}") from None
    if record.v > VERSION:
        _refuse_newer(line)
    return record


def _refuse_newer(line: bytes) -> None:
    try:
        version = msgspec.json.decode(line, type=_AnyVersion).v
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if version > VERSION:
        raise LogError(
            f"record format {version} is newer than {VERSION}, the newest this tvm_ext reads: "
            "upgrade tvm_ext to use it"
        )
