"""What a constant may be of an extent that is not known, told from two of its values.

    Number     [499, 128]                             start + step * extent
    Count      [[0, 7], [1, 7], [2, 7], ..]           start + step * i along the extent
    Repeated   [[True], [True], ..]                   the same along it, but for some at its ends
    Rows       of a table, from the first on or one   positions of words, those behind others
               that the extent says
    Diagonals  [[0, -inf, ..], [0, 0, -inf, ..], ..]  what depends on j - i only: masks, distances

Each has a call that makes it of what it needs. An axis may be some more than the extent, or some
times it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tvm_ext.graph.constant_form import Form, Length, Limit, Place, number_of
from tvm_ext.tvm_api import tirx

Pair = Sequence[np.ndarray]
Tables = Callable[[], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Number(Form):
    """`start + step * extent`, element by element, of integers."""

    start: np.ndarray
    step: np.ndarray

    @property
    def is_told(self) -> bool:
        return True

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
class Rows(Form):
    """Rows of a table along an axis, from one on. With more than it has the kernel fails."""

    table: np.ndarray
    axis: int
    begin: int | Length = 0

    @property
    def is_told(self) -> bool:
        return isinstance(self.begin, Length)

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        return (self.table,)

    @property
    def limit(self) -> Limit | None:
        return Limit(self.begin, self.shape[self.axis], int(self.table.shape[self.axis]))

    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        row = at[self.axis]
        if self.begin != 0:
            row = row + number_of(self.begin, extent)
        where = (*at[: self.axis], row, *at[self.axis + 1 :])
        return tables[0][where]

    def made(self, extent: int) -> np.ndarray:
        begin = self.begin.at(extent) if isinstance(self.begin, Length) else self.begin
        return self.table.take(begin + np.arange(self.sizes(extent)[self.axis]), self.axis)

    @classmethod
    def of(
        cls,
        pair: Pair,
        shape: tuple[int | Length, ...],
        axes: Sequence[int],
        extents: Sequence[int],
        tables: Tables,
    ) -> Rows | None:
        """None of constants that no table has along one of the axes. If the one begins as the other
        does, the longer one is all there is then."""
        one, other = pair
        for table in tables():
            for axis in axes:
                sizes = [*other.shape[:axis], -1, *other.shape[axis + 1 :]]
                row = other.size // other.shape[axis]
                if table.dtype != other.dtype or table.size % row:
                    continue
                grown = table.reshape(sizes)
                if [e for e in grown.shape if e > 1] != [e for e in table.shape if e > 1]:
                    continue
                for begins in product(*(_begins(array, grown, axis) for array in pair)):
                    begin = begins[0] if begins[0] == begins[1] else Length.of(begins, extents)
                    if begin is not None:
                        return cls(shape, grown, axis, begin)
        grows = [axis for axis in axes if isinstance(shape[axis], Length)]
        if grows and _begins(one, other, grows[0])[:1] == [0]:
            return cls(shape, other, grows[0])
        return None


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
    def limit(self) -> Limit | None:
        length = self.shape[self.axes[0]]
        return Limit(0, length, self.most) if self.most and isinstance(length, Length) else None

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

    tables  makes arrays of which they may be rows
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
        rows = [axis for axis, extent in enumerate(one.shape) if one.size > extent]
        return Number.of(pair, extents) or Rows.of(pair, shape, rows, extents, tables)
    (axis,) = axes
    return (
        Count.of(pair, shape, axis)
        or Repeated.of(pair, shape, axis)
        or Rows.of(pair, shape, axes, extents, tables)
    )


def _begins(part: np.ndarray, table: np.ndarray, axis: int) -> list[int]:
    """Where the rows of an array begin in those of a table."""
    length, whole = part.shape[axis], table.shape[axis]
    wanted, rows = (
        np.moveaxis(each, axis, 0).reshape(each.shape[axis], -1) for each in (part, table)
    )
    first = np.flatnonzero(rows[: max(0, whole - length + 1), 0] == wanted[0, 0])
    return [int(at) for at in first if np.array_equal(rows[at : at + length], wanted)]


def _leading(rows: np.ndarray, others: np.ndarray) -> int:
    """How many of the first rows equal others at their place, or the only one of the others."""
    same = (rows == others).all(tuple(range(1, rows.ndim)))
    return len(same) if same.all() else int(same.argmin())


def _are_whole(pair: Pair) -> bool:
    """Whether constants are integers, of whatever type of numbers."""
    return all(array.dtype != np.bool_ and np.array_equal(array, np.rint(array)) for array in pair)
