"""This machine as the operating system describes it: cores, caches, instruction set. No timing.

On Linux from /proc, /sys and the control group; elsewhere psutil and the catalog fill in.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tvm_ext.amx_permission import granted
from tvm_ext.hardware import catalog, isa
from tvm_ext.hardware.model import HardwareModel, MemoryLevel

PROC = Path("/proc")
CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
LAST = 3
"""Level of the cache that the cores of a processor have in common."""


class Cache(msgspec.Struct, frozen=True):
    """One data or unified cache: its level, capacity, line, and the physical cores that share it
    (of those this process may use)."""

    level: int
    size_bytes: int
    line_bytes: int
    sharers: int


@functools.cache
def core_cpus() -> tuple[int, ...]:
    """One logical CPU for each physical core this process may use: its CPU affinity, cut to the
    control group's quota.

    Kept from the first call on, because TVM's thread pool rewrites the affinity of the thread
    that starts it. Reads a few small files; imports nothing heavy.
    """
    allowed = _allowed_cpus()
    first_of = {_core_of(cpu): cpu for cpu in reversed(allowed)}
    cpus = allowed[: _cores_by_psutil()] if None in first_of else sorted(first_of.values())
    quota = _cgroup_quota_cpus()
    return tuple(cpus[: max(1, math.floor(quota))] if quota else cpus)


def physical_cores() -> int:
    """Physical cores this process may use, at least 1."""
    return len(core_cpus())


def caches() -> tuple[Cache, ...]:
    """The caches of the first usable CPU, innermost first; empty where the system hides them."""
    usable = core_cpus()
    found = []
    for folder in sorted((CPUS / f"cpu{usable[0]}" / "cache").glob("index*")):
        size = _bytes(_text(folder / "size"))
        if size and _text(folder / "type") in ("Data", "Unified"):
            sharing = set(_cpu_list(_text(folder / "shared_cpu_list"))) & set(usable)
            found.append(
                Cache(
                    level=int(_text(folder / "level") or 0),
                    size_bytes=size,
                    line_bytes=int(_text(folder / "coherency_line_size") or 64),
                    sharers=max(1, len(sharing)),
                )
            )
    return tuple(sorted(found, key=lambda cache: cache.level))


def cpu_name() -> str:
    """What the processor calls itself: the marketing name (x86) or implementer and part (Arm)."""
    info = _cpuinfo()
    arm = f"{info.get('CPU implementer', '')} {info.get('CPU part', '')}".strip()
    return info.get("model name") or arm or platform.processor() or platform.machine()


def cpu_features() -> tuple[str, ...]:
    """The instruction sets of this CPU that the system lets this process use; empty if unknown."""
    flags = _cpuinfo().get("flags") or _cpuinfo().get("Features") or ""
    found = isa.from_cpuinfo(flags.split())
    return found if granted() else tuple(name for name in found if not name.startswith(isa.AMX))


def memory_bytes() -> int:
    """Main memory, 0 if unknown."""
    for line in _text(PROC / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def static_model() -> HardwareModel:
    """This host with the catalog's speeds: the nearest preset's figures on the real core count,
    caches and instruction set. Two calls on one machine give one fingerprint."""
    mcpu, mtriple = isa.system_cpu()
    target = {"kind": "llvm", "mtriple": mtriple, "mcpu": mcpu}
    by_llvm = set(isa.llvm_features(target))
    features = cpu_features() or tuple(sorted(by_llvm))
    # Hypervisors hide features a CPU of this name has; LLVM must not use what traps.
    mattr = [f"-{name}" for name in sorted(by_llvm - set(features))]
    mattr += [f"+{name}" for name in features if name not in by_llvm]
    cores = physical_cores()
    preset = catalog.nearest_cpu(mcpu, features)
    width, registers = isa.vector_bytes(features), isa.vector_registers(features)
    peaks = isa.peaks(preset.peak_gflops["float32"], features)
    register = MemoryLevel(
        "register", width * registers, catalog.register_gbps(peaks["float32"]), width
    )
    return msgspec.structs.replace(
        preset,
        name="cpu/host",
        cores=cores,
        vector_bytes=width,
        vector_registers=registers,
        peak_gflops=peaks,
        levels=(register, *_levels(preset, cores)),
        target={**target, "num-cores": cores, **({"mattr": mattr} if mattr else {})},
        isa=features,
    )


def _levels(preset: HardwareModel, cores: int) -> Iterator[MemoryLevel]:
    """The preset's levels beyond the registers, with this machine's sizes where it tells them."""
    speeds = {level.name: level for level in preset.levels}
    found = [cache for cache in caches() if 1 <= cache.level <= LAST]
    for cache in found:
        speed = speeds.get(f"l{cache.level}", speeds["l2"])
        # of a processor lent or bound by the core the others are out of sight, not out of its cache
        shared = cache.sharers > 1 or cache.level >= LAST
        yield msgspec.structs.replace(
            speed,
            name=f"l{cache.level}",
            size_bytes=cache.size_bytes,
            line_bytes=cache.line_bytes,
            shared=shared,
            total_gbps=_total_gbps(speed, cores) if shared else 0.0,
        )
    for level in preset.levels[1:]:
        if level.name == "dram" or not found:
            # A power of two, because what the kernel keeps for itself changes with its version.
            memory = memory_bytes() if level.name == "dram" else 0
            yield msgspec.structs.replace(
                level,
                size_bytes=1 << round(math.log2(memory)) if memory else level.size_bytes,
                total_gbps=_total_gbps(level, cores),
            )


def _total_gbps(level: MemoryLevel, cores: int) -> float:
    """The preset's total, no more than `cores` of its cores can draw."""
    return min(level.total_gbps or math.inf, level.gbps * cores)


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core_of(cpu: int) -> tuple[str, str] | None:
    """(package, core) of one logical CPU; None if the system does not say."""
    topology = CPUS / f"cpu{cpu}" / "topology"
    package, core = _text(topology / "physical_package_id"), _text(topology / "core_id")
    return (package, core) if core else None


def _cores_by_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    count: int | None = psutil.cpu_count(logical=False)
    return count


def _cgroup_quota_cpus() -> float:
    """The tightest CPU quota of this process' control groups, in CPUs; 0 if there is none.

    Both versions keep one file per group; a child's quota never widens its parent's, and inside
    a container the own group is mounted as the root.
    """
    quotas = []
    for line in _text(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (CGROUPS, CGROUPS / "cpu", CGROUPS / "cpu,cpuacct"):
            group = Path(path.lstrip("/"))
            for part in (group, *group.parents):
                quotas.append(_quota_of(root / part))
    return min((quota for quota in quotas if quota > 0), default=0.0)


def _quota_of(group: Path) -> float:
    limit, _, period = _text(group / "cpu.max").partition(" ")
    if not limit:
        limit = _text(group / "cpu.cfs_quota_us")
        period = _text(group / "cpu.cfs_period_us")
    if not (limit.isdigit() and period.isdigit()):
        return 0.0
    return int(limit) / int(period) if int(period) else 0.0


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo."""
    first = _text(PROC / "cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _bytes(size: str) -> int:
    """`48K`, `32M` as the cache folders write them; 0 for anything else."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = size[:-1], size[-1:]
    return int(number) * units[unit] if number.isdigit() and unit in units else 0


def _cpu_list(text: str) -> Iterator[int]:
    """`0-3,8` as the kernel writes CPU lists."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
