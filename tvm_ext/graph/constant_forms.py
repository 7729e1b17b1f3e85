"""What a constant may be of an extent that is not known, told from two of its values.

    Count      [[0, 7], [1, 7], [2, 7], ..]           start + step * i along the extent, or times it
    Repeated   [[True], [True], ..]                   the same along it
    Beginning  the first rows of a table              positions of words
    Diagonals  [[0, -inf, ..], [0, 0, -inf, ..], ..]  what depends on j - i only: masks, distances

Each has a call that makes it of what it needs and the extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvm_ext.tvm_api import constant, ir, mark_written, relax, te, tirx
from tvm_ext.tvm_lowering import LIMIT

Pair = Sequence[np.ndarray]
Tables = Callable[[], Iterable[np.ndarray]]
_ZERO = tirx.const(0, "int64")
CYCLES = 1000
"""What making one takes, about: little, and nothing of it is planned."""


def form_of(
    pair: Pair, extents: Sequence[int], tables: Tables = tuple
) -> Count | Repeated | Beginning | Diagonals | None:
    """The form of two constants for those extents; None if they have none.

    tables  makes arrays of which they may be the beginning
    """
    one, other = pair
    if one.ndim != other.ndim or one.dtype != other.dtype:
        return None
    differing = [axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis]]
    if any((one.shape[axis], other.shape[axis]) != tuple(extents) for axis in differing):
        return None
    if len(differing) == 2:
        return Diagonals.of(pair, (differing[0], differing[1]))
    if len(differing) > 2:
        return None
    axis = differing[0] if differing else None
    count = Count.of(pair, extents, axis)
    if count or axis is None:
        return count
    return Repeated.of(pair, axis) or Beginning.of(pair, axis, tables)


@dataclass(frozen=True)
class Count:
    """A constant of integers that are `start + step * i`, of `i` along an axis of an extent that is
    not known, or that extent itself where there is no such axis."""

    start: np.ndarray
    step: np.ndarray
    axis: int | None

    def call(self, symbol: Any, builder: Any) -> Any:
        """The call that makes it."""
        own = tirx.Var(str(symbol.name), "int64")
        given = [te.placeholder(self.start.shape, str(self.start.dtype), n) for n in ("a", "b")]

        def body(*at: Any) -> Any:
            first = tuple(_ZERO if place == self.axis else i for place, i in enumerate(at))
            count = own if self.axis is None else at[self.axis]
            return given[0][first] + given[1][first] * count.astype(given[0].dtype)

        def shape(extent: Any) -> list[Any]:
            sizes = enumerate(self.start.shape)
            return [extent if place == self.axis else tirx.const(e, "int64") for place, e in sizes]

        out = te.compute(shape(own), body, name="count")
        told = [] if self.axis is not None else [own]
        func = te.create_prim_func([*given, *told, out]).without_attr("global_symbol")
        operands = [constant(np.asarray(array, order="C")) for array in (self.start, self.step)]
        taken = relax.Tuple([*operands, *([] if self.axis is not None else [symbol])])
        ty = relax.TensorType(shape(symbol), str(self.start.dtype))
        return relax.call_tir(builder.add_func(func, "count"), taken, ty)

    @classmethod
    def of(cls, pair: Pair, extents: Sequence[int], axis: int | None) -> Count | None:
        """None of constants that do not count evenly."""
        one, other = pair
        if one.dtype == np.bool_ or not all(np.array_equal(a, np.rint(a)) for a in pair):
            return None
        if axis is None:
            step, left = np.divmod(other - one, extents[1] - extents[0])
            start = np.asarray(one - step * extents[0])
            if left.any() or (abs(start) >= prod(extents)).any():  # as its square would
                return None
            return cls(start, np.asarray(step), None)
        start, following = (one.take([place], axis) for place in (0, 1))
        step = following - start
        for array in pair:
            sizes = [-1 if place == axis else 1 for place in range(array.ndim)]
            places = np.arange(array.shape[axis]).reshape(sizes).astype(array.dtype)
            if not np.array_equal(array, start + step * places):
                return None
        return cls(start, step, axis)


@dataclass(frozen=True)
class Repeated:
    """A constant that is the same at every place along an axis."""

    values: np.ndarray
    axis: int

    def call(self, symbol: Any, builder: Any) -> Any:
        """The call that repeats it."""
        shape: list[Any] = list(self.values.shape)
        shape[self.axis] = symbol

        def body(values: Any, *at: Any) -> Any:
            return values[tuple(_ZERO if place == self.axis else i for place, i in enumerate(at))]

        return _made(symbol, builder, self.values, shape, body)

    @classmethod
    def of(cls, pair: Pair, axis: int) -> Repeated | None:
        """None of constants that are not so, or differ by more."""
        first = pair[0].take([0], axis)
        same = all(np.array_equal(array, np.broadcast_to(first, array.shape)) for array in pair)
        return cls(first, axis) if same else None


@dataclass(frozen=True)
class Beginning:
    """A constant that is the first rows of a table, along an axis."""

    table: np.ndarray
    axis: int

    def call(self, symbol: Any, builder: Any) -> Any:
        """The call that copies them. With more rows than the table has it fails."""
        most = int(self.table.shape[self.axis])
        return _made(
            symbol,
            builder,
            self.table,
            [symbol if place == self.axis else e for place, e in enumerate(self.table.shape)],
            lambda table, *at: table[at],
            lambda extent: tirx.AssertStmt(
                extent <= tirx.const(most, "int64"),
                ir.StringImm(LIMIT),
                [ir.StringImm(f"{symbol.name}: the model has values for {most} at most")],
            ),
        )

    @classmethod
    def of(cls, pair: Pair, axis: int, tables: Tables) -> Beginning | None:
        """None of constants of which the one does not begin as the other does; if no table begins
        so, the longer one is all there is."""
        one, other = pair
        if not np.array_equal(one, other.take(range(one.shape[axis]), axis)):
            return None
        for table in tables():
            shape = list(other.shape)
            if table.dtype != other.dtype or table.size % (other.size // shape[axis]):
                continue
            shape[axis] = table.size // (other.size // shape[axis])
            whole = [e for e in shape if e > 1] == [e for e in table.shape if e > 1]
            if not whole or shape[axis] < other.shape[axis]:
                continue
            grown = table.reshape(shape)
            if np.array_equal(grown.take(range(other.shape[axis]), axis), other):
                return cls(grown, axis)
        return cls(other, axis)


@dataclass(frozen=True)
class Diagonals:
    """A constant whose elements along two axes, i and j, depend on j - i only, and on nothing but
    its sign beyond some distance."""

    values: np.ndarray
    """By j - i on the last axis, from the least to the largest that matter."""
    axes: tuple[int, int]

    def call(self, symbol: Any, builder: Any) -> Any:
        """The call that looks them up."""
        first, second = self.axes
        reach = (self.values.shape[-1] - 1) // 2
        shape: list[Any] = list(self.values.shape[:-1])
        for axis in self.axes:
            shape.insert(axis, symbol)

        def body(values: Any, *at: Any) -> Any:
            place = at[second] - at[first] + reach
            rest: list[Any] = [i for axis, i in enumerate(at) if axis not in self.axes]
            rest.append(tirx.max(tirx.min(place, 2 * reach), 0))
            return values[tuple(rest)]

        return _made(symbol, builder, self.values, shape, body)

    @classmethod
    def of(cls, pair: Pair, axes: tuple[int, int]) -> Diagonals | None:
        """None of constants that are not so."""
        found = []
        for array in pair:
            square = np.moveaxis(array, axes, (-2, -1))
            if not np.array_equal(square[..., 1:, 1:], square[..., :-1, :-1]):
                return None
            found.append(np.concatenate([square[..., :0:-1, 0], square[..., 0, :]], -1))
        one, other = found
        reach = (one.shape[-1] - 1) // 2
        beyond = (other.shape[-1] - 1) // 2 - reach
        extended = np.pad(one, [(0, 0)] * (one.ndim - 1) + [(beyond, beyond)], mode="edge")
        return cls(one, axes) if np.array_equal(extended, other) else None


def _made(
    symbol: Any,
    builder: Any,
    table: np.ndarray,
    shape: Sequence[Any],
    body: Callable[..., Any],
    asserted: Callable[[Any], Any] | None = None,
) -> Any:
    """The call of a kernel that makes a tensor of a table and an extent."""
    own = tirx.Var(str(symbol.name), "int64")
    given = te.placeholder(table.shape, str(table.dtype), "table")
    sizes = [own if e is symbol else tirx.const(int(e), "int64") for e in shape]
    out = te.compute(sizes, lambda *at: body(given, *at), name="grown")
    func = te.create_prim_func([given, out]).without_attr("global_symbol")
    if asserted is not None:
        func = mark_written(func.with_body(tirx.SeqStmt([asserted(own), func.body])), CYCLES)
    variable = builder.add_func(func, "grown")
    ty = relax.TensorType(list(shape), str(table.dtype))
    return relax.call_tir(variable, relax.Tuple([constant(np.asarray(table, order="C"))]), ty)
