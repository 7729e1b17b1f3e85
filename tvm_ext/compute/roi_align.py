"""Regions of an image, resampled to a few elements each (He et al. 2017, "Mask R-CNN", section 3).

    out[r, i, j, :] = mean over s * s points of bin (i, j) of region r: four neighbours of each,
                      weighted by how near they are

Channels come last, so that a point's weights serve whole vectors of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm_ext.compute.maths import const, integer
from tvm_ext.compute.written import alike, by_vectors, times
from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
Expr = Any
POINT_CYCLES = 40
"""Of the weights of a point."""


class _Near(NamedTuple):
    """Along an axis: the elements before and behind a point, and their weights."""

    low: Expr
    high: Expr
    low_weight: Expr
    high_weight: Expr


@dataclass(frozen=True)
class RoiAlign:
    """The kernel for `regions` of `images` of `height` by `width` elements with `channels`.

    bins      elements of a result, along both axes
    scale     of an image's coordinates to its elements
    samples   points of a bin along an axis; none: as many as it has elements
    least     extent of a region at least, in elements; None: even one that is turned round
    """

    images: int
    height: int
    width: int
    channels: int
    regions: int
    bins: tuple[int, int]
    scale: float
    samples: int
    least: float | None
    lanes: int

    @property
    def rows(self) -> int:
        """Regions, each worked on by itself."""
        return self.regions

    @property
    def cycles(self) -> float:
        """About how long it takes."""
        points = self.bins[0] * self.bins[1] * max(1, self.samples) ** 2
        return self.regions * points * (POINT_CYCLES + 3 * self.channels / self.lanes)

    def __call__(self, image: Tensor, regions: Tensor, *, parallel: bool) -> Sequence[Tensor]:
        """float32 [regions, *bins, channels]; of images [images, height, width, channels] and
        regions [regions, 5], each the number of its image, x, y, x, y."""
        made = te.extern(
            [(self.regions, *self.bins, self.channels)],
            [image, regions],
            lambda given, made: self._program(*given, *made, parallel=parallel),
            dtype=["float32"],
            name="roi_align",
        )
        return [made]

    def _program(self, image: Any, regions: Any, result: Any, *, parallel: bool) -> Any:
        with IRBuilder() as builder:
            with times(self.regions, parallel=parallel) as region:
                at = tirx.max(
                    tirx.min(regions[region, 0].astype("int32"), integer(self.images - 1)),
                    integer(0),
                )
                number = Build.bind(at)
                left, top, right, bottom = (
                    Build.bind(regions[region, place] * const(self.scale)) for place in (1, 2, 3, 4)
                )
                tall, wide = self._extent(top, bottom), self._extent(left, right)
                down, across = (
                    self._points(extent, bins)
                    for extent, bins in ((tall, self.bins[0]), (wide, self.bins[1]))
                )
                sums = Build.alloc_buffer([self.channels], "float32")
                with times(self.bins[0]) as row, times(self.bins[1]) as column:
                    by_vectors(
                        self.channels,
                        self.lanes,
                        lambda place: Build.buffer_store(sums, self._zero(place), [place]),
                    )
                    with times(down) as y, times(across) as x:
                        vertical = self._near(top, tall, row, self.bins[0], y, down, self.height)
                        level = self._near(left, wide, column, self.bins[1], x, across, self.width)
                        self._add(image, number, vertical, level, sums)
                    count = (down * across).astype("float32")
                    by_vectors(
                        self.channels,
                        self.lanes,
                        lambda place: Build.buffer_store(
                            result,
                            sums[place] * alike(place, const(1.0) / count),
                            [region, row, column, place],
                        ),
                    )
            return builder.get()

    def _extent(self, begin: Expr, end: Expr) -> Expr:
        whole = end - begin
        return Build.bind(whole if self.least is None else tirx.max(whole, const(self.least)))

    def _points(self, extent: Expr, bins: int) -> Expr:
        """Points of a bin along an axis."""
        if self.samples > 0:
            return integer(self.samples)
        found = tirx.ceil(extent / const(float(bins))).astype("int32")
        return Build.bind(tirx.max(found, integer(1)))

    def _near(
        self, begin: Expr, extent: Expr, place: Expr, bins: int, step: Expr, steps: Expr, size: int
    ) -> _Near:
        """The neighbours of a point; of one beyond the image without weight."""
        bin_extent = extent / const(float(bins))
        inside = (step.astype("float32") + const(0.5)) * bin_extent / steps.astype("float32")
        point = Build.bind(begin + place.astype("float32") * bin_extent + inside)
        there = tirx.all(point >= const(-1.0), point <= const(float(size)))
        near = tirx.min(tirx.max(point, const(0.0)), const(float(size - 1)))
        low = tirx.max(tirx.min(near.astype("int32"), integer(size - 1)), integer(0))
        low = Build.bind(low)
        share = Build.bind(near - low.astype("float32"))
        weights = (
            Build.bind(tirx.Select(there, weight, const(0.0)))
            for weight in (const(1.0) - share, share)
        )
        return _Near(low, Build.bind(tirx.min(low + 1, integer(size - 1))), *weights)

    def _add(self, image: Any, number: Expr, vertical: _Near, level: _Near, sums: Any) -> None:
        """sums += a point of all channels."""
        corners = [
            (y, x, Build.bind(y_weight * x_weight))
            for y, y_weight in zip(vertical[:2], vertical[2:], strict=True)
            for x, x_weight in zip(level[:2], level[2:], strict=True)
        ]

        def add(place: Expr) -> None:
            total = sums[place]
            for y, x, weight in corners:
                total = total + image[number, y, x, place] * alike(place, weight)
            Build.buffer_store(sums, total, [place])

        by_vectors(self.channels, self.lanes, add)

    def _zero(self, place: Expr) -> Expr:
        return alike(place, const(0.0))
