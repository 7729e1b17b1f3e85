"""Names of instruction sets: the kernel's, LLVM's, and what they mean for width and peak.

`HardwareModel.isa` and everything else in the package spell features the way LLVM does
(`avx512vnni`, `dotprod`), because that is what a TVM target's `mattr` takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LLVM_NAME = {
    "sse4_2": "sse4.2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avxvnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vbmi": "avx512vbmi",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}

AMX = "amx"
"""What the features of x86's matrix unit begin with: LLVM uses it only where it is told to."""
FEATURES = frozenset(_LLVM_NAME.values())
"""The features that decide code generation; all others are ignored."""

_SPEEDUP_INT8 = {"avx512vnni": 4, "avxvnni": 4, "dotprod": 4, "i8mm": 8}
_SPEEDUP_BF16 = {"avx512bf16": 2, "bf16": 4}


def from_cpuinfo(flags: Iterable[str]) -> tuple[str, ...]:
    """The features among the words of a `flags` (x86) or `Features` (Arm) line, sorted."""
    return tuple(sorted({_LLVM_NAME[flag] for flag in flags if flag in _LLVM_NAME}))


def vector_bytes(isa: Iterable[str]) -> int:
    """Width of the widest vector register whose multiply-add `isa` offers.

    SVE counts as NEON's 16 bytes: the code generator writes fixed-width vectors.
    """
    features = set(isa)
    if "avx512f" in features:
        return 64
    return 32 if {"avx2", "fma"} <= features else 16


def vector_registers(isa: Iterable[str]) -> int:
    """Architectural vector registers."""
    return 32 if {"avx512f", "neon"} & set(isa) else 16


def peaks(float32_gflops: float, isa: Iterable[str]) -> dict[str, float]:
    """Peak of one core by element type, from its float32 peak and its dot-product instructions."""
    features = set(isa)
    found = {"float32": float32_gflops}
    for dtype, speedups in (("int8", _SPEEDUP_INT8), ("bfloat16", _SPEEDUP_BF16)):
        best = max((factor for name, factor in speedups.items() if name in features), default=0)
        if best:
            found[dtype] = float32_gflops * best
    return found


def system_cpu() -> tuple[str, str]:
    """(mcpu, mtriple) of this host as TVM's LLVM names them; mcpu `generic` if it knows none."""
    from tvm.target import codegen

    mcpu, mtriple = str(codegen.llvm_get_system_cpu()), str(codegen.llvm_get_system_triple())
    return (mcpu if is_valid_cpu(mcpu, mtriple) else "generic"), mtriple


def is_valid_cpu(mcpu: str, mtriple: str) -> bool:
    """Whether TVM's LLVM knows `mcpu` for `mtriple`."""
    from tvm.target import codegen

    return bool(codegen.llvm_is_valid_cpu(mcpu, mtriple))


def llvm_features(target: dict[str, Any]) -> tuple[str, ...]:
    """The features LLVM generates code for under an llvm `target` (its mcpu and mattr), sorted."""
    from tvm.target import Target, codegen

    known = {str(name) for name in codegen.llvm_get_cpu_features(Target(target))}
    return tuple(sorted(FEATURES & known))
