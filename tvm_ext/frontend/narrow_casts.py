"""Casts to narrow floats and integers, and the bits of such floats, as arithmetic on wider ones.

rewrite:
    Cast(x), to a float of few bits    =>  step Round(x / step)    step: by the exponent of x
    Cast(x), to float8e8m0             =>  a power of two, by the bits of x
    Cast(x), to an integer of n bits   =>  Mod(x, 2^n), around 0 for those with a sign
    BitCast(x), of few bits            =>  the same, of integers with a sign and without
    BitCast(x), bytes as float8        =>  Gather(numbers of all bytes, x)
    BitCast(x), float8 as bytes        =>  Gather(bytes, Cast(BitCast(x) / 2^20)), x of float32

Steps are powers of two, so nothing is rounded but where `Round` does it, to even where two are as
near.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.narrow_types import BYTE, HELD
from tvm_ext.frontend.nodes import constant, node_of

FRACTION = 23
"""Bits of the fraction of a float32."""
UNIT = 1 << FRACTION
"""Of its exponent, in its bits."""
HIGHEST = 12
"""Bits that a number of eight bits has at most in float32: sign, exponent and three more."""


def bits_of(op: Any, x: Any, kind: ir.DataType) -> Any:
    """The bits of x as another type of as many."""
    result = op.BitCast(x, to=kind)
    result.type = ir.TensorType(kind)
    return result


class Known:
    """Numbers as constants, of float32, named after what a rule writes for `y`."""

    def __init__(self, op: Any, y: ir.Value) -> None:
        self._op, self._name = op, y.name

    def __call__(self, name: str, value: Any, dtype: type = np.float32) -> ir.Value:
        return constant(self._op, f"{self._name}_{name}", dtype(value))


def _power(op: Any, x: Any, known: Known) -> Any:
    """2^floor(log2 |x|), of float32; 0 below its normal numbers, infinity of what is none."""
    unit = known("unit", UNIT, np.int32)
    exponent = op.Div(bits_of(op, op.Abs(x), ir.DataType.INT32), unit)
    return bits_of(op, op.Mul(exponent, unit), ir.DataType.FLOAT)


def rounded(op: Any, x: Any, y: ir.Value, kind: ir.DataType, *, saturate: bool) -> Any:
    """x, of float32, as the nearest number of such a type; beyond the last one that, or else
    infinity or no number, whichever the type has."""
    known, info = Known(op, y), ml_dtypes.finfo(kind.numpy())
    most = known("most", info.max)
    if saturate:
        x = op.Clip(x, known("least", info.min), most)
    power = op.Max(_power(op, x, known), known("normal", info.smallest_normal))
    step = op.Mul(power, known("step", 2.0**-info.nmant))
    result = op.Mul(op.Round(op.Div(x, step)), step)
    if not saturate:
        beyond = float(np.array(np.inf).astype(kind.numpy()))
        inside = op.LessOrEqual(op.Abs(result), most)
        result = op.Where(inside, result, op.Mul(x, known("beyond", beyond)))
    if kind.name.endswith("UZ"):  # it has no negative zero
        zero = known("zero", 0)
        result = op.Where(op.Equal(result, zero), zero, result)
    return result


def _power_of_two(op: Any, x: Any, y: ir.Value, *, saturate: bool, mode: str) -> Any:
    """x, of float32, as a power of two: what is added to its bits reaches the next exponent."""
    known, info = Known(op, y), ml_dtypes.finfo(ir.DataType.FLOAT8E8M0.numpy())
    unit, none = known("unit", UNIT, np.int32), known("none", np.nan)
    least, most = known("least", info.smallest_normal), known("most", info.max)
    added = {"up": UNIT - 1, "nearest": UNIT // 2, "down": 0}[mode]
    bits = op.Add(bits_of(op, x, ir.DataType.INT32), known("added", added, np.int32))
    power = bits_of(op, op.Mul(op.Div(bits, unit), unit), ir.DataType.FLOAT)
    result = op.Max(power, least)
    if saturate:
        return op.Where(op.IsNaN(x), none, op.Min(result, most))
    inside = op.And(op.LessOrEqual(least, x), op.LessOrEqual(result, most))
    return op.Where(inside, result, none)


def _cast(op: Any, x: Any) -> Any:
    return op.Cast(x, _outputs=["y"])


def _kind(y: ir.Value) -> ir.DataType:
    return ir.DataType(node_of(y).attributes.get_int("to", 0))


def _to_narrow(_: Any, y: ir.Value, **__: Any) -> bool:
    return _kind(y) in HELD


def _held(op: Any, x: ir.Value, y: ir.Value) -> Any:
    kind, given = _kind(y), node_of(y).attributes
    if HELD[kind] != ir.DataType.FLOAT:
        return _lowest_bits(op, x, y, kind)
    wide = op.Cast(x, to=ir.DataType.FLOAT)
    saturate = bool(given.get_int("saturate", 1))
    if kind == ir.DataType.FLOAT8E8M0:
        mode = given.get_string("round_mode", "up")
        return _power_of_two(op, wide, y, saturate=saturate, mode=mode)
    return rounded(op, wide, y, kind, saturate=saturate or kind.bitwidth < BYTE)


def _lowest_bits(op: Any, x: ir.Value, y: ir.Value, kind: ir.DataType) -> Any:
    count = constant(op, f"{y.name}_count", np.int32(1 << kind.bitwidth))
    whole = op.Cast(x, to=ir.DataType.INT32)
    if HELD[kind] == ir.DataType.UINT8:
        return op.Cast(op.Mod(whole, count), to=ir.DataType.UINT8)
    half = constant(op, f"{y.name}_half", np.int32(1 << (kind.bitwidth - 1)))
    return op.Cast(op.Sub(op.Mod(op.Add(whole, half), count), half), to=ir.DataType.INT8)


def _bit_cast(op: Any, x: Any) -> Any:
    return op.BitCast(x, _outputs=["y"])


def _of_bytes(_: Any, y: ir.Value, **__: Any) -> bool:
    kind = _kind(y)
    return kind in HELD and kind.bitwidth == BYTE and not y.is_graph_output()


def _looked_up(op: Any, x: ir.Value, y: ir.Value) -> Any:
    octets = np.arange(1 << BYTE, dtype=np.uint8)
    numbers = octets.view(_kind(y).numpy()).astype(np.float32)
    index = op.Cast(x, to=ir.DataType.INT32)
    return op.Gather(constant(op, f"{y.name}_numbers", numbers), index)


def _to_bytes(_: Any, x: ir.Value, y: ir.Value) -> bool:
    return x.dtype in HELD and not x.is_graph_input() and _kind(y).bitwidth == BYTE


def _coded(op: Any, x: ir.Value, y: ir.Value) -> Any:
    """The byte of each number, by the highest bits of it: the others are 0."""
    assert x.dtype is not None
    highest = np.arange(1 << HIGHEST, dtype=np.uint32) << (32 - HIGHEST)
    with np.errstate(invalid="ignore"):
        octets = highest.view(np.float32).astype(x.dtype.numpy()).view(np.uint8)
    bits = bits_of(op, x, ir.DataType.UINT32)
    others = constant(op, f"{y.name}_others", np.uint32(1 << (32 - HIGHEST)))
    index = op.Cast(op.Div(bits, others), to=ir.DataType.INT32)
    found = op.Gather(constant(op, f"{y.name}_octets", octets), index)
    return found if _kind(y) == ir.DataType.UINT8 else bits_of(op, found, _kind(y))


def _of_few_bits(_: Any, x: ir.Value, y: ir.Value) -> bool:
    kinds = (x.dtype, _kind(y))
    return all(kind in HELD and HELD[kind] != ir.DataType.FLOAT for kind in kinds)


def _signed_or_not(op: Any, x: ir.Value, y: ir.Value) -> Any:
    return _lowest_bits(op, x, y, _kind(y))


rules = (
    RewriteRule(_cast, _held, _to_narrow, name="CastToNarrow"),
    RewriteRule(_bit_cast, _signed_or_not, _of_few_bits, name="FewBitsOfFewBits"),
    RewriteRule(_bit_cast, _looked_up, _of_bytes, name="NarrowOfBytes"),
    RewriteRule(_bit_cast, _coded, _to_bytes, name="BytesOfNarrow"),
)
