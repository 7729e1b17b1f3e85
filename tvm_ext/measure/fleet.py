"""`FleetMeasurer`: the latency of scheduled kernels on devices elsewhere, many at a time."""

from __future__ import annotations

import tempfile
from typing import Any

from tvm_ext.measure.fleet_run import Fleet
from tvm_ext.measure.job import Failure, Job, Outcome
from tvm_ext.measure.remote import Remote
from tvm_ext.measure.run import Measurer
from tvm_ext.measure.sandbox import Limits
from tvm_ext.measure.tracker import check_fleet


class FleetMeasurer(Measurer):
    """Compiles kernels here, verifies and times each on a device borrowed from TVM's RPC tracker.

    As many kernels run at a time as the tracker has servers of the key, one on each; others are
    compiled meanwhile. A device that dies, is silent or drops the connection costs no kernel: it
    is tried on another one. Verification, timing and `Outcome` are those of `Measurer`, and two
    kinds of failure mean a little more:

    crash, hang  the kernel ended two sessions, or did not return in two
    device       three sessions were lost before the kernel was called, or the tracker has gone:
                 nothing is known of the kernel

    target         what the devices are
    tracker, key   `host:port` of the tracker, and the name that the servers report to it
    num_threads    threads each kernel runs on: those the servers were started with
    timeout_s      limit on each stage of a kernel's run; connecting and sending have their own
    build_workers  compilations at a time; `num_threads` by default
    compiler       command that links shared objects for the devices, for example
                   `aarch64-linux-gnu-g++`; by default the one TVM finds for this machine

    `measure` and `verify` raise FleetError, before anything is compiled, if the tracker cannot be
    reached or has no server of the key. One that goes while they run fails what was not measured.
    """

    one_machine = False

    def __init__(
        self,
        target: Any,
        tracker: str,
        key: str,
        num_threads: int,
        timeout_s: float = 10.0,
        build_timeout_s: float = 60.0,
        build_workers: int | None = None,
        compiler: str = "",
    ) -> None:
        super().__init__(target, num_threads, timeout_s, build_timeout_s, build_workers)
        self._tracker, self._key, self._compiler = tracker, key, compiler

    def _run_batch(
        self,
        batch: list[int],
        jobs: list[Job],
        outcomes: dict[int, Outcome],
        limits: Limits,
        best_us: float,
    ) -> list[int]:
        """Fill in all outcomes; no job is left to be tried again here."""
        check_fleet(self._tracker, self._key)
        worker = self._ready()
        connection = worker.connection
        try:
            connection.send(([jobs[index] for index in batch], limits, best_us))
            while True:
                match connection.recv():
                    case ("outcome", position, outcome):
                        outcomes[batch[position]] = outcome
                    case ("bug", text):
                        raise RuntimeError(f"measuring on the fleet failed\n{text}")
                    case ("end",):
                        return []
        except (EOFError, ConnectionError):
            words = f"the fleet's worker ended: {worker.last_words()}"
            self.close()
            failed = Outcome(failure=Failure("device", words))
            outcomes.update({index: failed for index in batch if index not in outcomes})
            return []

    def _start(self) -> Remote:
        folder = tempfile.TemporaryDirectory(prefix="tvm_ext_fleet_")
        fleet = Fleet(
            target=self._target,
            tracker=self._tracker,
            key=self._key,
            num_threads=self._num_threads,
            build_timeout_s=self._build_timeout_s,
            build_workers=self._build_workers,
            compiler=self._compiler,
            folder=folder.name,
        )
        return _Worker(fleet, folder)


class _Worker(Remote):
    """A fresh interpreter running `fleet_worker.serve`, and the folder it writes kernels to."""

    def __init__(self, fleet: Fleet, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._folder = folder
        super().__init__("tvm_ext.measure.fleet_worker", fleet.num_threads, fleet)

    def kill(self) -> None:
        super().kill()
        self._folder.cleanup()
