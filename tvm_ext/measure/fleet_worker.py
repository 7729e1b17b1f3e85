"""The fleet's worker: forks a child per compilation and a child per kernel on a device.

It has no threads and runs no kernel, so it can fork at any time; what a compiler, TVM's RPC client
or a silent device does to a child costs only that child. Requests are (jobs, limits, best_us);
answers are ("outcome", index, Outcome) as they come, ("bug", text), and ("end",).
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec
import numpy as np
import numpy.ma

from tvm_ext.measure.fleet_build import export
from tvm_ext.measure.fleet_child import Child
from tvm_ext.measure.fleet_run import Fleet, run_remotely
from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome
from tvm_ext.measure.sandbox import Limits
from tvm_ext.measure.tracker import Tracker
from tvm_ext.measure.worker import misfit
from tvm_ext.tvm_api import tvm

KERNEL_TRIES = 2
"""Sessions that a kernel may end, or hang in, before the kernel is blamed and not the device."""
TRIES = 3
"""Sessions lost in any way, after which a job is given up."""
TICK_S = 0.5
"""Time between two looks at the tracker."""
DESERTED_S = 15.0
"""A fleet that has no server for so long is given up; one is gone for a moment when restarted."""


def serve(descriptor: int) -> None:
    """Answer requests until the other end closes. The first message is the `Fleet`."""
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        # A child that outlived this process would otherwise keep the other side waiting for it.
        os.register_at_fork(after_in_child=connection.close)
        fleet = connection.recv()
        while True:
            request = connection.recv()
            try:
                batch = _Batch(connection, fleet, *request)
                try:
                    batch.run()
                finally:
                    batch.end()
            except (EOFError, ConnectionError):
                raise
            except Exception:
                connection.send(("bug", traceback.format_exc()))
            connection.send(("end",))


class _Batch:
    """Jobs on their way: built here, then run wherever a device is free."""

    def __init__(
        self,
        connection: Connection,
        fleet: Fleet,
        jobs: list[Job],
        limits: Limits,
        best_us: float,
    ) -> None:
        self.connection, self.fleet, self.jobs = connection, fleet, jobs
        self.limits, self.best_us = limits, best_us
        self.funcs = {text: tvm.ir.load_json(text) for text in {job.func for job in jobs}}
        self.target = tvm.target.Target(fleet.target)
        self.left = set(range(len(jobs)))
        self.to_build, self.to_run = deque(range(len(jobs))), deque[int]()
        self.hashes = [""] * len(jobs)
        self.losses: list[list[str]] = [[] for _ in jobs]
        self.failed_on: list[set[str]] = [set() for _ in jobs]
        self.children: dict[Connection, Child] = {}
        self.servers: set[str] = set()
        self.looked = self.seen = 0.0
        self._inputs: tuple[tuple[tuple[Argument, ...], int] | None, list[np.ndarray]] = (None, [])

    def run(self) -> None:
        """Until every job has its outcome."""
        self.seen = time.monotonic()
        while self.left:
            self.look()
            self.start()
            # The tuner says nothing before the batch ends: what can be read there is its end.
            for ready in wait([self.connection, *self.children], TICK_S):
                if ready is self.connection:
                    raise EOFError
                self.hear(self.children[ready])  # type: ignore[index]
            for child in self.at("build"):
                if time.monotonic() - child.started > self.fleet.build_timeout_s:
                    limit = f"did not compile within {self.fleet.build_timeout_s:g} s"
                    self.settle(self.bury(child), Failure("compile", limit))

    def end(self) -> None:
        """Ends whatever is still at work."""
        for child in list(self.children.values()):
            self.bury(child)

    def at(self, *stages: str) -> list[Child]:
        """The children at one of these stages."""
        return [child for child in self.children.values() if child.stage in stages]

    def look(self) -> None:
        """Asks the tracker who is there; without it, only what is on a device already goes on."""
        now = time.monotonic()
        if now - self.looked < TICK_S:
            return
        self.looked = now
        name = f"tracker {self.fleet.tracker}"
        try:
            with Tracker(self.fleet.tracker) as tracker:
                self.servers = tracker.servers().get(self.fleet.key, set())
        except OSError as error:
            self.strand(f"{name}: has gone ({error.strerror or error})")
            return
        self.seen = now if self.servers else self.seen
        if now - self.seen > DESERTED_S:
            self.strand(f"{name}: lost its last server of key {self.fleet.key!r}")

    def strand(self, message: str) -> None:
        """Fails every job that no device is at work on."""
        for child in self.at("tracker"):  # one that has found a device may have said so by now
            while child.reader in self.children and child.reader.poll():
                self.hear(child)
        busy = {child.index for child in self.at("device", "call")}
        for child in self.at("build", "tracker"):
            self.bury(child)
        self.to_build.clear()
        self.to_run.clear()
        for index in self.left - busy:
            self.settle(index, Failure("device", message))

    def start(self) -> None:
        """Forks as many children as there are compilers and devices free."""
        while self.to_build and len(self.at("build")) < self.fleet.build_workers:
            index = self.to_build.popleft()
            job = self.jobs[index]
            func = self.funcs[job.func]
            unfit = misfit(func, job.arguments)
            what = (func, job.plan, self.target, self.path(index), unfit)
            self.add(Child(index, "build", export, *what, self.fleet.compiler))
        while self.to_run and len(self.at("tracker", "device", "call")) < len(self.servers):
            index = self.to_run.popleft()
            job, failed_on = self.jobs[index], self.failed_on[index]
            avoid = failed_on if self.servers - failed_on else set()
            work = (self.fleet, self.path(index), job, self.inputs(job), self.limits)
            self.add(Child(index, "tracker", run_remotely, *work, self.best_us, avoid))

    def add(self, child: Child) -> None:
        self.children[child.reader] = child

    def path(self, index: int) -> Path:
        """Where the shared object of a job lies."""
        return Path(self.fleet.folder) / f"kernel{index}.so"

    def inputs(self, job: Job) -> list[np.ndarray]:
        """Made once for all candidates of a task, and shared with the children."""
        key = (job.arguments, job.seed)
        if self._inputs[0] != key:
            self._inputs = (key, make_inputs(*key))
        return self._inputs[1]

    def hear(self, child: Child) -> None:
        """One message of a child, or its end."""
        try:
            message = child.reader.recv()
        except EOFError:
            child.process.join()
            message = ("died",)
        match message:
            case ("stage", stage, address):
                child.stage, child.address = stage, address or child.address
            case ("done", (failure, tir_hash)):  # compiled
                index = self.bury(child)
                self.hashes[index] = tir_hash
                if failure is None:
                    self.to_run.append(index)
                else:
                    self.settle(index, failure)
            case ("done", outcome):
                self.finish(self.bury(child), outcome)
            case ("bug", text):
                raise RuntimeError(text)
            case ("lost", text, trace):
                if child.stage == "build":
                    raise RuntimeError(trace)
                self.lose(child, text)
            case ("died",):
                self.lose(child, f"its client ended with code {child.process.exitcode}")

    def lose(self, child: Child, text: str) -> None:
        """A child ended without an answer: what that says of its job, and whether to try again."""
        silent = child.process.exitcode == -signal.SIGALRM
        index = self.bury(child)
        if child.stage == "build":
            code = child.process.exitcode
            self.settle(index, Failure("compile", f"ended the compiling process, code {code}"))
            return
        if child.stage != "call":
            known = f"device {child.address}" if child.address else f"tracker {self.fleet.tracker}"
            failure = Failure("device", f"{known}: {'no answer in time' if silent else text}")
        elif silent:
            limit = f"within {self.limits.timeout_s:g} s"
            failure = Failure("hang", f"kernel did not return {limit} on {child.address}")
        else:
            failure = Failure("crash", f"kernel ended its session on {child.address}")
        self.failed_on[index].add(child.address)
        losses = self.losses[index]
        losses.append(failure.kind)
        blamed = sum(kind != "device" for kind in losses)
        if blamed == KERNEL_TRIES or len(losses) == TRIES:
            self.settle(index, failure)
        else:
            self.to_run.append(index)
            self.looked = 0.0

    def bury(self, child: Child) -> int:
        """Ends a child; returns its job."""
        del self.children[child.reader]
        child.end()
        return child.index

    def settle(self, index: int, failure: Failure) -> None:
        self.finish(index, Outcome(failure=failure))

    def finish(self, index: int, outcome: Outcome) -> None:
        """Sends the outcome of a job at once: what has been measured is lost by nothing."""
        self.left.discard(index)
        self.path(index).unlink(missing_ok=True)
        self.best_us = min(self.best_us, outcome.best_us)
        outcome = msgspec.structs.replace(outcome, tir_hash=self.hashes[index])
        self.connection.send(("outcome", index, outcome))
