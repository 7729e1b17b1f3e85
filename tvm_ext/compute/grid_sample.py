"""Images sampled at points that data say (Jaderberg et al. 2015, "Spatial Transformer Networks",
section 3.3).

    out[n, i, j, :] = the elements around (grid[n, 0, i, j], grid[n, 1, i, j]) of image n, each
                      weighted by how near it is

Channels come last, so that the place of a point and its weights serve whole vectors of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tvm_ext.compute.maths import const, integer
from tvm_ext.compute.written import alike, by_vectors, times
from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
Expr = Any
POINT_CYCLES = 40
"""Of the place of a point and its weights."""
Beyond = Literal["zeros", "border", "reflection"]


class _Near(NamedTuple):
    """Along an axis: an element near a point, whether the image has it, and its weight."""

    place: Expr
    there: Expr
    weight: Expr


@dataclass(frozen=True)
class GridSample:
    """The kernel for images of `height` by `width` elements with `channels`.

    points   of an image, along both axes
    beyond   what a point outside an image stands for: nothing, the nearest element, or a point as
             far inside
    corners  whether -1 and 1 are the middles of the first and the last element, or their edges
    linear   whether the four elements around a point count, or the nearest one
    """

    images: int
    height: int
    width: int
    channels: int
    points: tuple[int, int]
    beyond: Beyond
    corners: bool
    linear: bool
    lanes: int

    @property
    def rows(self) -> int:
        """Rows of points, each worked on by itself."""
        return self.images * self.points[0]

    @property
    def cycles(self) -> float:
        """About how long it takes."""
        each = (3 if self.linear else 1) * self.channels / self.lanes
        return self.rows * self.points[1] * (POINT_CYCLES + each)

    def __call__(self, image: Tensor, grid: Tensor, *, parallel: bool) -> Sequence[Tensor]:
        """float32 [images, *points, channels]; of images [images, height, width, channels] and a
        grid [images, 2, *points] of x and y from -1 to 1."""
        made = te.extern(
            [(self.images, *self.points, self.channels)],
            [image, grid],
            lambda given, made: self._program(*given, *made, parallel=parallel),
            dtype=["float32"],
            name="grid_sample",
        )
        return [made]

    def _program(self, image: Any, grid: Any, result: Any, *, parallel: bool) -> Any:
        down, across = self.points
        with IRBuilder() as builder:
            with (
                times(self.rows, parallel=parallel) as number,
                times(across) as column,
            ):
                each, row = tirx.floordiv(number, down), tirx.floormod(number, down)
                level, vertical = (
                    list(self._near(grid[each, place, row, column], size))
                    for place, size in enumerate((self.width, self.height))
                )
                near = [(y, x, *self._weight(y, x)) for y in vertical for x in level]

                def sample(place: Expr) -> None:
                    total = alike(place, const(0.0))
                    for y, x, there, weight in near:
                        element = image[each, y.place, x.place, place] * alike(place, weight)
                        if self.beyond == "zeros":  # what is not there may be infinite
                            element = tirx.Select(alike(place, there), element, total * 0.0)
                        total = total + element
                    Build.buffer_store(result, total, [each, row, column, place])

                by_vectors(self.channels, self.lanes, sample)
            return builder.get()

    def _near(self, place: Expr, size: int) -> Iterator[_Near]:
        """The elements near a point along an axis of an image."""
        point = Build.bind(self._inside(self._point(place, size), size))
        if not self.linear:
            nearest = Build.bind(tirx.nearbyint(point).astype("int32"))
            yield _Near(*self._held(nearest, size), const(1.0))
            return
        low = Build.bind(tirx.floor(point).astype("int32"))
        share = Build.bind(point - low.astype("float32"))
        yield _Near(*self._held(low, size), const(1.0) - share)
        yield _Near(*self._held(Build.bind(low + 1), size), share)

    def _point(self, place: Expr, size: int) -> Expr:
        """-1 to 1 in elements of an axis."""
        if self.corners:
            return (place + 1.0) * const(float(size - 1)) / const(2.0)
        return const(-0.5) + (place + 1.0) * const(float(size)) / const(2.0)

    def _inside(self, point: Expr, size: int) -> Expr:
        """The point of the image that one outside it stands for."""
        if self.beyond == "zeros":
            return point
        begin, extent = (0.0, size - 1) if self.corners else (-0.5, size)
        if self.beyond == "reflection" and extent:
            away = Build.bind(tirx.abs(point - const(begin)))
            turns = Build.bind(tirx.truncdiv(away.astype("int32"), integer(extent)))
            rest = Build.bind(away - (turns * extent).astype("float32"))
            odd = tirx.bitwise_and(turns, integer(1)) == 1
            folded = tirx.Select(odd, const(float(extent)) - rest, rest) + const(begin)
            outside = tirx.any(point < const(begin), point > const(begin + extent))
            point = tirx.Select(outside, folded, point)
        return tirx.max(tirx.min(point, const(float(size - 1))), const(0.0))

    def _held(self, place: Expr, size: int) -> tuple[Expr, Expr]:
        """A place that the image has, and whether it is the one asked for."""
        held = Build.bind(tirx.max(tirx.min(place, integer(size - 1)), integer(0)))
        return held, held == place

    def _weight(self, y: _Near, x: _Near) -> tuple[Expr, Expr]:
        return Build.bind(tirx.all(y.there, x.there)), Build.bind(y.weight * x.weight)
