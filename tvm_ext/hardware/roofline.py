"""The roofline: the least time arithmetic and traffic take on a machine, all cores at work.

Williams, Waterman and Patterson: Roofline, an insightful visual performance model (CACM 2009).
"""

from __future__ import annotations

import msgspec

from tvm_ext.hardware.model import HardwareModel, MemoryLevel


class Roof(msgspec.Struct, frozen=True):
    """Least time of a piece of work, and what limits it."""

    latency_us: float
    compute_us: float
    memory_us: float
    bound: str
    """`compute`, or the memory level the data comes from."""


def peak_gflops(hardware: HardwareModel, dtype: str = "float32") -> float:
    """Peak of all cores, GFLOP/s."""
    return hardware.peak_gflops.get(dtype, 1.0) * hardware.cores


def level_gbps(hardware: HardwareModel, level: MemoryLevel) -> float:
    """Bandwidth that all cores get from a level together, GB/s."""
    alone = level.gbps * hardware.cores
    return min(level.total_gbps, alone) if level.total_gbps else alone


def roof(flops: float, io_bytes: float, hardware: HardwareModel) -> Roof:
    """Time of `flops` operations on `io_bytes` bytes that each are moved once.

    The bytes come from the first level that holds them all, the slowest one if none does.
    """
    source = next((x for x in hardware.levels[1:] if io_bytes <= x.size_bytes), hardware.levels[-1])
    compute_us = flops / (peak_gflops(hardware) * 1e3)
    memory_us = io_bytes / (level_gbps(hardware, source) * 1e3)
    bound = "compute" if compute_us > memory_us else source.name
    return Roof(max(compute_us, memory_us), compute_us, memory_us, bound)
