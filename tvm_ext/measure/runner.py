"""Run the kernels of a batch in a forked child, so that a crash or a hang costs only one of them.

Use this only in a process that never launched a parallel kernel: TVM's pool threads do not
survive a fork, and a child of a process that has them would wait for them for ever.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import msgspec
import numpy as np

from tvm_ext.measure.build import Built
from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome
from tvm_ext.measure.sandbox import (
    FLUSH,
    Limits,
    clear_alarm,
    filled,
    part_threads,
    set_alarm,
    verify_and_time,
)
from tvm_ext.tvm_api import tvm

Case = tuple[Built | Failure, Job]


class Inputs:
    """The input tensors of the job at hand on a device; candidates of one task share them."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._key: tuple[tuple[Argument, ...], int] | None = None
        self._tensors: list[Any] = []

    def of(self, job: Job) -> list[Any]:
        """A tensor for each argument that is no output."""
        key = (job.arguments, job.seed)
        if key != self._key:
            arrays = make_inputs(*key)
            self._tensors = [tvm.runtime.tensor(array, self.device) for array in arrays]
            self._key = key
        return self._tensors


class Runner:
    """Verifies and times compiled kernels, one after another in one child.

    The child dies with a kernel: by the kernel's own signal (`crash`) or by the alarm set before
    each stage (`hang`), which needs no help from the kernel; the next one gets a new child. A
    kernel that ends a child where others have run before it, or whose values are wrong there, may
    pay for what they did to its memory: it is tried again in a child of its own. One that hangs
    is not, it would take the time limit once more.

    To fork, to start the threads and to touch every page for the first time cost a child as much as
    45 calls of a kernel of 1 ms: it stays for other cases of kernels that it knows. But while it
    does, the process it comes from is slow to write (compiling takes 1.4 times as long).

    A GPU is touched by children only: what a process has asked of the driver a fork cannot use.

    cases   kernels and what is asked of them; all are compiled already, or have failed to
    device  what they run on; this CPU by default
    """

    def __init__(self, cases: Sequence[Case], limits: Limits, device: Any = None) -> None:
        self._inputs = Inputs(device or tvm.cpu())
        self._child: _Child | None = None
        self.take(cases, limits)

    def take(self, cases: Sequence[Case], limits: Limits, spare: Sequence[Built] = ()) -> None:
        """Other cases from now on. A child that has to be forked for them is to know `spare`
        kernels as well: those that may be asked for next."""
        self._cases, self._limits, self._spare = cases, limits, spare
        if self._child is not None and not self._child.known.issuperset(self._kernels(cases)):
            self.close()

    def run(self, place: int, best_us: float = float("inf")) -> Outcome:
        """What comes of the kernel at `place`; those far behind `best_us` are not repeated."""
        kernel, job = self._cases[place]
        if isinstance(kernel, Failure):
            return Outcome(failure=kernel)
        outcome = self._ask(place, best_us) if self._child is not None else None
        if outcome is None or _doubtful(outcome):
            if _is_cpu(self._inputs.device):
                self._inputs.of(job)  # made here, every child has them
            known = {kernel.number: kernel for kernel in self._spare}
            self._child = _Child(known | self._kernels(self._cases), self._inputs)
            outcome = self._ask(place, best_us)
        return outcome

    @staticmethod
    def _kernels(cases: Sequence[Case]) -> dict[int, Built]:
        return {kernel.number: kernel for kernel, _ in cases if isinstance(kernel, Built)}

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, place: int, best_us: float) -> Outcome:
        """What the child says; it ends with a failure."""
        kernel, job = self._cases[place]
        assert self._child is not None
        assert isinstance(kernel, Built)
        job = msgspec.structs.replace(job, func=None)
        answer = self._child.ask(kernel.number, job, self._limits, best_us)
        if isinstance(answer, str):
            raise RuntimeError(f"measuring a kernel failed in its child\n{answer}")
        if isinstance(answer, Outcome):
            if answer.failure is not None:
                self.close()
            return answer
        self._child = None
        return Outcome(failure=_ended_by(answer, self._limits))


def _doubtful(outcome: Outcome) -> bool:
    """Whether a kernel that failed after others may be innocent."""
    return outcome.failure is not None and outcome.failure.kind in ("crash", "wrong")


class _Child:
    """A forked process that answers with outcomes until it is told to end or dies."""

    def __init__(self, kernels: Mapping[int, Built], inputs: Inputs) -> None:
        self.known = frozenset(kernels)
        self._connection, theirs = Pipe()
        self._process = os.fork()
        if self._process == 0:
            self._connection.close()
            _serve(theirs, kernels, inputs)
        theirs.close()

    def ask(self, number: int, job: Job, limits: Limits, best_us: float) -> Outcome | str | int:
        """An outcome, the traceback of a failure of our own, or how the process has ended."""
        try:
            self._connection.send((number, job, limits, best_us))
            answer: Outcome | str = self._connection.recv()
            return answer
        except (EOFError, ConnectionError):
            self._connection.close()
            return os.waitpid(self._process, 0)[1]

    def end(self) -> None:
        self._connection.close()
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _serve(connection: Connection, kernels: Mapping[int, Built], inputs: Inputs) -> NoReturn:
    """The child's side. Its end is sudden: threads and kernels are nothing to be tidied up."""
    try:
        part_threads()
        while True:
            number, job, limits, best_us = connection.recv()
            kernel = _Local(kernels[number], limits, inputs.device)
            outcome = verify_and_time(kernel, job, inputs.of(job), limits, best_us)
            clear_alarm()
            connection.send(outcome)
    except (EOFError, ConnectionError):
        os._exit(0)
    except BaseException:
        connection.send(traceback.format_exc())
        os._exit(1)


def _ended_by(status: int, limits: Limits) -> Failure:
    if not os.WIFSIGNALED(status):
        return Failure("crash", f"kernel ended its process, status {status}")
    number = signal.Signals(os.WTERMSIG(status))
    if number == signal.SIGALRM:
        return Failure("hang", f"kernel did not return within {limits.timeout_s:g} s")
    return Failure("crash", f"kernel was ended by {number.name}")


def _is_cpu(device: Any) -> bool:
    return bool(device.dlpack_device_type() == tvm.cpu().dlpack_device_type())


class _Local:
    """A kernel of this process: a `sandbox.Kernel`."""

    refusal: type[Exception] = Exception
    alive = True

    def __init__(self, built: Built, limits: Limits, device: Any) -> None:
        self.module, self.name, self._main = built.module, built.name, built.main
        self._limits = limits
        self.device, self._on_cpu = device, _is_cpu(device)
        self.flush = FLUSH if self._on_cpu else ""

    def __call__(self, *tensors: Any) -> None:
        self._main(*tensors)
        if not self._on_cpu:
            self.device.sync()

    def outputs(self, arguments: tuple[Argument, ...], byte: int) -> list[Any]:
        return filled(arguments, byte, None if self._on_cpu else self.device)

    def ready(self) -> None:
        set_alarm(self._limits)

    def fetch(self, outputs: list[Any]) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in outputs]
