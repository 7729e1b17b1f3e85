"""Vectors of which only some elements are read, by masked loads.

    for lane < 16: y[i + lane] = if 1 <= i + lane < 57: x[i + lane - 1]   else 0
        →
    m = 1 <= ramp(i) < 57;  y[ramp(i)] = select(m, masked_load(x[ramp(i - 1)], m), 0)

TVM takes a vector whose elements differ in a condition apart, element by element, a branch for
each: images padded, joined or cut along their rows. Machines with AVX2 load under a mask.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import (
    Analyzer,
    IRModule,
    PrimFunc,
    TensorLoad,
    called,
    ir,
    op_name,
    structural_map,
    structural_walk,
    substitute,
    tirx,
    uses,
)
from tvm_ext.tvm_tables import may_use

ISA = "avx2"
"""The instruction set from which on loads have masks."""
LANES = (4, 8, 16, 32)
ELEMENTS = ("float32", "int32")
"""Kinds of elements that masks are made for on all of these machines."""
_CHOICE, _LOAD = "prim.if_then_else", "tirx.masked_load"
_OF_TWO = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)
_COMPARED = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


class _Scalar(Exception):
    """What a vector is not made of here."""


class _Vector:
    """Expressions of a loop's variable, for all its values at once."""

    def __init__(self, loop: Any) -> None:
        self._lane, self._lanes = loop.loop_var, int(loop.extent)
        self._first = {self._lane: tirx.const(0, str(self._lane.ty.dtype))}

    def index(self, expr: Any) -> Any:
        """A place that moves by one from lane to lane."""
        moved = substitute(expr, {self._lane: self._lane + 1})
        if not Analyzer().can_prove_equal(moved - expr, 1):
            raise _Scalar
        step = tirx.const(1, str(expr.ty.dtype))
        return tirx.Ramp(substitute(expr, self._first), step, self._lanes)

    def mask(self, condition: Any) -> Any:
        """Where a condition holds."""
        if isinstance(condition, tirx.And | tirx.Or):
            return type(condition)(self.mask(condition.a), self.mask(condition.b))
        if not isinstance(condition, _COMPARED):
            raise _Scalar
        return type(condition)(self._place(condition.a), self._place(condition.b))

    def value(self, expr: Any, mask: Any = None) -> Any:
        """The values, of which only those where the mask holds are wanted."""
        if not uses(expr, self._lane):
            if mask is not None and _reads(expr):  # perhaps where there is nothing
                raise _Scalar
            return tirx.Broadcast(expr, self._lanes)
        if isinstance(expr, TensorLoad):
            return self._loaded(expr, mask)
        if isinstance(expr, _OF_TWO):
            return type(expr)(self.value(expr.a, mask), self.value(expr.b, mask))
        if op_name(expr) != _CHOICE:
            raise _Scalar
        condition, chosen, other = expr.args
        if not uses(condition, self._lane):
            raise _Scalar  # a branch, and not for each element
        here = self.mask(condition)
        there = tirx.Not(here)
        inner = here if mask is None else tirx.And(mask, here)
        outer = there if mask is None else tirx.And(mask, there)
        return tirx.Select(here, self.value(chosen, inner), self.value(other, outer))

    def _loaded(self, load: Any, mask: Any) -> Any:
        kind = str(load.source.dtype)
        if kind not in ELEMENTS or len(load.indices) != 1:
            raise _Scalar
        at = self.index(load.indices[0])
        if mask is None:
            return tirx.BufferLoad(load.source, [at])
        return tirx.call_intrin(f"{kind}x{self._lanes}", _LOAD, load.source, at, mask)

    def _place(self, expr: Any) -> Any:
        if not uses(expr, self._lane):
            return tirx.Broadcast(expr, self._lanes)
        return self.index(expr)


def has_choice(expr: Any) -> bool:
    """Whether some of an expression is computed only where a condition says so."""
    return _CHOICE in called(expr)


def _reads(expr: Any) -> bool:
    """Whether an expression loads anything."""
    found: list[Any] = []
    structural_walk(expr, (TensorLoad, found.append))
    return bool(found)


def _chooses(expr: Any, lane: Any) -> bool:
    """Whether a condition in it differs from lane to lane."""
    found: list[bool] = []

    def look(call: Any) -> None:
        if op_name(call) == _CHOICE:
            found.append(uses(call.args[0], lane))

    structural_walk(expr, (ir.Call, look))
    return any(found)


def _masked(loop: Any) -> Any:
    """The statement for all lanes at once; the loop itself where it is none of the above."""
    store = loop.body
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != 1:
        return loop
    extents = (loop.min, loop.extent)
    if not all(isinstance(extent, tirx.IntImm) for extent in extents) or int(loop.min):
        return loop
    known = int(loop.extent) in LANES and str(store.buffer.dtype) in ELEMENTS
    if loop.kind != tirx.ForKind.SERIAL or not known or not _chooses(store.value, loop.loop_var):
        return loop
    whole = _Vector(loop)
    try:
        return tirx.BufferStore(
            store.buffer, whole.value(store.value), [whole.index(store.indices[0])]
        )
    except _Scalar:
        return loop


@tirx.transform.prim_func_pass(opt_level=0, name="LoadMasked")
def load_masked(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Such vectors by masked loads, where the function's target has them."""
    if not has_choice(func.body) or not may_use(func, ISA):
        return func
    return func.with_body(structural_map(func.body, [(tirx.For, _masked)], order="post"))
