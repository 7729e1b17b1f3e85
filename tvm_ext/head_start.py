"""`HeadStart`: kernels become machine code in processes beside the passes that still decide.

    passes, one core:    ... Fuse, Stitch | FuseTiles, StitchGlobal, ... | plan, compile, link
    head start, others:                   | plan, compile, plan, ...     | what is ready is taken

Passes are Python and hold its lock, so threads gain nothing here. The processes are forks: they
have the module as it is by then. Kernels that a later pass merges were compiled for nothing, on a
core that had nothing to do. What is taken is what would have been made: it goes by the hash of the
scheduled function.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from tvm_ext.hardware import physical_cores
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, build
from tvm_ext.planner import make_task
from tvm_ext.records import Database
from tvm_ext.runtime.kernel import files_are_limited, object_file
from tvm_ext.symbolic import plan
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    ir,
    is_scheduled,
    structural_walk,
    target_of,
    tvm,
)

MOST = 4
"""Processes: each has pages of its own of what it touches, some 100 MB."""
LENGTH_BYTES = 8
"""Of the number before each kernel that says how long it is."""


class Ahead(msgspec.Struct, frozen=True):
    """A kernel that was compiled ahead."""

    name: str
    tir_hash: str
    code: bytes
    """Its object file."""


class HeadStart:
    """Compiles kernels in processes of their own, until they are asked for or the block is left.

    There is one for each core but one, and none where files may not be of any length.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        """What each process writes to."""
        self._ready: dict[tuple[str, str], bytes] = {}

    def __enter__(self) -> HeadStart:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, work: Callable[[int, int], Iterable[Ahead]]) -> None:
        """Starts the processes, the first, second, ... of so many, for their parts of the work,
        as many as the system allows. What fails in one fails here again, and is told then."""
        if files_are_limited():
            return
        count = min(physical_cores() - 1, MOST)
        with suppress(OSError):
            for place in range(count):
                file = os.memfd_create("head_start")
                try:
                    child = _forked(partial(work, place, count), file)
                except OSError:
                    os.close(file)
                    raise
                self._files[child] = file

    def end(self) -> None:
        """Stops the processes; what they have finished is there to be taken."""
        for child, file in self._files.items():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self._ready |= {(one.name, one.tir_hash): one.code for one in _kernels(file)}
            os.close(file)
        self._files.clear()

    def taken(self, name: str, tir_hash: str) -> bytes:
        """The object file of a kernel; nothing if it has none."""
        return self._ready.pop((name, tir_hash), b"")


def compiled(
    mod: IRModule,
    passes: Sequence[Any],
    hardware: HardwareModel,
    log: str | os.PathLike[str] | None,
    first: int,
    step: int,
) -> Iterator[Ahead]:
    """Every so many of the kernels of a module after some passes, those called last first: what
    lies between them is smaller than between the first of most models, so they are merged less."""
    mod = tvm.transform.Sequential(list(passes))(mod)
    database = Database.open(log) if log is not None else None
    target = target_of(hardware.target)
    called: list[ir.GlobalVar] = []
    structural_walk(mod["main"], (ir.GlobalVar, called.append))
    for variable in islice(dict.fromkeys(reversed(called)), first, None, step):
        func, name = mod[variable], str(variable.name_hint)
        if not isinstance(func, PrimFunc) or is_scheduled(func):
            continue
        planned = plan(make_task(func, name), hardware, database)
        built = build(planned.func, target, name, run=False)
        if isinstance(built, Built):
            yield Ahead(name, planned.tir_hash, object_file(built.module))


def _forked(work: Callable[[], Iterable[Ahead]], file: int) -> int:
    """The process that writes what the work makes to a file, as long as this one lives."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        with suppress(BaseException), open(os.devnull, "w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            for kernel in work():
                if os.getppid() != parent:
                    break
                _append(file, kernel)
        os._exit(0)
    return child


def _append(file: int, kernel: Ahead) -> None:
    data = msgspec.msgpack.encode(kernel)
    os.write(file, len(data).to_bytes(LENGTH_BYTES, "little") + data)


def _kernels(file: int) -> Iterator[Ahead]:
    """Those that were written in full."""
    data = memoryview(os.pread(file, os.fstat(file).st_size, 0))
    while len(data) >= LENGTH_BYTES:
        size = int.from_bytes(data[:LENGTH_BYTES], "little")
        one, data = data[LENGTH_BYTES:][:size], data[LENGTH_BYTES:][size:]
        if len(one) == size:
            yield msgspec.msgpack.decode(one, type=Ahead)
