"""Verify and time one compiled kernel on a borrowed device: the sandbox's rules, over RPC.

Runs in a forked child of the fleet's worker, which learns through `Say` how far it is, and what a
loss of the device therefore means. The child's own alarm ends it where a device is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil, prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tvm import rpc

from tvm_ext.measure.device import ALARM, PART_THREADS
from tvm_ext.measure.inputs import Argument, numpy_dtype
from tvm_ext.measure.job import Job, Outcome
from tvm_ext.measure.sandbox import FLUSH, Limits, filled, set_alarm, verify_and_time
from tvm_ext.measure.tracker import Loan, Tracker
from tvm_ext.tvm_api import tvm

WAIT_S = 300.0
"""Longest wait for a device that others have borrowed."""
ANOTHER_S = 10.0
"""Longest wait for a device on which the kernel has not failed yet."""
CONNECT_S = 10.0
BYTES_PER_S = 1e6
"""Slowest network that is waited for."""
STAGES = 6
"""Stages of `limits.timeout_s` in a session, after which a server ends it: TVM's own servers know
no shorter limit, ours do."""

Say = Callable[[str, str], None]
"""Takes a stage (`tracker`, `device`, `call`) and the address of its device."""


class Fleet(msgspec.Struct, frozen=True):
    """Where and how kernels are compiled and measured."""

    target: str
    tracker: str
    key: str
    num_threads: int
    build_timeout_s: float
    build_workers: int
    compiler: str
    """Links the shared objects; empty: the one TVM finds for this machine."""
    folder: str
    """Where they lie meanwhile."""


def run_remotely(
    say: Say,
    fleet: Fleet,
    library: Path,
    job: Job,
    inputs: list[np.ndarray],
    limits: Limits,
    best_us: float,
    avoid: set[str],
) -> Outcome:
    """Borrow a device, not one of `avoid`, and return what came of the kernel there. Raises OSError
    or RuntimeError, whatever TVM raises, when the tracker or the device is lost."""
    say("tracker", "")
    moved = _bytes(job) + library.stat().st_size
    moving = Limits(CONNECT_S + moved / BYTES_PER_S)
    session_s = ceil(moving.timeout_s + STAGES * limits.timeout_s)
    loan, session = _borrow(fleet, session_s, avoid, say)
    set_alarm(moving)
    kernel = _Kernel(session, library, limits, moving, partial(say, "call", loan.address))
    if kernel.threads != fleet.num_threads:
        raise RuntimeError(
            f"runs kernels on {kernel.threads} threads, {fleet.num_threads} are asked for; start "
            f"its server with --threads {fleet.num_threads}"
        )
    sent = [tvm.runtime.tensor(array, kernel.device) for array in inputs]
    return verify_and_time(kernel, job, sent, limits, best_us)


def _bytes(job: Job) -> int:
    """Bytes of all arguments."""
    return sum(prod(a.shape) * numpy_dtype(a.dtype).itemsize for a in job.arguments)


class _Kernel:
    """A kernel loaded in a session: a `sandbox.Kernel`. `calling` says that it is called next;
    `moving` limits what goes over the network."""

    refusal: type[Exception] = RuntimeError
    flush = FLUSH
    name = "main"

    def __init__(
        self,
        session: Any,
        library: Path,
        limits: Limits,
        moving: Limits,
        calling: Callable[[], None],
    ) -> None:
        session.upload(str(library))
        self._session, self._limits, self._moving = session, limits, moving
        self._calling = calling
        self._library = session.load_module(library.name)
        self._main = self._library["main"]
        self._alarm = self._find(ALARM)
        part_threads = self._find(PART_THREADS)
        if part_threads:
            part_threads()
        self.threads = int(session.get_function("runtime.NumThreads")())
        self.device = session.cpu()
        self.module = self

    def __call__(self, *tensors: Any) -> None:
        self._guard(1)
        self._main(*tensors)

    def outputs(self, arguments: tuple[Argument, ...], byte: int) -> list[Any]:
        set_alarm(self._moving)
        return [tensor.copyto(self.device) for tensor in filled(arguments, byte)]

    def ready(self) -> None:
        self._calling()
        set_alarm(self._limits)

    def fetch(self, outputs: list[Any]) -> list[np.ndarray]:
        set_alarm(self._moving)
        return [tensor.numpy() for tensor in outputs]

    def time_evaluator(
        self, name: str, _here: Any, *, repeat: int, f_preproc: str, **options: Any
    ) -> Callable[..., Any]:
        """As of a local module; caches stay warm where the device cannot flush them."""
        if f_preproc and not self._find(f_preproc):
            f_preproc = ""
        evaluate = self._library.time_evaluator(
            name, self.device, repeat=repeat, f_preproc=f_preproc, **options
        )

        def timed(*tensors: Any) -> Any:
            self._guard(repeat)
            return evaluate(*tensors)

        return timed

    @property
    def alive(self) -> bool:
        """Whether the session still answers."""
        with suppress(RuntimeError, OSError):
            return bool(self._session.get_function("runtime.NumThreads")())
        return False

    def _guard(self, stages: int) -> None:
        """Frees the device of a kernel that hangs; later than ours, by which it is known."""
        if self._alarm:
            self._alarm(stages * self._limits.timeout_s + 1.0)

    def _find(self, name: str) -> Any:
        """A remote function; None if the server has none of this name."""
        with suppress(AttributeError):
            return self._session.get_function(name)
        return None


def _borrow(fleet: Fleet, session_s: int, avoid: set[str], say: Say) -> tuple[Loan, Any]:
    """A free device and a session on it. One to be avoided is held until the tracker, which lends
    none twice, gives another."""
    with Tracker(fleet.tracker) as tracker:
        set_alarm(Limits(WAIT_S + CONNECT_S))
        loan = tracker.borrow(fleet.key, WAIT_S)
        session = _connect(loan, session_s, say)
        if loan.address not in avoid:
            return loan, session
        say("tracker", "")
        with suppress(TimeoutError):
            set_alarm(Limits(ANOTHER_S + CONNECT_S))
            other = tracker.borrow(fleet.key, ANOTHER_S)
            return other, _connect(other, session_s, say)
        say("device", loan.address)
        return loan, session


def _connect(loan: Loan, session_s: int, say: Say) -> Any:
    say("device", loan.address)
    set_alarm(Limits(CONNECT_S))
    return rpc.connect(loan.host, loan.port, loan.match_key, session_timeout=session_s)
