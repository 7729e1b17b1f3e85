"""Rounding to integers as machines do it, and as often as it is needed.

    int32(round(x))                           →  lrint(x)     one instruction, which rounds to even
    float(uint8(int32(round(x)) + n)) - n     →  round(x)     where x is cut to what n allows

The second is a tensor that is quantised and taken back at once, as they are between the operators
of a kernel: what was rounded is a whole number, and was within the bytes there are.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    called,
    op_name,
    structural_equal,
    structural_map,
    tirx,
)

LRINT = "llvm.lrint"
ROUND = {"tirx.round", "tirx.nearbyint"}
LIMITS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
}
"""The types that are quantised to, with their least and largest numbers."""


def _element(expr: Any) -> str:
    """The type of one of a vector's elements."""
    return str(expr.ty.dtype).partition("x")[0]


def _is_round(expr: Any) -> bool:
    return op_name(expr) in ROUND


def _scalar(expr: Any) -> Any:
    """What a vector is made of, if all of it is one."""
    return expr.value if isinstance(expr, tirx.Broadcast) else expr


def _uncast(expr: Any) -> Any:
    """A number before it was made another type."""
    expr = _scalar(expr)
    return _scalar(expr.value) if isinstance(expr, tirx.Cast) else expr


def _is_cut(expr: Any, point: Any, dtype: str) -> bool:
    """Whether an expression is cut to what a zero point leaves of a type."""
    if not isinstance(expr, tirx.Max) or not isinstance(expr.a, tirx.Min):
        return False
    bounds = zip((expr.b, expr.a.b), LIMITS[dtype], strict=True)
    return all(_is_bound(bound, limit, point) for bound, limit in bounds)


def _is_bound(expr: Any, limit: int, point: Any) -> bool:
    bound = _scalar(expr)
    if not isinstance(bound, tirx.Sub) or not isinstance(_scalar(bound.a), tirx.FloatImm):
        return False
    exact = float(_scalar(bound.a).value) == limit
    return exact and structural_equal(_uncast(bound.b), point)


def _taken_back(expr: Any) -> Any:
    """float(byte(int32(round(x)) + n)) - n  →  round(x)"""
    floats = expr.a
    if not isinstance(floats, tirx.Cast) or _element(floats) != "float32":
        return expr
    octets = floats.value
    if not isinstance(octets, tirx.Cast) or _element(octets) not in LIMITS:
        return expr
    moved = octets.value
    if not isinstance(moved, tirx.Add) or not isinstance(moved.a, tirx.Cast):
        return expr
    rounded, point = moved.a.value, _uncast(moved.b)
    if not _is_round(rounded) or not structural_equal(_uncast(expr.b), point):
        return expr
    return rounded if _is_cut(rounded.args[0], point, _element(octets)) else expr


def _to_integer(cast: Any) -> Any:
    """int32(round(x))  →  lrint(x)"""
    if _element(cast) != "int32" or not _is_round(cast.value) or _element(cast.value) != "float32":
        return cast
    return tirx.call_llvm_pure_intrin(str(cast.ty.dtype), LRINT, *cast.value.args)


@tirx.transform.prim_func_pass(opt_level=0, name="RoundOnce")
def round_once(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Both of them, wherever a function rounds."""
    if not ROUND & called(func.body):
        return func
    body = structural_map(func.body, [(tirx.Sub, _taken_back)], order="post")
    return func.with_body(structural_map(body, [(tirx.Cast, _to_integer)], order="post"))
