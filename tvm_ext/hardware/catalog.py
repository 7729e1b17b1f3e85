"""Presets: `HardwareModel` values for machines that are not at hand.

Bandwidths and peaks are those vendors and published micro-benchmarks give for one typical
member of each family; a probe of the real machine always beats them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tvm_ext.errors import TargetError
from tvm_ext.hardware import isa
from tvm_ext.hardware.model import HardwareModel, MemoryLevel

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def register_gbps(float32_gflops: float) -> float:
    """Read bandwidth of the registers: a multiply-add (2 operations) reads three 4-byte values."""
    return 6.0 * float32_gflops


def _cpu(
    name: str,
    mtriple: str,
    mcpu: str,
    features: tuple[str, ...],
    *,
    cores: int,
    ghz: float,
    fma_latency_cycles: int,
    fma_per_cycle: int,
    levels: tuple[MemoryLevel, ...],
    launch_us: float,
    barrier_us: float,
    mattr: tuple[str, ...] = (),
) -> HardwareModel:
    vector_bytes, vector_registers = isa.vector_bytes(features), isa.vector_registers(features)
    float32 = 2 * (vector_bytes // 4) * fma_per_cycle * ghz
    registers = MemoryLevel(
        "register", vector_bytes * vector_registers, register_gbps(float32), vector_bytes
    )
    target = {"kind": "llvm", "mtriple": mtriple, "mcpu": mcpu, "num-cores": cores}
    return HardwareModel(
        name=name,
        kind="arm" if mtriple.startswith("aarch64") else "cpu",
        cores=cores,
        vector_bytes=vector_bytes,
        vector_registers=vector_registers,
        fma_latency_cycles=fma_latency_cycles,
        fma_per_cycle=fma_per_cycle,
        peak_gflops=isa.peaks(float32, features),
        levels=(registers, *levels),
        launch_us=launch_us,
        barrier_us=barrier_us,
        target={**target, "mattr": list(mattr)} if mattr else target,
        isa=tuple(sorted(features)),
    )


def _x86() -> tuple[HardwareModel, ...]:
    triple = "x86_64-linux-gnu"
    avx2 = ("sse4.2", "avx", "avx2", "fma", "f16c")
    return (
        # A four-core Westmere: multiplies and adds on separate ports, so one pair a cycle.
        _cpu(
            "cpu/x86-sse",
            triple,
            "x86-64-v2",
            ("sse4.2",),
            cores=4,
            ghz=2.8,
            fma_latency_cycles=7,
            fma_per_cycle=1,
            levels=(
                MemoryLevel("l1", 32 * _KIB, 44.0),
                MemoryLevel("l2", 256 * _KIB, 28.0),
                MemoryLevel("l3", 8 * _MIB, 18.0, shared=True, total_gbps=60.0),
                MemoryLevel("dram", 16 * _GIB, 9.0, shared=True, total_gbps=20.0),
            ),
            launch_us=3.0,
            barrier_us=0.6,
        ),
        # An eight-core desktop of the Skylake / Zen 2 class with two DDR4-3200 channels.
        _cpu(
            "cpu/x86-avx2",
            triple,
            "x86-64-v3",
            avx2,
            cores=8,
            ghz=3.6,
            fma_latency_cycles=4,
            fma_per_cycle=2,
            levels=(
                MemoryLevel("l1", 32 * _KIB, 210.0),
                MemoryLevel("l2", 512 * _KIB, 95.0),
                MemoryLevel("l3", 16 * _MIB, 45.0, shared=True, total_gbps=300.0),
                MemoryLevel("dram", 32 * _GIB, 20.0, shared=True, total_gbps=42.0),
            ),
            launch_us=3.0,
            barrier_us=0.6,
        ),
        # A sixteen-core Skylake-SP / Cascade Lake socket, at its all-core AVX-512 clock. The
        # mcpu is the vendor-neutral baseline, so no VNNI.
        _cpu(
            "cpu/x86-avx512",
            triple,
            "x86-64-v4",
            (*avx2, "avx512f", "avx512bw", "avx512dq", "avx512vl"),
            cores=16,
            ghz=2.5,
            fma_latency_cycles=4,
            fma_per_cycle=2,
            levels=(
                MemoryLevel("l1", 32 * _KIB, 280.0),
                MemoryLevel("l2", 1 * _MIB, 110.0),
                MemoryLevel("l3", 22 * _MIB, 26.0, shared=True, total_gbps=280.0),
                MemoryLevel("dram", 64 * _GIB, 13.0, shared=True, total_gbps=105.0),
            ),
            launch_us=4.0,
            barrier_us=0.9,
        ),
    )


def _arm() -> tuple[HardwareModel, ...]:
    triple = "aarch64-linux-gnu"
    return (
        # Graviton2: eight DDR4-3200 channels.
        _cpu(
            "arm/neoverse-n1",
            triple,
            "neoverse-n1",
            ("neon", "fullfp16", "dotprod"),
            cores=64,
            ghz=2.5,
            fma_latency_cycles=4,
            fma_per_cycle=2,
            levels=(
                MemoryLevel("l1", 64 * _KIB, 75.0),
                MemoryLevel("l2", 1 * _MIB, 45.0),
                MemoryLevel("l3", 32 * _MIB, 25.0, shared=True, total_gbps=800.0),
                MemoryLevel("dram", 128 * _GIB, 17.0, shared=True, total_gbps=170.0),
            ),
            launch_us=6.0,
            barrier_us=1.5,
            mattr=("+neon", "+dotprod"),
        ),
        # Graviton3: four 16-byte pipes (or two 32-byte SVE ones), eight DDR5-4800 channels.
        _cpu(
            "arm/neoverse-v1",
            triple,
            "neoverse-v1",
            ("neon", "fullfp16", "dotprod", "i8mm", "bf16", "sve"),
            cores=64,
            ghz=2.6,
            fma_latency_cycles=4,
            fma_per_cycle=4,
            levels=(
                MemoryLevel("l1", 64 * _KIB, 120.0),
                MemoryLevel("l2", 1 * _MIB, 75.0),
                MemoryLevel("l3", 32 * _MIB, 35.0, shared=True, total_gbps=1200.0),
                MemoryLevel("dram", 128 * _GIB, 25.0, shared=True, total_gbps=260.0),
            ),
            launch_us=6.0,
            barrier_us=1.5,
            mattr=("+neon", "+dotprod", "+i8mm", "+bf16"),
        ),
        # Raspberry Pi 4: two 8-byte pipes start one 16-byte multiply-add a cycle; no L3.
        _cpu(
            "arm/cortex-a72",
            triple,
            "cortex-a72",
            ("neon",),
            cores=4,
            ghz=1.5,
            fma_latency_cycles=7,
            fma_per_cycle=1,
            levels=(
                MemoryLevel("l1", 32 * _KIB, 22.0),
                MemoryLevel("l2", 1 * _MIB, 9.0, shared=True, total_gbps=20.0),
                MemoryLevel("dram", 4 * _GIB, 3.8, shared=True, total_gbps=5.0),
            ),
            launch_us=8.0,
            barrier_us=2.0,
            mattr=("+neon",),
        ),
        # Raspberry Pi 5: one 32-bit LPDDR4X-4267 channel.
        _cpu(
            "arm/cortex-a76",
            triple,
            "cortex-a76",
            ("neon", "fullfp16", "dotprod"),
            cores=4,
            ghz=2.4,
            fma_latency_cycles=4,
            fma_per_cycle=2,
            levels=(
                MemoryLevel("l1", 64 * _KIB, 72.0),
                MemoryLevel("l2", 512 * _KIB, 36.0),
                MemoryLevel("l3", 2 * _MIB, 18.0, shared=True, total_gbps=50.0),
                MemoryLevel("dram", 8 * _GIB, 10.0, shared=True, total_gbps=13.0),
            ),
            launch_us=4.0,
            barrier_us=1.0,
            mattr=("+neon", "+dotprod"),
        ),
    )


def _cuda(
    arch: str,
    *,
    sms: int,
    ghz: float,
    warps_per_cycle: int,
    tensor_tflops: dict[str, float],
    shared_kib: int,
    l2_mib: int,
    l2_total_gbps: float,
    dram_gib: int,
    dram_total_gbps: float,
) -> HardwareModel:
    float32 = 2 * 32 * warps_per_cycle * ghz
    # The register level is one warp's: 255 registers is the most one thread can address, and
    # `registers_per_block` in the target limits how many warps may have that many.
    registers = MemoryLevel("register", 255 * 128, register_gbps(float32), 128)
    return HardwareModel(
        name=f"cuda/{arch}",
        kind="cuda",
        cores=sms,
        vector_bytes=128,
        vector_registers=255,
        fma_latency_cycles=4,
        fma_per_cycle=warps_per_cycle,
        peak_gflops={
            "float32": float32,
            **{dtype: tera * 1e3 / sms for dtype, tera in tensor_tflops.items()},
        },
        levels=(
            registers,
            MemoryLevel("shared", shared_kib * _KIB, 128 * ghz, 128),
            MemoryLevel("l2", l2_mib * _MIB, 64 * ghz, 32, True, l2_total_gbps),
            # One multiprocessor cannot keep its L2 port (64 bytes a cycle) full at DRAM latency;
            # about half is an estimate that matters only to grids smaller than the machine.
            MemoryLevel("dram", dram_gib * _GIB, 32 * ghz, 64, True, dram_total_gbps),
        ),
        launch_us=2.5,
        barrier_us=1.3,
        target={
            "kind": "cuda",
            "arch": arch,
            "max_threads_per_block": 1024,
            # What a block may declare statically; the `shared` level holds what it may opt into
            # dynamically.
            "max_shared_memory_per_block": 48 * _KIB,
            "registers_per_block": 65536,
            "thread_warp_size": 32,
            "l2_cache_size_bytes": l2_mib * _MIB,
        },
    )


def _gpus() -> tuple[HardwareModel, ...]:
    return (
        # V100 SXM2 16 GB
        _cuda(
            "sm_70",
            sms=80,
            ghz=1.53,
            warps_per_cycle=2,
            tensor_tflops={"float16": 125.0},
            shared_kib=96,
            l2_mib=6,
            l2_total_gbps=2150.0,
            dram_gib=16,
            dram_total_gbps=830.0,
        ),
        # T4
        _cuda(
            "sm_75",
            sms=40,
            ghz=1.59,
            warps_per_cycle=2,
            tensor_tflops={"float16": 65.0, "int8": 130.0},
            shared_kib=64,
            l2_mib=4,
            l2_total_gbps=1270.0,
            dram_gib=16,
            dram_total_gbps=240.0,
        ),
        # A100 SXM 40 GB
        _cuda(
            "sm_80",
            sms=108,
            ghz=1.41,
            warps_per_cycle=2,
            tensor_tflops={"float16": 312.0, "bfloat16": 312.0, "tfloat32": 156.0, "int8": 624.0},
            shared_kib=163,
            l2_mib=40,
            l2_total_gbps=4400.0,
            dram_gib=40,
            dram_total_gbps=1400.0,
        ),
        # A10
        _cuda(
            "sm_86",
            sms=72,
            ghz=1.695,
            warps_per_cycle=4,
            tensor_tflops={"float16": 125.0, "bfloat16": 125.0, "tfloat32": 62.5, "int8": 250.0},
            shared_kib=99,
            l2_mib=6,
            l2_total_gbps=2200.0,
            dram_gib=24,
            dram_total_gbps=530.0,
        ),
        # L4
        _cuda(
            "sm_89",
            sms=58,
            ghz=2.04,
            warps_per_cycle=4,
            tensor_tflops={"float16": 121.0, "bfloat16": 121.0, "tfloat32": 60.0, "int8": 242.0},
            shared_kib=99,
            l2_mib=48,
            l2_total_gbps=2000.0,
            dram_gib=24,
            dram_total_gbps=270.0,
        ),
        # H100 SXM5 80 GB
        _cuda(
            "sm_90",
            sms=132,
            ghz=1.98,
            warps_per_cycle=4,
            tensor_tflops={"float16": 989.0, "bfloat16": 989.0, "tfloat32": 494.0, "int8": 1979.0},
            shared_kib=227,
            l2_mib=50,
            l2_total_gbps=5700.0,
            dram_gib=80,
            dram_total_gbps=2900.0,
        ),
    )


_PRESETS = {model.name: model for model in (*_x86(), *_gpus(), *_arm())}


def names() -> tuple[str, ...]:
    """Every catalog name."""
    return tuple(_PRESETS)


def get(name: str) -> HardwareModel:
    """The preset called `name`; TargetError names the closest ones and lists all."""
    if name in _PRESETS:
        return _PRESETS[name]
    close = difflib.get_close_matches(name, _PRESETS, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise TargetError(f"target '{name}' is not in the catalog: {hint}known: {', '.join(_PRESETS)}")


def nearest_cpu(mcpu: str, features: Iterable[str]) -> HardwareModel:
    """The CPU preset for `mcpu`, or else the most capable whose vector code `features` allow."""
    for model in _PRESETS.values():
        if model.target.get("mcpu") == mcpu:
            return model
    have = set(features)
    if "neon" in have:
        fits = {"sve": "arm/neoverse-v1", "dotprod": "arm/neoverse-n1", "neon": "arm/cortex-a72"}
        return _PRESETS[next(name for feature, name in fits.items() if feature in have)]
    if "avx512f" in have:
        return _PRESETS["cpu/x86-avx512"]
    return _PRESETS["cpu/x86-avx2" if {"avx2", "fma"} <= have else "cpu/x86-sse"]


def nearest_gpu(arch: str) -> HardwareModel:
    """The CUDA preset of the newest architecture not newer than `arch` (`sm_90a`, `sm_87`, ...)."""
    wanted = capability(arch)
    gpus = [model for model in _PRESETS.values() if model.kind == "cuda"]
    older = [model for model in gpus if capability(model.target["arch"]) <= wanted]
    return max(older or gpus[:1], key=lambda model: capability(model.target["arch"]))


def capability(arch: str) -> int:
    """Such as 90 of `sm_90a`; TargetError for what is no architecture."""
    digits = "".join(letter for letter in arch if letter.isdigit())
    if not arch.startswith("sm_") or not digits:
        raise TargetError(f"CUDA arch '{arch}' is not understood: give sm_<number>, like sm_80")
    return int(digits)
