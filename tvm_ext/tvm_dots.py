"""Dot products of four bytes: one operation in tensor programs, one instruction in machine code.

    dot(a, b) = a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3      a: four uint8, b: four int8, in an int32
                                                           each; the sum is an int32

An instruction does it in each lane of a vector and adds it to a sum (VNNI of x86): four times the
multiply-adds of float32 in the same time. TVM has no such operation that it can turn into vectors,
but for intrinsics of LLVM; so `dot` is the call of one on scalars, and `fuse_dots` gives it its
operands' types and the sum when vectors are made:

    c[ramp] = c[ramp] + dot(broadcast(a), b[ramp])   →   c[ramp] = vpdpbusd.512(c[ramp], …)

Where a program is lowered in scalars, or vectors of another width, it is written out.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import (
    PURE_INTRINSIC,
    IRModule,
    PrimFunc,
    TensorLoad,
    called,
    calls_intrinsic,
    ir,
    lanes_of,
    structural_map,
    tirx,
)

ISA = frozenset({"avx512vnni", "avxvnni"})
"""Instruction sets that have it."""
BYTES = 4
"""Bytes in an operand."""
_INTRINSICS = {bits: f"llvm.x86.avx512.vpdpbusd.{bits}" for bits in (128, 256, 512)}
"""By the width of a vector."""


def dot(a: Any, b: Any) -> Any:
    """The dot product of four uint8 in `a` and four int8 in `b`, both int32."""
    zero = tirx.const(0, "int32")
    return tirx.call_llvm_pure_intrin("int32", _INTRINSICS[512], zero, a, b)


def is_dot(node: Any) -> bool:
    """Whether an expression is a `dot`, of scalars or vectors, and not yet the instruction."""
    if not calls_intrinsic(node, _INTRINSICS[512]):
        return False
    return all(str(one.ty.dtype).startswith("int32") for one in operands(node))


def operands(node: Any) -> tuple[Any, Any]:
    """Those of a `dot`."""
    _, _, a, b = node.args
    return a, b


def multiplies_tensors(node: Any) -> bool:
    """Whether an expression is a `dot` of elements of two tensors, not of one and a number."""
    return is_dot(node) and all(isinstance(one, TensorLoad) for one in operands(node))


def _fused(node: Any, total: Any) -> Any:
    """total + dot"""
    a, b = operands(node)
    lanes = lanes_of(node)
    bits = 32 * lanes
    if bits not in _INTRINSICS:
        return total + _written_out(a, b)
    octets = [tirx.reinterpret(f"int8x{BYTES * lanes}", one) for one in (a, b)]
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _INTRINSICS[bits], total, *octets)


def _written_out(a: Any, b: Any) -> Any:
    """The same by shifts: the upper byte of an operand with its sign, or without."""
    total = None
    for place in range(BYTES):
        unsigned = (a >> (8 * place)) & 255
        signed = _signed(b, place)
        total = unsigned * signed if total is None else total + unsigned * signed
    return total


def _signed(b: Any, place: int) -> Any:
    """A byte of an operand with its sign. Of a number TVM works out shifts in more bits than it
    has."""
    if isinstance(b, tirx.Broadcast):
        return tirx.Broadcast(_signed(b.value, place), b.lanes)
    if isinstance(b, tirx.IntImm):
        octet = int(b) >> (8 * place) & 255
        return tirx.const(octet - 256 * (octet > 127), "int32")
    return (b << (8 * (BYTES - 1 - place))) >> (8 * (BYTES - 1))


def _sum(node: Any) -> Any:
    for one, total in ((node.b, node.a), (node.a, node.b)):
        if is_dot(one):
            return _fused(one, total)
    return node


def _alone(node: Any) -> Any:
    return _fused(node, tirx.const(0, str(node.ty.dtype))) if is_dot(node) else node


@tirx.transform.prim_func_pass(opt_level=0, name="FuseDots")
def fuse_dots(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Makes each `dot` an instruction, the sum that it is added to among its operands."""
    if PURE_INTRINSIC not in called(func.body):
        return func
    body = structural_map(func.body, [(tirx.Add, _sum)], order="pre")
    return func.with_body(structural_map(body, [(ir.Call, _alone)], order="post"))
