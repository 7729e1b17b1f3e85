"""Which elements of an output to check, and whether a kernel's are close enough."""

from __future__ import annotations

from itertools import islice, product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAX_CORNERS = 64


class Points(NamedTuple):
    """Elements of an output in its dtype, and how far a correct kernel may be from each.

    An infinite bound means unknown: the kernel may rightly have decided otherwise there.
    """

    values: NDArray[Any]
    bounds: NDArray[np.float64]


class Comparison(NamedTuple):
    """The worst of the compared elements.

    `ratio` is its distance from the reference over its bound (inf where no distance is allowed),
    `position` its place among the points, `checked` how many points had a finite bound.
    """

    ratio: float
    position: int
    actual: float
    expected: float
    bound: float
    checked: int

    @property
    def ok(self) -> bool:
        """Whether every element that has a finite bound is within it."""
        return self.ratio <= 1.0


def compare(actual: NDArray[Any], points: Points) -> Comparison:
    """Compares a kernel's elements, taken at the same positions, with the reference's.

    NaN equals NaN and an infinity equals itself; either against a number is infinitely far.
    """
    with np.errstate(invalid="ignore"):  # what was not written may hold anything
        got = np.asarray(actual).astype(np.float64).reshape(-1)
    want = points.values.astype(np.float64)
    if got.shape != want.shape:
        raise ValueError(f"{got.size} elements given, {want.size} expected")
    if not got.size:
        return Comparison(0.0, 0, 0.0, 0.0, 0.0, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        same = (np.asarray(actual).reshape(-1) == points.values) | (np.isnan(got) & np.isnan(want))
        distance = np.abs(got - want)
        ratio = np.where(np.isnan(distance), np.inf, distance / points.bounds)
    known = np.isfinite(points.bounds)
    ratio = np.where(same | ~known, 0.0, ratio)
    worst = int(np.argmax(ratio))
    return Comparison(
        float(ratio[worst]),
        worst,
        float(got[worst]),
        float(want[worst]),
        float(points.bounds[worst]),
        int(known.sum()),
    )


def choose(
    shape: tuple[int, ...],
    tile_extents: tuple[int, ...] | None = None,
    count: int = 1024,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Flat row-major positions to check, sorted: all if there are at most `count`.

    Otherwise the corners (64 of them at most); then, up to half of `count`, positions that lie at
    either side of a tile border or in a tail of some axis, if `tile_extents` (one for each
    dimension) are given; the rest uniformly at random. Deterministic in its arguments.
    """
    size = prod(shape)
    if size <= count:
        return np.arange(size, dtype=np.int64)
    rng = np.random.default_rng(seed)
    ends = [sorted({0, extent - 1}) for extent in shape]
    corners = np.array(list(islice(product(*ends), _MAX_CORNERS)), dtype=np.int64)
    wanted = [np.ravel_multi_index(tuple(corners.T), shape)]
    if tile_extents is not None:
        borders = [_borders(e, t) for e, t in zip(shape, tile_extents, strict=True)]
        wanted.append(_near_borders(shape, borders, max(0, count // 2 - len(corners)), rng))
    chosen = np.unique(np.concatenate(wanted))[:count]
    # few positions: draw from all of them; many: twice as many draws as needed leave enough
    draws = np.arange(size) if size <= 16 * count else rng.integers(0, size, size=2 * count)
    fresh = np.setdiff1d(draws, chosen)
    more = rng.choice(fresh, size=count - chosen.size, replace=False)
    return np.sort(np.concatenate([chosen, more])).astype(np.int64)


def choose_lines(
    shape: tuple[int, ...],
    tile_extents: tuple[int, ...] | None,
    count: int,
    per_line: int,
    seed: int = 0,
) -> NDArray[np.int64]:
    """As `choose`, but `per_line` at a time differ in their last index only: they read much the
    same, and the reference computes that once."""
    *outer, last = shape
    tiles = [None, None] if tile_extents is None else [tile_extents[:-1], tile_extents[-1:]]
    lines = choose(tuple(outer), tiles[0], count // per_line, seed)
    chosen = [
        line * last + choose((last,), tiles[1], per_line, seed + place)
        for place, line in enumerate(lines)
    ]
    return np.concatenate(chosen) if chosen else lines


def _borders(extent: int, tile: int) -> NDArray[np.int64]:
    """Positions of one axis at the borders of its first, middle and last tile, and in its tail."""
    starts = {tile, (extent // tile // 2) * tile, ((extent - 1) // tile) * tile}
    near = {at for start in starts for at in (start - 1, start)}
    return np.array(sorted(at for at in near | {extent - 1} if 0 <= at < extent), dtype=np.int64)


def _near_borders(
    shape: tuple[int, ...],
    borders: list[NDArray[np.int64]],
    count: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Random positions of which each has one axis, or every axis, at a border."""
    where = np.stack([rng.integers(0, extent, size=count) for extent in shape])
    axis = np.arange(count) % (len(shape) + 1)
    for d, places in enumerate(borders):
        at = (axis == d) | (axis == len(shape))
        where[d, at] = rng.choice(places, size=int(at.sum()))
    return np.ravel_multi_index(tuple(where), shape)
