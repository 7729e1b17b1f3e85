"""The measuring process: compiles what it is sent, then runs each kernel in a forked child.

It never runs a kernel itself, so it can fork at any time, and machine code that it has compiled
is there in the child for nothing. `tvm_ext.measure.run.Measurer` starts it and talks to it over a
socket: requests are (jobs, limits, best_us), answers are tuples whose first word names them.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy.ma  # noqa: F401 - TVM's evaluator takes medians, which load it: once here, not per child

from tvm_ext.measure.build import Built, build_many
from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome
from tvm_ext.measure.sandbox import Limits, run_forked
from tvm_ext.tvm_api import PrimFunc, tvm


def serve(descriptor: int) -> None:
    """Answer requests until the other end closes. The first message is (target, threads that
    compile); a failure of our own is sent back as a traceback, to be raised there."""
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        # A child that outlived this process would otherwise keep the other side waiting for it.
        os.register_at_fork(after_in_child=connection.close)
        target, workers = connection.recv()
        target = tvm.target.Target(target)
        while True:
            request = connection.recv()
            try:
                for answer in _batch(connection, target, workers, *request):
                    connection.send(answer)
            except ConnectionError:
                raise
            except Exception:
                connection.send(("bug", traceback.format_exc()))
            connection.send(("end",))


def _batch(
    connection: Connection,
    target: Any,
    workers: int,
    jobs: list[Job],
    limits: Limits,
    best_us: float,
) -> Iterator[tuple[Any, ...]]:
    """Yield ("running", index) and ("outcome", index, Outcome) for each job; while compiling, send
    ("building", index) and ("built", index). By these the other side knows what this process was
    at when it died or stood still."""
    lock = threading.Lock()

    def notify(index: int, finished: bool) -> None:
        with lock:
            connection.send(("built" if finished else "building", index))

    loaded = {text: tvm.ir.load_json(text) for text in dict.fromkeys(job.func for job in jobs)}
    asked = [(loaded[job.func], job.plan) for job in jobs]
    kernels = deque(build_many(asked, target, workers, notify))
    inputs = _Inputs()
    for index, job in enumerate(jobs):
        written = kernels.popleft()
        kernel = written.kernel
        yield "running", index
        if isinstance(kernel, Built):
            kernel = _misfit(asked[index][0], job.arguments) or kernel
        if isinstance(kernel, Built):
            outcome = run_forked(kernel, job, inputs.of(job), limits, best_us)
        else:
            outcome = Outcome(failure=kernel)
        outcome = msgspec.structs.replace(outcome, tir_hash=written.tir_hash)
        best_us = min(best_us, outcome.best_us)
        yield "outcome", index, outcome


def _misfit(func: PrimFunc, arguments: tuple[Argument, ...]) -> Failure | None:
    """Kernels do not look at their arguments: what is wrong with those they would be given."""
    wanted = [(tuple(map(int, p.shape)), str(p.dtype)) for p in func.params]
    given = [(argument.shape, argument.dtype) for argument in arguments]
    return Failure("launch", f"takes {wanted}, is given {given}") if wanted != given else None


class _Inputs:
    """The input tensors of the job at hand; candidates of one task share them."""

    def __init__(self) -> None:
        self._key: tuple[tuple[Argument, ...], int] | None = None
        self._tensors: list[Any] = []

    def of(self, job: Job) -> list[Any]:
        key = (job.arguments, job.seed)
        if key != self._key:
            self._tensors = [tvm.runtime.tensor(a) for a in make_inputs(*key)]
            self._key = key
        return self._tensors
