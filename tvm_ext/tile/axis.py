"""Axes and tiles: the vocabulary every other room speaks (Roller §3, Welder §3)."""

from __future__ import annotations

from math import isqrt, prod
from typing import Literal

import msgspec

from tvm_ext.tile.remember import remembered

AxisKind = Literal["space", "reduce"]


class Axis(msgspec.Struct, frozen=True, cache_hash=True):
    """One loop of an operator: `space` axes index the output, `reduce` axes are summed away."""

    name: str
    extent: int
    kind: AxisKind = "space"


class Tile(msgspec.Struct, frozen=True, cache_hash=True):
    """A box of iterations at one memory level: one extent per axis of its node, in axis order."""

    extents: tuple[int, ...]

    @property
    def points(self) -> int:
        """Number of iterations in the tile."""
        return prod(self.extents)

    def with_extent(self, axis: int, size: int) -> Tile:
        """The tile with one extent changed."""
        return Tile((*self.extents[:axis], size, *self.extents[axis + 1 :]))

    def fits(self, axes: tuple[Axis, ...]) -> bool:
        """Whether every extent is at least 1 and at most its axis."""
        return len(self.extents) == len(axes) and all(
            1 <= t <= a.extent for t, a in zip(self.extents, axes, strict=True)
        )

    @remembered
    def counts(self, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        """How many tiles cover each axis; the last one of an axis may be a partial tail."""
        return tuple(-(-a.extent // t) for t, a in zip(self.extents, axes, strict=True))

    def waste(self, axes: tuple[Axis, ...]) -> float:
        """Fraction of the covered iterations that lie outside the axes (Roller §3.2, padding)."""
        covered = prod(n * t for n, t in zip(self.counts(axes), self.extents, strict=True))
        return 1.0 - prod(a.extent for a in axes) / covered


def divisors(extent: int, limit: int | None = None) -> list[int]:
    """The divisors of an extent up to `limit`, ascending."""
    most = min(extent, limit or extent)
    low = [size for size in range(1, min(isqrt(extent), most) + 1) if extent % size == 0]
    high = [extent // size for size in reversed(low) if size * size < extent]
    return [*low, *(size for size in high if size <= most)]
