"""Places in memory as LLVM likes them, once nothing of TVM's has to understand them any more.

**Linear where they are.** Rows that are counted by one axis index a tensor of several, and TVM does
not always find that the quotients and remainders are one row again:

    x[(i * 14 + 11) // 49 * 47040 + (i * 2 + 1) % 7 * 6720 + k + 3840]  →  x[i * 13440 + k + 10560]

Each row of a register tile then has a register of its own for its address, instead of all of them
one. What is no product of an axis is tried at every value that its axes take; there are few.

**In 64 bits.** LLVM gives up that sums do not overflow as it reorders them, and a sum in 32 bits
has to be made before it is an address: x[sext(i * 960 + k)] → x[sext(i) * 960 + sext(k)].

A product of 392 rows in 8 images of 7 x 7 by 960 x 320: 765 us, in 64 bits 472, linear as well 465.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm_ffi import StructuralKey

from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    structural_map,
    structural_walk,
    tirx,
    variables,
)

MOST_VALUES = 1 << 14
"""Combinations of values of some axes that are tried."""
_Term = tuple[int, Any]
_BROKEN = (tirx.FloorDiv, tirx.FloorMod)
_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_OF_TWO = (*_SUMS, tirx.Min, tirx.Max)
_PLAIN = (tirx.Var, tirx.IntImm)
"""Kinds are compared as they are: `isinstance` asks a metaclass, and an unrolled kernel has
thousands of indices."""


@tirx.transform.prim_func_pass(opt_level=0, name="PlainIndices")
def plain_indices(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Every index of a load or a store as described above."""
    axes = Axes(_extents(func.body))

    def load(one: Any) -> Any:
        indices = _all_plain(one.indices, axes)
        return one if indices is None else tirx.BufferLoad(one.source, indices)

    def store(one: Any) -> Any:
        indices = _all_plain(one.indices, axes)
        return one if indices is None else tirx.BufferStore(one.buffer, one.value, indices)

    kinds = [(TensorLoad, load), (tirx.BufferStore, store)]
    return func.with_body(structural_map(func.body, kinds, order="post"))


def _extents(body: Any) -> dict[Any, int]:
    """How many values each axis takes, from 0 on; 0 where that is not known. Loops of one variable
    count as the longest of them."""
    found: dict[Any, int] = {}

    def enter(loop: Any) -> None:
        numbers = isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm)
        extent = int(loop.extent) if numbers and int(loop.min) == 0 else 0
        before = found.get(loop.loop_var, extent)
        found[loop.loop_var] = max(before, extent) if before and extent else 0

    structural_walk(body, (tirx.For, enter))
    return found


def _all_plain(given: Any, axes: Axes) -> list[Any] | None:
    """The indices of a load or a store; None if they are to stay as they are."""
    # nearly all have one, and to iterate over an array of TVM's takes an eighth of this pass
    indices = list(given) if len(given) != 1 else [given[0]]
    if not any(map(_moves, indices)) or not all(map(_one_place, indices)):
        return None
    return [axes.plain(index) for index in indices]


def _moves(index: Any) -> bool:
    """Whether an index is no number, as those of an unrolled register tile are: what is one is an
    address in any width."""
    return type(index.base if type(index) is tirx.Ramp else index) is not tirx.IntImm


def _one_place(index: Any) -> bool:
    """Whether an index is a 32-bit number, or that of a vector of neighbours."""
    if type(index) is tirx.Ramp:
        return type(index.stride) is tirx.IntImm and int(index.stride) == 1
    return str(index.ty.dtype) == "int32"


def wide(index: Any) -> Any:
    """The same index in 64 bits, from its variables and numbers on."""
    kind = type(index)
    if kind is tirx.IntImm:
        return tirx.IntImm("int64", int(index.value))
    if kind in _SUMS:
        return kind(wide(index.a), wide(index.b))
    return tirx.Cast("int64", index)


def _is_broken(index: Any) -> bool:
    kind = type(index)
    if kind in _PLAIN:
        return False
    if kind in _OF_TWO:
        return _is_broken(index.a) or _is_broken(index.b)
    if kind in _BROKEN:
        return True
    found: list[Any] = []
    structural_walk(index, [(kind, found.append) for kind in _BROKEN])
    return bool(found)


