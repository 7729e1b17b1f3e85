"""`SplitReductions`: reductions down the columns of a tensor in parts, where its rows are reduced
as well.

    r = mean(x, 1); c = max(x, 0)                                  x through memory twice
        →
    v = reshape(x, (parts, rows, n)); r = reshape(mean(v, 2)); p = max(v, 1)     once
    c = max(p, 0)

A part of the rows stays in a core's own cache, so `FuseMultiOutput` makes one kernel of both; what
it leaves is a reduction of a few partial results, which has to wait for all parts (AStitch, section
4, stitches the two by a barrier over the whole device: here that is the end of a kernel).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tvm_ext.graph.memory_order import type_bytes
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tile.axis import divisors
from tvm_ext.tvm_api import (
    IRModule,
    op_name,
    relax,
    rewritten,
    static_extents,
    structural_walk,
    tvm,
)

REDUCTIONS = {
    "relax.max": relax.op.max,
    "relax.mean": relax.op.mean,
    "relax.min": relax.op.min,
    "relax.sum": relax.op.sum,
}
"""Those of equal parts are those of the whole."""
PART = 0.5
"""Of a core's own cache, what a part of the rows may take."""


class _Parts(NamedTuple):
    """A tensor in equal parts."""

    axis: int
    """The axis that counts rows, before it only what all results have."""
    number: int


@tvm.transform.module_pass(opt_level=0, name="SplitReductions")
@dataclass(frozen=True)
class SplitReductions:
    """Rewrites reductions of float32 tensors that no cache holds.

    hardware      the machine
    cached_bytes  size of a tensor up to which nothing is gained (1024 x 1024 1.0 times as fast, 7.7
                  MB in the last cache 0.94; 12 MB 1.5, 64 MB 1.9)
    """

    hardware: HardwareModel
    cached_bytes: float

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module, in which both kinds of reductions of such a tensor read one view of it."""
        parts: dict[Any, _Parts] = {}
        if self.hardware.kind != "cuda":
            for x, found in _reduced_axes(mod).items():
                cut = self._parts(x, found)
                if cut is not None:
                    parts[x] = cut
        return rewritten(mod, _Rewriter(mod, parts)) if parts else mod

    def _parts(self, x: Any, reduced: list[tuple[int, ...]]) -> _Parts | None:
        """The fewest parts of a tensor, reduced over these axes, that fit and share out evenly;
        None if all are over the first of these axes, or nothing is gained."""
        shape, cores = static_extents(x.ty) or (), self.hardware.cores
        axis = min(map(min, reduced))
        size, room = type_bytes(x.ty), self.hardware.own_cache_bytes
        if all(axis in axes for axes in reduced) or size <= self.cached_bytes:
            return None
        for number in divisors(shape[axis])[:-1]:
            tasks = prod(shape[:axis]) * number
            if tasks % cores == 0 and size <= room * PART * tasks:
                return _Parts(axis, number)
        return None


def _reduced_axes(mod: IRModule) -> dict[Any, list[tuple[int, ...]]]:
    """Over which axes tensors of float32 are reduced, for each reduction; of functions without
    branches, where what one makes another may read."""
    found: dict[Any, list[tuple[int, ...]]] = {}

    def visit(call: Any) -> None:
        if op_name(call) in REDUCTIONS and isinstance(call.args[0], relax.Var):
            x = call.args[0]
            if static_extents(x.ty) and str(x.ty.dtype.dtype) == "float32":
                found.setdefault(x, []).append(_axes(call))

    for function in mod.functions.values():
        branches: list[Any] = []
        if isinstance(function, relax.Function):
            structural_walk(function, (relax.If, branches.append))
            if not branches:
                structural_walk(function, (relax.Call, visit))
    return found


def _axes(call: Any) -> tuple[int, ...]:
    """The axes of a reduction, in order."""
    rank = len(call.args[0].ty.shape.values)
    given = range(rank) if call.attrs.axis is None else call.attrs.axis
    return tuple(sorted(int(axis) % rank for axis in given))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, parts: dict[Any, _Parts]) -> None:
        super().__init__(mod)
        self._parts = parts
        self._views: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        parts = self._parts.get(call.args[0]) if op_name(call) in REDUCTIONS else None
        if parts is None:
            return self.visit_expr_post_order(call)
        x, axes = call.args[0], _axes(call)
        call = self.visit_expr_post_order(call)
        axis, emit, reduce = parts.axis, self.builder_.emit, REDUCTIONS[op_name(call)]
        if x not in self._views:
            shape = static_extents(x.ty) or ()
            rows = (parts.number, shape[axis] // parts.number)
            split = relax.op.reshape(call.args[0], (*shape[:axis], *rows, *shape[axis + 1 :]))
            self._views[x] = emit(split)
        inside = [place + 1 for place in axes]  # of rows of a part, and what lies behind them
        made = emit(reduce(self._views[x], inside))
        if axis in axes:
            made = emit(reduce(made, [axis]))
        return relax.op.reshape(made, static_extents(call.ty) or ())
