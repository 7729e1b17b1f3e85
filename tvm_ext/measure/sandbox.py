"""Verify and time one compiled kernel, in a process that may end over it."""

from __future__ import annotations

import ctypes
import os
import signal
from math import ceil, prod
from time import perf_counter
from typing import Any, Protocol

import msgspec
import numpy as np

from tvm_ext.measure.build import one_line
from tvm_ext.measure.inputs import Argument, numpy_dtype
from tvm_ext.measure.job import Failure, Job, Outcome, OutputCheck
from tvm_ext.tvm_api import tvm

CUT_FACTOR = 4.0
"""A candidate this many times slower than the best so far is not repeated."""
CUT_SLACK_US = 5000.0
"""Time by which a call may be late through no fault of the kernel: cold caches, and one slice
given by the scheduler to another process."""
REPEATS = 3
ROUNDS = 3
"""Rounds of `REPEATS` at most; the next one runs only while the last was unsettled."""
REPEAT_MS = 2.0
BEHIND = 1.3
"""A first repeat so far behind the best is the only one."""
SETTLED = 1.05
"""A round is settled when its median is within this factor of its minimum."""
FLUSH = "cache_flush_cpu_non_first_arg"


class Limits(msgspec.Struct, frozen=True):
    """How long and how a kernel is run. `timed=False` stops after the verification."""

    timeout_s: float
    timed: bool = True


class Kernel(Protocol):
    """A kernel that can be called, here or on another machine."""

    module: Any
    """What has its `time_evaluator`."""
    name: str
    """Its own in that."""
    device: Any
    """What it runs on."""
    flush: str
    """What empties the caches of that, by name; nothing where nothing does."""
    refusal: type[Exception]
    """What a call raises when the kernel refuses its arguments."""

    @property
    def alive(self) -> bool:
        """Whether the machine it runs on still answers."""

    def __call__(self, *tensors: Any) -> None: ...

    def outputs(self, arguments: tuple[Argument, ...], byte: int) -> list[Any]:
        """Tensors for its outputs, every byte of which is `byte`."""

    def ready(self) -> None:
        """Called before every call: the time limit starts."""

    def fetch(self, outputs: list[Any]) -> list[np.ndarray]:
        """What stands in its outputs."""


def verify_and_time(
    kernel: Kernel, job: Job, inputs: list[Any], limits: Limits, best_us: float
) -> Outcome:
    """Two calls on outputs filled with different bits verify the kernel; then it is repeated,
    unless the faster of the two already is far slower than the best."""
    best_us = float("inf") if job.in_full else best_us
    times: list[float] = []
    seen: list[list[np.ndarray]] = []
    for fill in (0xFF, 0x00):
        outputs = kernel.outputs(job.arguments, fill)
        tensors = _in_order(job.arguments, inputs, outputs)
        kernel.ready()
        start = perf_counter()
        try:
            kernel(*tensors)
        except kernel.refusal as error:
            if not kernel.alive:
                raise
            return Outcome(failure=Failure("launch", one_line(error)))
        times.append((perf_counter() - start) * 1e6)
        seen.append(kernel.fetch(outputs))
        wrong = _first_wrong(job.checks, seen[-1])
        if wrong:
            return Outcome(failure=Failure("wrong", wrong))
    wrong = _unwritten(*seen)
    if wrong:
        return Outcome(failure=Failure("wrong", wrong))
    if not limits.timed:
        return Outcome()
    if min(times) > CUT_FACTOR * best_us + CUT_SLACK_US:
        return Outcome(tuple(times))
    return Outcome(_repeat(kernel, tensors, limits, times, job.cold, best_us))


