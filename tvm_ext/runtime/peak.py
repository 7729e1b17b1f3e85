"""The peak of the moment: what all cores do between the things that are timed.

A probe keeps a machine's best moments. Clocks fall under load, and neighbours on a shared machine
take their part: a product that does nothing but multiply-adds then stays 15 % below the probe's
peak, and so would any other. Held against a reading from the same second it is at its peak.

Read on the threads that kernels run on: TVM's own pool would have to wake up beside them, and a
worker bound to the caller's processor would halve the reading.
"""

from __future__ import annotations

import time

import numpy as np

from tvm_ext.hardware import kernels
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.runtime.kernel import Kernel
from tvm_ext.tvm_api import tvm

READING_S = 1e-3
"""One reading: long beside a launch, short beside what it is read between."""
READINGS, MOST = 4, 32
"""So many readings, and up to so many where none comes near the probe's peak: a thread that was
woken on the caller's processor stays there for some milliseconds, and half the peak is read."""
NEAR = 0.75
QUIET_S = 5e-3
"""Until threads of a model that has run sleep: while they look for work, others are woken there."""


class Peak:
    """Multiply-adds of float32 in registers, on as many threads as the machine has cores."""

    def __init__(self, hardware: HardwareModel) -> None:
        """`hardware` is this host; its kernel is compiled here."""
        used = kernels.instructions(hardware.isa)["float32"]
        chains = kernels.chain_count(hardware.vector_registers)
        kernel = kernels.chains(used, chains).with_attr("global_symbol", "chains")
        module = tvm.IRModule({"chains": kernel})
        built = tvm.compile(module, target=tvm.target.Target(hardware.target))
        self._kernel = Kernel.of(built.mod, "chains", run=True).main
        self._seed = tvm.runtime.tensor(np.array(kernels.SEED, "int32"))
        self._out = tvm.runtime.empty((hardware.cores * chains * used.lanes,), "float32")
        self._tasks = hardware.cores
        operations = 2.0 * chains * used.lanes * used.macs_per_lane * hardware.cores
        self._gflop = operations / 1e9
        """Of one round on all cores."""
        self._probed = hardware.cores * hardware.peak_gflops["float32"]
        self._rounds = max(1, round(READING_S * hardware.peak_gflops["float32"] / self._gflop))

    def gflops(self) -> float:
        """Of all cores, the best of a few readings: threads wake up in the first."""
        time.sleep(QUIET_S)
        best = 0.0
        for count in range(1, MOST + 1):
            best = max(best, self._gflop * self._rounds / self._seconds())
            if count >= READINGS and best > NEAR * self._probed:
                break
        return best

    def _seconds(self) -> float:
        start = time.perf_counter()
        self._kernel(self._seed, self._out, self._tasks, self._rounds)
        return time.perf_counter() - start
