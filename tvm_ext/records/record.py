"""`Record`: one measured plan of one task on one machine, and its line in the log."""

from __future__ import annotations

from math import isfinite
from statistics import median

import msgspec

from tvm_ext.errors import LogError
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
    error: RecordFailure | None = None
    seed: int
    tir_hash: str
    """Hash of the lowered schedule's text: tells whether a replay generates the same code."""
    versions: dict[str, str]
    time: str
    """When it was measured, ISO 8601."""

    @property
    def ok(self) -> bool:
        """Whether the plan ran, correctly, and has a latency."""
        return self.error is None and bool(self.latency_us)

    @property
    def best_us(self) -> float:
        """Median latency; infinite if the plan failed."""
        return median(self.latency_us) if self.ok else float("inf")


class _AnyVersion(msgspec.Struct):
    v: int


_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


def encode_line(record: Record) -> bytes:
    """The record as one line of JSON, newline included. ValueError if a latency is not finite,
    which JSON cannot say."""
    if not all(isfinite(latency) for latency in record.latency_us):
        raise ValueError(f"latency_us must be finite, got {record.latency_us}")
    return _encoder.encode(record) + b"\n"


def decode_line(line: bytes) -> Record:
    """The record in one line of a log. LogError says what is wrong with a line that holds none."""
    try:
        record = _decoder.decode(line)
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
