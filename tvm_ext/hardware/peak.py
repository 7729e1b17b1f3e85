"""The peak of the moment: what all cores do between the things that are timed.

A probe keeps a machine's best moments. Clocks fall under load, and neighbours on a shared machine
take their part: a product that does nothing but multiply-adds then stays 15 % below the probe's
peak, and so would any other. Held against a reading from the same second it is at its peak.
"""

from __future__ import annotations

import time

from tvm_ext.hardware.model import HardwareModel

READING_S = 1e-3
"""One reading: long beside a launch, short beside what it is read between."""


class Peak:
    """Multiply-adds of float32 in registers, on as many threads as the machine has cores."""

    def __init__(self, hardware: HardwareModel) -> None:
        """`hardware` is this host; its kernel is compiled here."""
        import numpy as np
        import tvm

        from tvm_ext.hardware import kernels

        used = kernels.instructions(hardware.isa)["float32"]
        chains = kernels.chain_count(hardware.vector_registers)
        kernel = kernels.chains(used, chains).with_attr("global_symbol", "chains")
        module = tvm.IRModule({"chains": kernel})
        built = tvm.compile(module, target=tvm.target.Target(hardware.target)).jit()
        self._kernel = built["chains"]
        self._seed = tvm.runtime.tensor(np.array(kernels.SEED, "int32"))
        self._out = tvm.runtime.empty((hardware.cores * chains * used.lanes,), "float32")
        self._tasks = hardware.cores
        operations = 2.0 * chains * used.lanes * used.macs_per_lane * hardware.cores
        self._gflop = operations / 1e9
        """Of one round on all cores."""
        self._rounds = max(1, round(READING_S * hardware.peak_gflops["float32"] / self._gflop))

    def gflops(self) -> float:
        """One reading, of all cores."""
        start = time.perf_counter()
        self._kernel(self._seed, self._out, self._tasks, self._rounds)
        return self._gflop * self._rounds / (time.perf_counter() - start)
