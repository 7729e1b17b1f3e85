"""`HardwareModel`: all that the picker, the log and the reports know of a machine. Pure data."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

UNPLANNED = frozenset({"avx512vbmi"})
"""Features that decide how some kernels are written, but not which plans are good: logs hold with
and without them."""


WIDEST_BYTES = 64
"""A vector of AVX-512."""
NEAR_CYCLES = 80.0
"""Time in which a core finds other work while it waits for a load. Zen's last cache answers sooner
(46 to 50 cycles, as published), one behind a mesh does not: at 135 cycles a core waits for nearly
all it reads (128 rows of 3072, which leave L2 between panels of weights and come back 12 times, 660
us at 29 GB/s, cost 470 to 690 beside 1400 of work), and for half of what it asks for ahead."""
SHARE = 0.25
"""Part of a shared cache that one can count on: programs beside this one, those behind a hypervisor
too, have the rest (a cache of 32 MiB: 8 MiB are read at 63 GB/s, 16 at 25, as memory is;
of 480 MiB behind a mesh, 150 at 27 GB/s, 200 at 18)."""


class MemoryLevel(msgspec.Struct, frozen=True):
    """One level of the memory hierarchy as one core sees it."""

    name: str
    """`register`, `l1`, `l2`, `l3` or `dram` (GPU: `register`, `shared`, `l2`, `dram`)."""
    size_bytes: int
    """Capacity seen by one core (a shared level: its whole capacity)."""
    gbps: float
    """Sustained read bandwidth of one core, GB/s."""
    line_bytes: int = 64
    """Smallest unit moved (cache line, memory transaction)."""
    shared: bool = False
    """Whether all cores share the capacity and, together, `total_gbps`."""
    total_gbps: float = 0.0
    """Sustained read bandwidth of all cores together, GB/s; 0 = cores x gbps."""


class HardwareModel(msgspec.Struct, frozen=True):
    """A machine: cores, vector unit, memory levels (innermost first), overheads, TVM target."""

    name: str
    """Catalog name (`cpu/x86-avx512`, `cuda/sm_90`, `arm/neoverse-n1`) or `cpu/host`."""
    kind: Literal["cpu", "cuda", "arm"]
    cores: int
    """Physical cores, or streaming multiprocessors."""
    vector_bytes: int
    """Width of one vector register (a CUDA warp: 32 x 4 bytes)."""
    vector_registers: int
    """Architectural vector registers (CUDA: 32-bit registers per thread)."""
    fma_latency_cycles: int
    fma_per_cycle: int
    """Vector fused multiply-adds one core starts per cycle."""
    peak_gflops: dict[str, float]
    """Peak of one core by element type, GFLOP/s (a multiply-add counts two)."""
    levels: tuple[MemoryLevel, ...]
    launch_us: float
    """Cost of starting one parallel region on all cores (CUDA: one kernel launch)."""
    barrier_us: float
    target: dict[str, Any]
    """The TVM target as its JSON dict."""
    isa: tuple[str, ...] = ()
    """Instruction-set features that decide code generation (`avx2`, `avx512f`, ...)."""
    shared_cache_cycles: int = 0
    """Cycles until the cache that cores share answers a load; 0 if that was not measured."""
    weights_fit: bool = False
    """Whether the last cache has room for all weights of the model that runs: part of them is then
    still there in the next run. Else each layer finds its own in memory."""

    def __hash__(self) -> int:
        return hash((self.name, self.cores, self.levels, self.isa, self.weights_fit))

    def running(self, weights_bytes: float) -> HardwareModel:
        """The machine as it runs a model with so many bytes of weights. A cache behind a mesh is
        that of a whole machine, of which this one may be a part."""
        room_bytes = self.levels[-2].size_bytes * (SHARE if self.cache_is_far else 1)
        return msgspec.structs.replace(self, weights_fit=weights_bytes <= room_bytes)

    def level(self, name: str) -> MemoryLevel:
        """The level called `name`; KeyError if this machine has none."""
        for entry in self.levels:
            if entry.name == name:
                return entry
        raise KeyError(name)

    @property
    def clock_ghz(self) -> float:
        """Clock implied by the measured peak of one core."""
        per_cycle = 2 * self.fma_per_cycle * self.lanes(4)
        return self.peak_gflops.get("float32", per_cycle) / per_cycle

    @property
    def vector_loads_per_cycle(self) -> int:
        """Whole vectors that a core loads at once: two, or one where its units are half as wide as
        vectors are (Zen 4's 512 bits)."""
        return 1 if self.fma_per_cycle == 1 and self.vector_bytes == WIDEST_BYTES else 2

    def fmas_per_cycle(self, lanes: int) -> int:
        """Multiply-adds of vectors of so many float32 elements that one core starts per cycle: of
        half vectors two where its units are half as wide as vectors are."""
        halves = self.vector_loads_per_cycle == 1 and 2 * lanes <= self.lanes(4)
        return 2 * self.fma_per_cycle if halves else self.fma_per_cycle

    def pace_of_dots(self, dtype: str, elements: int) -> int:
        """How many vectors of float32 a core multiplies and adds in the time of a vector of dots of
        so many elements, by its peaks: 4 of two bfloat16 beside a matrix unit, mostly 1."""
        peaks = self.peak_gflops
        dots = peaks.get(dtype, 0.0) / elements
        return max(1, round(peaks["float32"] / dots)) if dots else 1

    @property
    def cache_is_far(self) -> bool:
        """Whether the cache that cores share was found to answer from behind a mesh."""
        return self.shared_cache_cycles > NEAR_CYCLES

    @property
    def own_cache_bytes(self) -> int:
        """Bytes of the largest cache that a core shares with none; 0 without one."""
        return max((level.size_bytes for level in self.levels[:-1] if not level.shared), default=0)

    def lanes(self, dtype_bytes: int) -> int:
        """Elements of `dtype_bytes` in one vector register, at least 1."""
        return max(1, self.vector_bytes // dtype_bytes)

    def fingerprint(self) -> str:
        """Twelve hex digits over what decides code and speed class, not over measured bandwidths or
        installed memory: two probes of one machine give one fingerprint."""
        decisive = (
            self.kind,
            self.cores,
            self.vector_bytes,
            self.vector_registers,
            tuple((x.name, x.size_bytes) for x in self.levels if x.name != "dram"),
            tuple(sorted(set(self.isa) - UNPLANNED)),
            self.target.get("mcpu") or self.target.get("arch") or "",
        )
        return hashlib.sha256(msgspec.json.encode(decisive)).hexdigest()[:12]
