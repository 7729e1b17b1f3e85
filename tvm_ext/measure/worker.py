"""The measuring process: compiles what it is sent, then has the kernels run in a forked child.

It never runs a kernel itself, so it can fork at any time, and machine code that it has compiled
is there in the child for nothing. `tvm_ext.measure.run.Measurer` starts it and talks to it over a
socket: requests are (jobs, limits, best_us), answers are tuples whose first word names them.
"""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy.ma  # noqa: F401 - TVM's evaluator takes medians, which load it: once here, not per child

from tvm_ext.measure.build import Built, Written, build_many
from tvm_ext.measure.inputs import Argument
from tvm_ext.measure.job import Failure, Job
from tvm_ext.measure.runner import Runner
from tvm_ext.measure.sandbox import Limits
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import PrimFunc, tvm

KEPT = 48
"""Compiled kernels that stay: a batch, its yardstick, the best of others before it."""


def serve(descriptor: int) -> None:
    """Answer requests until the other end closes. The first message is (target, threads that
    compile); a failure of our own is sent back as a traceback, to be raised there."""
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        # A child that outlived this process would otherwise keep the other side waiting for it.
        os.register_at_fork(after_in_child=connection.close)
        target, workers = connection.recv()
        kernels = _Kernels(tvm.target.Target(target), workers)
        cuda = str(tvm.target.Target(target).kind) == "cuda"
        gc.freeze()  # what is here for good is not looked through again, nor copied by children
        with Runner([], Limits(0.0), tvm.cuda() if cuda else None) as runner:
            while True:
                request = connection.recv()
                try:
                    for answer in _batch(connection, kernels, runner, *request):
                        connection.send(answer)
                except ConnectionError:
                    raise
                except Exception:
                    connection.send(("bug", traceback.format_exc()))
                connection.send(("end",))


def _batch(
    connection: Connection,
    kernels: _Kernels,
    runner: Runner,
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

    if kernels.lack(jobs):
        runner.close()  # beside a child, every page that compiling writes to is copied first
    written = kernels.of(jobs, notify)
    fit: list[Built | Failure] = []
    for job, one in zip(jobs, written, strict=True):
        unfit = misfit(kernels.func(job), job.arguments) if isinstance(one.kernel, Built) else None
        fit.append(unfit or one.kernel)
    runner.take(list(zip(fit, jobs, strict=True)), limits, kernels.kept)
    for index, one in enumerate(written):
        yield "running", index
        outcome = runner.run(index, best_us)
        best_us = min(best_us, outcome.best_us)
        yield "outcome", index, msgspec.structs.replace(outcome, tir_hash=one.tir_hash)


class _Kernels:
    """Compiles jobs; the last few kernels stay, for what is measured again and again."""

    def __init__(self, target: Any, workers: int) -> None:
        self._target = target
        self._workers = workers
        self._funcs: dict[str, PrimFunc] = {}
        self._kept: dict[tuple[str, TilePlan | None], Written] = {}

    def func(self, job: Job) -> PrimFunc:
        """The function of a job of the batch at hand."""
        return self._funcs[job.func]

    @property
    def kept(self) -> list[Built]:
        """Those that stay and can be called."""
        found = (written.kernel for written in self._kept.values())
        return [kernel for kernel in found if isinstance(kernel, Built)]

    def lack(self, jobs: list[Job]) -> bool:
        """Whether something has to be compiled for these."""
        return any((job.func, job.plan) not in self._kept for job in jobs)

    def of(self, jobs: list[Job], notify: Callable[[int, bool], None]) -> list[Written]:
        """The kernel of every job, in order; `notify` is told of those that are compiled."""
        texts = dict.fromkeys(job.func for job in jobs)
        self._funcs = {text: self._funcs.get(text) or tvm.ir.load_json(text) for text in texts}
        keys = [(job.func, job.plan) for job in jobs]
        places: dict[tuple[str, TilePlan | None], int] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, place)
        fresh = [place for key, place in places.items() if key not in self._kept]
        found = build_many(
            [(self.func(jobs[place]), jobs[place].plan) for place in fresh],
            self._target,
            self._workers,
            lambda index, finished: notify(fresh[index], finished),
        )
        self._kept |= {keys[place]: one for place, one in zip(fresh, found, strict=True)}
        built = [self._kept[key] for key in keys]
        for key in places:  # those used last are kept longest
            self._kept[key] = self._kept.pop(key)
        for key in list(self._kept)[: max(0, len(self._kept) - KEPT)]:
            del self._kept[key]
        return built


def misfit(func: PrimFunc, arguments: tuple[Argument, ...]) -> Failure | None:
    """Kernels do not look at their arguments: what is wrong with those they would be given."""
    wanted = [(tuple(map(int, p.shape)), str(p.dtype)) for p in func.params]
    given = [(argument.shape, argument.dtype) for argument in arguments]
    return Failure("launch", f"takes {wanted}, is given {given}") if wanted != given else None