@dataclass(frozen=True)
class Axes:
    """How many values each axis takes, from 0 on, and what was made of indices and of sums of terms
    that were looked at: a row of a register tile is read in every step of an unrolled body, and for
    each of its vectors. They are known by what they are; hashes of sums of variables collide."""

    extents: Mapping[Any, int]
    known: dict[tuple[Any, ...], list[_Term] | None] = field(default_factory=dict)
    _plain: dict[StructuralKey, Any] = field(default_factory=dict)
    _wide: dict[StructuralKey, Any] = field(default_factory=dict)

    def plain(self, index: Any) -> Any:
        """The index of a load or a store, or of one of its dimensions, linear and in 64 bits."""
        key = StructuralKey(index)
        found = self._plain.get(key)
        if found is None:
            found = self._plain[key] = self._made_plain(index)
        return found

    def _made_plain(self, index: Any) -> Any:
        if type(index) is tirx.Ramp:
            return tirx.Ramp(self.plain(index.base), wide(index.stride), index.lanes)
        return self._widened(linear(index, self) if _is_broken(index) else index)

    def _widened(self, index: Any) -> Any:
        """`wide` of an index; those of a register tile differ by the number at their end."""
        if type(index) is not tirx.Add or type(index.b) is not tirx.IntImm:
            return wide(index)
        key = StructuralKey(index.a)
        found = self._wide.get(key)
        if found is None:
            found = self._wide[key] = wide(index.a)
        return tirx.Add(found, wide(index.b))


def linear(index: Any, axes: Axes) -> Any:
    """The index with those of its terms that together are a linear map of axes written so."""
    terms = list(_terms(index, 1))
    broken = [term for term in terms if _is_broken(term[1])]
    kept = [term for term in terms if not any(term is other for other in broken)]
    for own, group in _by_axes(broken):
        key = tuple((sign, StructuralKey(term)) for sign, term in group)
        if key not in axes.known:
            axes.known[key] = _as_linear(own, group, axes.extents)
        kept += axes.known[key] or group
    total: Any = tirx.const(0, "int32")
    for sign, term in kept:
        total = total + term if sign > 0 else total - term
    return total


def _terms(expr: Any, sign: int) -> Iterator[tuple[int, Any]]:
    """What is added up in an expression, each with its sign."""
    if type(expr) in (tirx.Add, tirx.Sub):
        yield from _terms(expr.a, sign)
        yield from _terms(expr.b, sign if type(expr) is tirx.Add else -sign)
    else:
        yield sign, expr


def _by_axes(terms: list[_Term]) -> list[tuple[dict[Any, None], list[_Term]]]:
    """The terms in groups that have no axis in common, each with its axes."""
    groups: list[tuple[dict[Any, None], list[_Term]]] = []
    for term in terms:
        axes, group = dict.fromkeys(variables(term[1])), [term]
        for other in [one for one in groups if one[0].keys() & axes.keys()]:
            groups.remove(other)
            axes, group = axes | other[0], other[1] + group
        groups.append((axes, group))
    return groups


def _as_linear(
    axes: dict[Any, None], group: list[_Term], extents: Mapping[Any, int]
) -> list[_Term] | None:
    """The sum of the terms as one linear term; None if it is none, or its axes take too many
    values."""
    sizes = [extents.get(axis, 0) for axis in axes]
    if not 0 < prod(sizes) <= MOST_VALUES:
        return None
    grid = dict(zip(axes, np.indices(sizes), strict=True))
    each = [_values(term, grid) for _, term in group]
    if any(one is None for one in each):
        return None
    whole = sum(sign * one for (sign, _), one in zip(group, each, strict=True))
    values = np.broadcast_to(whole, sizes)
    first = int(values.flat[0])
    expected: Any = first
    total: Any = tirx.const(first, "int32")
    for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        step = int(np.moveaxis(values, place, 0)[1].flat[0]) - first if size > 1 else 0
        expected = expected + step * grid[axis]
        total = total + axis * step
    return [(1, total)] if np.array_equal(values, np.broadcast_to(expected, sizes)) else None


_OPERATIONS = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
}


def _values(expr: Any, grid: dict[Any, np.ndarray]) -> Any:
    """An integer expression at every point of the grid; None for a kind that is not known."""
    kind = type(expr)
    if kind is tirx.Var:
        return grid[expr]
    if kind is tirx.IntImm:
        return int(expr.value)
    if kind is tirx.Cast:
        return _values(expr.value, grid)
    operation = _OPERATIONS.get(kind)
    if operation is None:
        return None
    left, right = _values(expr.a, grid), _values(expr.b, grid)
    return None if left is None or right is None else operation(left, right)
