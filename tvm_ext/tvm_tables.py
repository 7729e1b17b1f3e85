"""Tables of 256 bytes, looked up for whole vectors where they fit its registers.

    table[int32(bytes)]  →  select(bytes < 128, vpermi2b(table[0:128]), vpermi2b(table[128:256]))

An instruction of AVX-512 VBMI picks 64 bytes at once out of 128; a table is four registers. TVM
loads a vector whose places are data element by element, and that is what other machines do.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    lanes_of,
    structural_map,
    structural_walk,
    tirx,
    tvm,
)

ISA = "avx512vbmi"
"""The instruction set that has it."""
ENTRIES = 256
_PICK = "llvm.x86.avx512.vpermi2var.qi.512"
_WIDE = 64
"""Bytes of a register."""


def looked_up(table: Any, octet: Any) -> Any:
    """The entry of a table that a byte, without a sign or as if it had none, is the number of."""
    return table[octet.astype("uint8").astype("int32")]


def may_use(func: PrimFunc, isa: str) -> bool:
    """Whether LLVM may use an instruction set for a function, as far as its target is known."""
    target = func.attrs.get("target", None) if func.attrs else None
    return (
        target is not None
        and str(target.kind) == "llvm"
        and isa in map(str, tvm.target.codegen.llvm_get_cpu_features(target))
    )


def _is_table(load: Any) -> bool:
    """Whether a load is that of a vector of entries of one table."""
    source = load.source
    if str(source.dtype) not in ("uint8", "int8") or len(load.indices) != 1:
        return False
    (place,), (extent,) = load.indices, source.shape
    entries = isinstance(extent, tirx.IntImm) and int(extent) == ENTRIES
    octets = isinstance(place, tirx.Cast) and _is_of_octets(place)
    return entries and octets and lanes_of(place) in (16, 32, _WIDE)


def _is_of_octets(cast: Any) -> bool:
    return str(cast.value.ty.dtype).startswith("uint8x")


def _may_look_up(stmt: Any) -> bool:
    """Whether bytes without a sign become something else in it, the places of a table perhaps."""
    found: list[bool] = []
    structural_walk(stmt, (tirx.Cast, lambda cast: found.append(_is_of_octets(cast))))
    return any(found)


def _picked(load: Any) -> Any:
    if not _is_table(load):
        return load
    octets, kind = load.indices[0].value, str(load.source.dtype)
    lanes = width = lanes_of(octets)
    while width < _WIDE:
        rest = tirx.Broadcast(tirx.const(0, "uint8"), width)
        width *= 2
        octets = tirx.call_intrin(f"uint8x{width}", "tirx.vectorcombine", octets, rest)
    parts = [
        tirx.BufferLoad(load.source, [tirx.Ramp(tirx.const(at, "int32"), 1, _WIDE)])
        for at in range(0, ENTRIES, _WIDE)
    ]
    halves = [
        tirx.call_llvm_pure_intrin(f"{kind}x{_WIDE}", _PICK, parts[at], octets, parts[at + 1])
        for at in (0, 2)
    ]
    found = tirx.Select(octets < tirx.Broadcast(tirx.const(128, "uint8"), _WIDE), *halves)
    while width > lanes:
        width //= 2
        found = tirx.call_intrin(f"{kind}x{width}", "tirx.vectorlow", found)
    return found


@tirx.transform.prim_func_pass(opt_level=0, name="PickBytes")
def pick_bytes(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Vectors of entries by one instruction, where the function's target has it."""
    if not _may_look_up(func.body) or not may_use(func, ISA):
        return func
    return func.with_body(structural_map(func.body, [(TensorLoad, _picked)], order="post"))