def _repeat(
    kernel: Kernel,
    tensors: list[Any],
    limits: Limits,
    calls_us: list[float],
    cold: bool,
    best_us: float,
) -> tuple[float, ...]:
    """Latencies in us of `REPEATS` repeats of about `REPEAT_MS` each, in up to `ROUNDS` rounds;
    `cold` makes a repeat one call on cold caches. A kernel too long to be repeated within
    half the time limit keeps the times of its verification calls, one that is behind the best
    that of its first repeat.

    The limit holds for each evaluation: where other programs take the cores, every parallel launch
    waits for the scheduler, and 30 us become milliseconds. Past it in all, what was measured
    counts.
    """
    cold = cold and bool(kernel.flush)
    call_s = min(calls_us) / 1e6
    repeats = min(REPEATS, int(limits.timeout_s / 2 / call_s) - 1)
    if repeats < 1:
        return tuple(calls_us)

    def timed(count: int, call_us: float, least_ms: float) -> list[float]:
        """TVM calls the kernel once more before each evaluation, so several repeats are one. One
        that takes less than `least_ms` is made again, longer."""
        evaluate = kernel.module.time_evaluator(
            kernel.name,
            kernel.device,
            number=1 if cold else max(1, ceil(REPEAT_MS * 1e3 / call_us)),
            repeat=count,
            min_repeat_ms=0 if cold else ceil(least_ms),
            f_preproc=kernel.flush if cold else "",
        )
        set_alarm(limits, count)
        return [float(seconds) * 1e6 for seconds in evaluate(*tensors).results]

    latency_us: list[float] = []
    start = perf_counter()
    for _ in range(ROUNDS):
        for count in (1, repeats - 1) if repeats > 1 else (1,):
            # calls for verification find nothing in the caches: fewer than needed, but enough
            known = bool(latency_us)
            call_us = latency_us[0] if known else min(calls_us)
            latency_us += timed(count, call_us, 0.0 if known else REPEAT_MS / 2)
            behind = latency_us[0] > BEHIND * best_us
            if perf_counter() - start > limits.timeout_s or (behind and len(latency_us) == 1):
                return tuple(latency_us)
        last = latency_us[-repeats:]
        if np.median(last) <= SETTLED * min(last) or repeats < REPEATS:
            break
    return tuple(latency_us)


def part_threads() -> None:
    """Start TVM's pool and keep this thread off the cores its workers are pinned to.

    TVM lets the calling thread float; started on a worker's core it may share it for tens of
    milliseconds, and the kernel then reads as half as fast as it is. Linux only.
    """
    tvm.runtime.num_threads()
    if not os.path.isdir("/proc/self/task"):
        return
    workers = [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
    pinned = [cores for cores in map(os.sched_getaffinity, workers) if len(cores) == 1]
    free = os.sched_getaffinity(0).difference(*pinned)
    if free:
        os.sched_setaffinity(0, free)


def set_alarm(limits: Limits, stages: int = 1) -> None:
    """End this process in `timeout_s` a stage unless set anew: SIGALRM's default action stops even
    a kernel that never returns to the interpreter."""
    signal.setitimer(signal.ITIMER_REAL, stages * limits.timeout_s)


def clear_alarm() -> None:
    """This process may wait as long as it likes."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def filled(arguments: tuple[Argument, ...], byte: int, device: Any = None) -> list[Any]:
    """A tensor on the device, by default this CPU, for each output among the arguments, every byte
    of which is `byte`."""
    tensors = []
    for argument in arguments:
        if argument.output:
            tensor = tvm.runtime.empty(argument.shape, argument.dtype)
            size_bytes = prod(argument.shape) * numpy_dtype(argument.dtype).itemsize
            ctypes.memset(tensor.data_ptr(), byte, size_bytes)
            tensors.append(tensor if device is None else tensor.copyto(device))
    return tensors


def _in_order(arguments: tuple[Argument, ...], inputs: list[Any], outputs: list[Any]) -> list[Any]:
    sources = {False: iter(inputs), True: iter(outputs)}
    return [next(sources[argument.output]) for argument in arguments]


def _first_wrong(checks: tuple[OutputCheck, ...], outputs: list[np.ndarray]) -> str:
    """What the first failed check found; empty if all pass."""
    for check in checks:
        found = outputs[check.output].reshape(-1)[check.flat_indices].astype(np.float64)
        wanted = check.values.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.where(found == wanted, 0.0, np.abs(found - wanted))
        error[np.isnan(found) & np.isnan(wanted)] = 0.0
        bad = ~(error <= check.atol + check.rtol * np.abs(np.nan_to_num(wanted)))
        if bad.any():
            worst = int(np.argmax(np.where(bad, np.nan_to_num(error, nan=np.inf), -1.0)))
            return (
                f"output {check.output}: {int(bad.sum())} of {bad.size} checked elements differ; "
                f"element {int(check.flat_indices[worst])} is {found[worst]:g}, "
                f"should be {wanted[worst]:g}"
            )
    return ""


def _unwritten(first: list[np.ndarray], second: list[np.ndarray]) -> str:
    """Whether an output still shows what was in it before the call; empty if none does.

    Two calls on the same data must agree bit for bit, whatever the outputs held before: an
    element left unwritten, or added to without being cleared, differs.
    """
    for index, (one, two) in enumerate(zip(first, second, strict=True)):
        if one.tobytes() == two.tobytes():
            continue
        differ = int((_bytes(one) != _bytes(two)).any(axis=1).sum())
        if differ:
            return (
                f"output {index}: {differ} of {one.size} elements depend on what the buffer held "
                "before the call: not written, or read before they were written"
            )
    return ""


def _bytes(array: np.ndarray) -> np.ndarray:
    """The array's elements as rows of bytes."""
    return array.reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
