"""`Measurer`: the latency of scheduled kernels, from a process that no candidate can harm."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import msgspec

from tvm_ext.measure.job import Failure, Job, Outcome
from tvm_ext.measure.remote import Remote
from tvm_ext.measure.sandbox import Limits
from tvm_ext.tvm_api import tvm


class Measurer:
    """Compiles, verifies and times kernels on this machine, alone on it while it times.

    The work is done by one worker process, started at first use, which compiles on
    `build_workers` threads and then runs the kernels in a forked child. The calling process may
    have run kernels before, and sleeps meanwhile. A candidate that crashes, hangs or brings the
    compiler down fails by itself; the batch goes on.

    Timing: two calls verify the kernel and warm it up. A candidate whose faster call took more
    than four times the best so far plus 5 ms ends there, with these two times, one whose first
    repeat is 1.3 times the best with that. Others are repeated three times, about 2 ms each;
    while the median of three lies more than 5 % above their minimum, which is the mark of another
    process at work, up to two rounds of three follow. All repeats are reported: `Outcome.best_us`
    is their median.

    target           TVM target, as anything `tvm.target.Target` takes
    num_threads      threads each kernel runs on
    timeout_s        limit on each stage of a kernel's run: the first call, the second, each repeat
    build_timeout_s  limit on one compilation
    build_workers    compilations at a time; `num_threads` by default

    Not to be shared between threads. Close it, or use it as a context manager.
    """

    one_machine = True
    """Whether all kernels run on the same machine."""

    def __init__(
        self,
        target: Any,
        num_threads: int,
        timeout_s: float = 10.0,
        build_timeout_s: float = 60.0,
        build_workers: int | None = None,
    ) -> None:
        self._target = str(tvm.target.Target(target))
        self._num_threads = num_threads
        self._limits = Limits(timeout_s)
        self._build_timeout_s = build_timeout_s
        self._build_workers = build_workers or num_threads
        self._worker: Remote | None = None
        self._fresh = False

    def measure(self, jobs: Sequence[Job], best_us: float = float("inf")) -> list[Outcome]:
        """Verify and time candidates of one task, in order; one `Outcome` each.

        `best_us` is the best latency known before (of a verified kernel), for cutting slow ones.
        """
        return self._run(jobs, self._limits, best_us)

    def verify(self, jobs: Sequence[Job]) -> list[Failure | None]:
        """Compile and check kernels, which may belong to different tasks, without timing them."""
        limits = msgspec.structs.replace(self._limits, timed=False)
        return [outcome.failure for outcome in self._run(jobs, limits, float("inf"))]

    def close(self) -> None:
        """End the worker. The next measurement would start a new one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, jobs: Sequence[Job], limits: Limits, best_us: float) -> list[Outcome]:
        # one text for all candidates of a function: it is sent once
        texts = {id(job.func): "" for job in jobs}
        sent = []
        for job in jobs:
            texts[id(job.func)] = texts[id(job.func)] or tvm.ir.save_json(job.func)
            sent.append(msgspec.structs.replace(job, func=texts[id(job.func)]))
        outcomes: dict[int, Outcome] = {}
        batches = [list(range(len(jobs)))] if jobs else []
        while batches:
            batch = batches.pop()
            best_us = min([best_us, *(outcome.best_us for outcome in outcomes.values())])
            try:
                suspects = self._run_batch(batch, sent, outcomes, limits, best_us)
            except BaseException:
                self.close()
                raise
            rest = [index for index in batch if index not in outcomes and index not in suspects]
            batches += [[index] for index in suspects]
            batches += [rest] if rest else []
        return [outcomes[index] for index in range(len(jobs))]

    def _start(self) -> Remote:
        """A worker process."""
        first = (self._target, self._build_workers)
        return Remote("tvm_ext.measure.worker", self._num_threads, first)

    def _ready(self) -> Remote:
        """The worker, a new one if there is none or it has ended while idle."""
        if self._worker is not None and not self._worker.alive:
            self.close()
        self._fresh = self._worker is None
        if self._worker is None:
            self._worker = self._start()
        self._worker.forget_words()
        return self._worker

    def _run_batch(
        self,
        batch: list[int],
        jobs: list[Job],
        outcomes: dict[int, Outcome],
        limits: Limits,
        best_us: float,
    ) -> list[int]:
        """Fill in outcomes until the batch ends or the worker does. Returns the jobs of which one
        must have brought it down: they are to be tried again one by one."""
        connection = self._ready().connection
        building: dict[int, float] = {}
        running: list[int] = []
        try:
            connection.send(([jobs[index] for index in batch], limits, best_us))
            while True:
                if building and not connection.poll(self._patience(building)):
                    return self._give_up(building, outcomes)
                match connection.recv():
                    case ("building", position):
                        building[batch[position]] = monotonic()
                    case ("built", position):
                        del building[batch[position]]
                    case ("running", position):
                        running = [batch[position]]
                    case ("outcome", position, outcome):
                        outcomes[batch[position]] = outcome
                    case ("bug", text):
                        raise RuntimeError(f"the measuring process failed\n{text}")
                    case ("end",):
                        return []
        except (EOFError, ConnectionError):
            return self._bury(list(building), running, outcomes)

    def _patience(self, building: dict[int, float]) -> float:
        """Seconds until the oldest compilation is over its limit."""
        return max(0.0, min(building.values()) + self._build_timeout_s - monotonic())

    def _give_up(self, building: dict[int, float], outcomes: dict[int, Outcome]) -> list[int]:
        """Fail the compilation over its limit, or return those of which one is, to be tried again.
        Only the end of its process stops a compiler."""
        self.close()
        limit_s = self._build_timeout_s
        late = [index for index, since in building.items() if monotonic() - since >= limit_s]
        if len(late) > 1:
            return late
        failure = Failure("compile", f"did not compile within {limit_s:g} s")
        outcomes.update((index, Outcome(failure=failure)) for index in late)
        return []

    def _bury(
        self, building: list[int], running: list[int], outcomes: dict[int, Outcome]
    ) -> list[int]:
        """The worker died. Blame the only job it was at, or return those it may have died over. One
        that has served before may have been ended before it began, and the batch goes to the next.
        """
        words = self._worker.last_words() if self._worker else ""
        self.close()
        suspects = building or running
        if not suspects:
            if not self._fresh:
                return []
            raise RuntimeError(f"the measuring process did not start: {words}")
        if len(suspects) > 1:
            return suspects
        kind = "compile" if building else "crash"
        outcomes[suspects[0]] = Outcome(
            failure=Failure(kind, f"ended the measuring process: {words}")
        )
        return []
