"""What a constant may be of an extent that is not known, told from two of its values.

    Number     [499, 128]                             start + step * extent
    Count      [[0, 7], [1, 7], [2, 7], ..]           start + step * i along the extent
    Repeated   [[True], [True], ..]                   the same along it, but for some at its ends
    Beginning  the first rows of a table              positions of words
    Diagonals  [[0, -inf, ..], [0, 0, -inf, ..], ..]  what depends on j - i only: masks, distances

Each has a call that makes it of what it needs. An axis may be some more than the extent, or some
times it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tvm_ext.tvm_api import constant, ir, mark_written, relax, te, tirx
from tvm_ext.tvm_lowering import LIMIT

Pair = Sequence[np.ndarray]
Tables = Callable[[], Iterable[np.ndarray]]
Place = tuple[Any, ...]
NUMBER = "tvm_ext.grown"
"""Attribute of a kernel that makes a constant."""
LIMITS = "tvm_ext.limits"
"""Attribute of one that has no more values than for some number, by the name of the extent."""
CYCLES = 1000
"""What making one takes, about: little, and nothing of it is planned."""


class Length(NamedTuple):
    """step * extent + offset."""

    step: int
    offset: int

    @classmethod
    def of(cls, pair: Sequence[int], extents: Sequence[int]) -> Length | None:
        """None of two numbers of which that is not so. Of two squares it would be, or of products
        like n * (n + 1): with an offset that leaves little of the steps at the extents."""
        step, left = divmod(pair[1] - pair[0], extents[1] - extents[0])
        offset = pair[0] - step * extents[0]
        return None if left or step < 1 or -2 * offset >= step * extents[0] else cls(step, offset)

    def at(self, symbol: Any) -> Any:
        """As an expression."""
        grown = symbol if self.step == 1 else symbol * self.step
        return grown + self.offset if self.offset else grown


@dataclass(frozen=True)
class Form(ABC):
    """A constant that can be made for any extent."""

    shape: tuple[int | Length, ...]

    @property
    @abstractmethod
    def tables(self) -> tuple[np.ndarray, ...]:
        """What it is made of."""

    @abstractmethod
    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        """The element at a place of a constant of those sizes."""

    is_told: ClassVar[bool] = False
    """Whether the extent itself is needed."""

    @property
    def limit(self) -> tuple[Length, int] | None:
        """A length, and what it may be at most; None if there is no such."""
        return None

    def takes(self, extent: int) -> bool:
        """Whether an extent is within the limit."""
        return self.limit is None or int(self.limit[0].at(extent)) <= self.limit[1]

    @abstractmethod
    def made(self, extent: int) -> np.ndarray:
        """The constant for an extent, which is no more than the limit."""

    def sizes(self, extent: int) -> tuple[int, ...]:
        """Its shape for an extent."""
        return tuple(int(e.at(extent)) if isinstance(e, Length) else e for e in self.shape)

    def call(self, symbol: Any, builder: Any, number: int = 0) -> Any:
        """The call that makes it, of a kernel that is added by the builder.

        number  in its function: with it no kernel is another's by chance, for some numbers only
        """
        lengths = [extent for extent in self.shape if isinstance(extent, Length)]
        own = {length: tirx.Var(f"{symbol.name}{i}", "int64") for i, length in enumerate(lengths)}
        extent = tirx.Var(str(symbol.name), "int64")
        dtype = str(self.tables[0].dtype)
        shapes = [[tirx.const(extent, "int64") for extent in table.shape] for table in self.tables]
        given = [te.placeholder(shape, dtype, f"t{i}") for i, shape in enumerate(shapes)]
        sizes = [own[e] if isinstance(e, Length) else tirx.const(e, "int64") for e in self.shape]
        out = te.compute(
            sizes, lambda *at: self.element(given, at, tuple(sizes), extent), name="grown"
        )
        told = [extent] if self.is_told else []
        func = te.create_prim_func([*given, *told, out]).without_attr("global_symbol")
        if self.limit is not None:
            length, most = self.limit
            said = f"{length.at(symbol)}: the model has values for {most} at most"
            within = tirx.AssertStmt(
                own[length] <= tirx.const(most, "int64"),
                ir.StringImm(LIMIT),
                [ir.StringImm(said)],
            )
            func = func.with_body(tirx.SeqStmt([within, func.body]))
            largest = (most - length.offset) // length.step
            func = func.with_attr(LIMITS, {str(symbol.name): largest})
        func = mark_written(func, CYCLES).with_attr(NUMBER, number)
        variable = builder.add_func(func, "grown")
        operands = [constant(np.asarray(table, order="C")) for table in self.tables]
        taken = relax.Tuple([*operands, *([symbol] if self.is_told else [])])
        shape = [e.at(symbol) if isinstance(e, Length) else e for e in self.shape]
        return relax.call_tir(variable, taken, relax.TensorType(shape, dtype))


@dataclass(frozen=True)
class Number(Form):
    """`start + step * extent`, element by element, of integers."""

    start: np.ndarray
    step: np.ndarray
    is_told: ClassVar[bool] = True

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        return self.start, self.step

    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        start, step = tables
        return start[at] + step[at] * extent.astype(start.dtype)

    def made(self, extent: int) -> np.ndarray:
        return np.asarray(self.start + self.step * extent, self.start.dtype)

    @classmethod
    def of(cls, pair: Pair, extents: Sequence[int]) -> Number | None:
        """None of constants that are not so."""
        if not _are_whole(pair):
            return None
        one, other = pair
        step, left = np.divmod(other - one, extents[1] - extents[0])
        start = np.asarray(one - step * extents[0])
        if left.any() or (-2 * start * np.sign(step) >= abs(step) * extents[0])[step != 0].any():
            return None  # as `Length.of`
        return cls(one.shape, start, np.asarray(step))


@dataclass(frozen=True)
class Count(Form):
    """`start + step * i`, of `i` along an axis, of integers."""

    start: np.ndarray
    step: np.ndarray
    axis: int

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        return self.start, self.step

    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        start, step = tables
        first = (*at[: self.axis], 0, *at[self.axis + 1 :])
        return start[first] + step[first] * at[self.axis].astype(start.dtype)

    def made(self, extent: int) -> np.ndarray:
        return self.counted(self.sizes(extent)[self.axis], self.start.dtype)

    @classmethod
    def of(cls, pair: Pair, shape: tuple[int | Length, ...], axis: int) -> Count | None:
        """None of constants that do not count evenly."""
        if not _are_whole(pair):
            return None
        start, following = (pair[0].take([place], axis) for place in (0, 1))
        with np.errstate(invalid="ignore"):
            found = cls(shape, start, following - start, axis)
            same = all(np.array_equal(found.counted(a.shape[axis], a.dtype), a) for a in pair)
        return found if same else None

    def counted(self, length: int, dtype: Any) -> np.ndarray:
        """So many elements along the axis."""
        sizes = [-1 if place == self.axis else 1 for place in range(self.start.ndim)]
        counted: np.ndarray = self.start + self.step * np.arange(length).reshape(sizes).astype(
            dtype
        )
        return counted


@dataclass(frozen=True)
class Repeated(Form):
    """The same at every place along an axis, but for some at its ends."""

    values: np.ndarray
    """The first ones, one for all places between, and the last ones."""
    axis: int
    first: int
    """How many are no repetition at the beginning."""
    last: int
    """And at the end."""

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        return (self.values,)

    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        place, from_end = at[self.axis], sizes[self.axis] - at[self.axis]
        chosen: Any = tirx.min(place, self.first)
        if self.last:
            end = self.first + 1 + self.last - from_end
            chosen = tirx.Select(from_end <= self.last, end, chosen)
        where = (*at[: self.axis], chosen, *at[self.axis + 1 :])
        return tables[0][where]

    def made(self, extent: int) -> np.ndarray:
        length = self.sizes(extent)[self.axis]
        places = np.minimum(np.arange(length), self.first)
        if self.last:
            places[length - self.last :] = self.first + 1 + np.arange(self.last)
        return self.values.take(places, self.axis)

    @classmethod
    def of(cls, pair: Pair, shape: tuple[int | Length, ...], axis: int) -> Repeated | None:
        """None of constants that are not so, or differ by more."""
        one, other = (np.moveaxis(array, axis, 0) for array in pair)
        same_end = _leading(one[::-1], other[::-1][: len(one)])
        first = len(one) - same_end
        repeated = other[first]
        more = len(other) - len(one)
        if (
            first > _leading(one, other[: len(one)])
            or _leading(other[first:], repeated[None]) < more
        ):
            return None
        first -= _leading(one[:first][::-1], repeated[None])
        last = same_end - _leading(one[len(one) - same_end :], repeated[None])
        length = shape[axis]
        if not isinstance(length, Length) or (last and length.at(1) < first + last):
            return None
        values = np.concatenate([one[:first], repeated[None], one[len(one) - last :]])
        return cls(shape, np.moveaxis(values, 0, axis), axis, first, last)


@dataclass(frozen=True)
class Beginning(Form):
    """The first rows of a table, or of one from some row on, along an axis. With more rows than it
    has the kernel fails."""

    table: np.ndarray
    axis: int

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        return (self.table,)

    @property
    def limit(self) -> tuple[Length, int] | None:
        length = self.shape[self.axis]
        assert isinstance(length, Length)
        return length, int(self.table.shape[self.axis])

    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        return tables[0][at]

    def made(self, extent: int) -> np.ndarray:
        return self.table.take(range(self.sizes(extent)[self.axis]), self.axis)

    @classmethod
    def of(
        cls, pair: Pair, shape: tuple[int | Length, ...], axis: int, tables: Tables
    ) -> Beginning | None:
        """None of constants of which the one does not begin as the other does; if no table begins
        so, the longer one is all there is."""
        one, other = pair
        if not np.array_equal(one, other.take(range(one.shape[axis]), axis)):
            return None
        row = other.size // other.shape[axis]
        for table in tables():
            if table.dtype != other.dtype or table.size % row:
                continue
            sizes = [*other.shape[:axis], table.size // row, *other.shape[axis + 1 :]]
            if [e for e in sizes if e > 1] != [e for e in table.shape if e > 1]:
                continue
            grown, length = np.moveaxis(table.reshape(sizes), axis, 0), other.shape[axis]
            rows = np.moveaxis(other, axis, 0)
            same = (grown == rows[0]).reshape(len(grown), -1).all(1)
            for begin in np.flatnonzero(same[: max(len(grown) - length + 1, 0)]):
                if np.array_equal(grown[begin : begin + length], rows):
                    return cls(shape, np.moveaxis(grown[begin:], 0, axis), axis)
        return cls(shape, other, axis)


@dataclass(frozen=True)
class Diagonals(Form):
    """Elements that depend, along two axes, i and j, on j - i only, and on nothing but its sign
    beyond some distance; or on all distances up to the largest that are known."""

    values: np.ndarray
    """By j - i on the last axis."""
    least: int
    """The first of those."""
    axes: tuple[int, int]
    most: int
    """The largest length of the first axis; 0 if all are known."""

    @property
    def limit(self) -> tuple[Length, int] | None:
        length = self.shape[self.axes[0]]
        return (length, self.most) if self.most and isinstance(length, Length) else None

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        return (self.values,)

    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        i, j = self.axes
        place = at[j] - at[i] - self.least
        rest: list[Any] = [index for axis, index in enumerate(at) if axis not in self.axes]
        rest.append(tirx.max(tirx.min(place, self.values.shape[-1] - 1), 0))
        return tables[0][tuple(rest)]

    def made(self, extent: int) -> np.ndarray:
        rows, columns = (self.sizes(extent)[axis] for axis in self.axes)
        apart = np.arange(columns) - np.arange(rows)[:, None] - self.least
        square = self.values[..., np.clip(apart, 0, self.values.shape[-1] - 1)]
        return np.moveaxis(square, (-2, -1), self.axes)

    @classmethod
    def of(
        cls, pair: Pair, shape: tuple[int | Length, ...], axes: tuple[int, int]
    ) -> Diagonals | None:
        """None of constants that are not so."""
        found, least, most = [], [], []
        for array in pair:
            square = np.moveaxis(array, axes, (-2, -1))
            if not np.array_equal(square[..., 1:, 1:], square[..., :-1, :-1]):
                return None
            found.append(np.concatenate([square[..., :0:-1, 0], square[..., 0, :]], -1))
            least.append(1 - square.shape[-2])
            most.append(square.shape[-1] - 1)
        one, other = found
        before, behind = least[0] - least[1], most[1] - most[0]
        extended = np.pad(one, [(0, 0)] * (one.ndim - 1) + [(before, behind)], mode="edge")
        if np.array_equal(extended, other):
            return cls(shape, one, least[0], axes, 0)
        if not np.array_equal(other[..., before : before + one.shape[-1]], one):
            return None
        return cls(shape, other, least[1], axes, pair[1].shape[axes[0]])


def form_of(pair: Pair, extents: Sequence[int], tables: Tables = tuple) -> Form | None:
    """The form of two constants for those extents; None if they have none.

    tables  makes arrays of which they may be the beginning
    """
    one, other = pair
    if one.ndim != other.ndim or one.dtype != other.dtype:
        return None
    lengths = [
        int(a) if a == b else Length.of((a, b), extents)
        for a, b in zip(one.shape, other.shape, strict=True)
    ]
    shape = tuple(length for length in lengths if length is not None)
    axes = [axis for axis, length in enumerate(lengths) if isinstance(length, Length)]
    if len(shape) < len(lengths) or len(axes) > 2:
        return None
    if len(axes) == 2:
        return Diagonals.of(pair, shape, (axes[0], axes[1]))
    if not axes:
        return Number.of(pair, extents)
    (axis,) = axes
    return (
        Count.of(pair, shape, axis)
        or Repeated.of(pair, shape, axis)
        or Beginning.of(pair, shape, axis, tables)
    )


def _leading(rows: np.ndarray, others: np.ndarray) -> int:
    """How many of the first rows equal others at their place, or the only one of the others."""
    same = (rows == others).all(tuple(range(1, rows.ndim)))
    return len(same) if same.all() else int(same.argmin())


def _are_whole(pair: Pair) -> bool:
    """Whether constants are integers, of whatever type of numbers."""
    return all(array.dtype != np.bool_ and np.array_equal(array, np.rint(array)) for array in pair)
