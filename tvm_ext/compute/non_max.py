"""The best boxes of each class that do not lie on better ones: non-maximum suppression (ONNX's
`NonMaxSuppression`), by picking the best that are left (`compute/top_k.py`) until enough are kept.

    for each image and class:
        while fewer than `most` are kept and the best score left is above `least`:
            keep it, if its overlap with each one kept is no more than `overlap`

Most scores are below `least`: what is not asked for is never sorted. A box is held against a vector
of those kept at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from tvm_ext.compute.maths import const, integer
from tvm_ext.compute.top_k import TopK, extreme
from tvm_ext.compute.written import times
from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
Expr = Any


class _Corners(NamedTuple):
    """Where a box begins and ends, and its area: numbers, vectors, or the buffers they are in."""

    top: Any
    left: Any
    bottom: Any
    right: Any
    area: Any


@dataclass(frozen=True)
class NonMaxSuppression:
    """The kernel for `length` boxes of each image and the scores of each class for them.

    most      boxes of a class and image that are kept
    overlap   intersection over union, beyond which the worse of two is left out
    least     score that a box must be above
    lanes     elements in a vector
    """

    images: int
    classes: int
    length: int
    most: int
    overlap: float
    least: float
    lanes: int

    @property
    def rows(self) -> int:
        """Classes of all images, each worked on by itself."""
        return self.images * self.classes

    @property
    def kept(self) -> int:
        """Boxes of a class and image that can be kept."""
        return min(self.most, self.length)

    @property
    def cycles(self) -> float:
        """About how long it takes if all that can be are kept, at the first pick."""
        return self._order.cycles + self.rows * self.kept**2 / self.lanes * 8

    def __call__(self, boxes: Tensor, scores: Tensor, *, parallel: bool) -> Sequence[Tensor]:
        """Image, class and box of those kept, int64 [images * classes * length, 3], of which the
        first so many are written, and that number, int64 [1]; of boxes [images, length, 4], float32
        (y, x, y, x of any two opposite corners), and scores [images * classes, length], float32.
        Equal scores come in the order of their boxes."""
        shapes = [(self.rows * self.length, 3), (1,)]
        return te.extern(
            shapes,
            [boxes, scores],
            lambda given, made: self._program(*given, *made, parallel=parallel),
            dtype=["int64", "int64"],
            name="non_max",
        )

    @property
    def _order(self) -> TopK:
        return TopK(self.rows, self.length, self.kept, True, self.lanes)

    def _program(self, boxes: Any, scores: Any, rows: Any, total: Any, *, parallel: bool) -> Any:
        own = self.rows
        with IRBuilder() as builder:
            with times(1):  # a builder takes one statement
                places = Build.alloc_buffer([own * self.kept], "int32")
                counts = Build.alloc_buffer([own], "int32")
                with times(own, parallel=parallel) as row:
                    self._keep(boxes, scores, row, places, counts)
                self._gather(places, counts, rows, total)
            return builder.get()

    def _gather(self, places: Any, counts: Any, rows: Any, total: Any) -> None:
        """rows = what all classes keep, one class after another."""
        Build.buffer_store(total, tirx.const(0, "int64"), [0])
        with times(self.rows) as row:
            with times(counts[row]) as step:
                at = places[row * self.kept + step]
                found = (tirx.floordiv(row, self.classes), tirx.floormod(row, self.classes), at)
                for column, value in enumerate(found):
                    Build.buffer_store(rows, value.astype("int64"), [total[0] + step, column])
            Build.buffer_store(total, total[0] + counts[row].astype("int64"), [0])

    def _keep(self, boxes: Any, scores: Any, row: Expr, places: Any, counts: Any) -> None:
        """places = the boxes of a row that are kept, counts[row] = their number."""
        order, vectors = self._order, ceil(self.kept / self.lanes)
        keys, tops = order.start(scores, row)
        known = _Corners(
            *(Build.alloc_buffer([vectors * self.lanes], "float32") for _ in _Corners._fields)
        )
        waiting = Build.alloc_buffer([1], "int32")
        with times(vectors) as vector:  # of those not there the area is none
            Build.buffer_store(known.area, self._all(const(0.0)), [self._ramp(vector)])
        Build.buffer_store(counts, integer(0), [row])
        Build.buffer_store(waiting, integer(self.length), [0])
        with Build.While(tirx.all(waiting[0] > 0, counts[row] < self.kept)):
            at = order.pick(keys, tops)
            Build.buffer_store(waiting, waiting[0] - 1, [0])
            with Build.If(scores[row, at] > const(self.least)), Build.Then():
                box = self._corners(boxes, tirx.floordiv(row, self.classes), at)
                lies_free = self._most_beyond(box, known, counts[row]) == integer(0)
                with Build.If(lies_free), Build.Then():
                    for buffer, value in zip(known, box, strict=True):
                        Build.buffer_store(buffer, value, [counts[row]])
                    Build.buffer_store(places, at, [row * self.kept + counts[row]])
                    Build.buffer_store(counts, counts[row] + 1, [row])
            # a NaN, which comes before all others, is neither above nor below
            with Build.If(scores[row, at] <= const(self.least)), Build.Then():
                Build.buffer_store(waiting, integer(0), [0])

    def _most_beyond(self, box: _Corners, known: _Corners, count: Expr) -> Expr:
        """1 if a box overlaps one of the first `count` that are kept by too much, else 0."""
        found = Build.alloc_buffer([1], "int32")
        step = Build.alloc_buffer([1], "int32")
        Build.buffer_store(found, integer(0), [0])
        Build.buffer_store(step, integer(0), [0])
        with Build.While(tirx.all(found[0] == 0, step[0] * self.lanes < count)):
            beyond = self._beyond(box, known, step[0])
            Build.buffer_store(found, extreme([beyond]), [0])
            Build.buffer_store(step, step[0] + 1, [0])
        return found[0]

    def _corners(self, boxes: Any, image: Expr, at: Expr) -> _Corners:
        y, x, other_y, other_x = (Build.bind(boxes[image, at, place]) for place in range(4))
        top, bottom = Build.bind(tirx.min(y, other_y)), Build.bind(tirx.max(y, other_y))
        left, right = Build.bind(tirx.min(x, other_x)), Build.bind(tirx.max(x, other_x))
        return _Corners(top, left, bottom, right, Build.bind((bottom - top) * (right - left)))

    def _beyond(self, box: _Corners, known: _Corners, vector: Expr) -> Expr:
        """1 for those of a vector of boxes kept that a box overlaps by too much, else 0."""
        one = _Corners(*map(self._all, box))
        other = _Corners(*(buffer[self._ramp(vector)] for buffer in known))
        height = tirx.min(one.bottom, other.bottom) - tirx.max(one.top, other.top)
        width = tirx.min(one.right, other.right) - tirx.max(one.left, other.left)
        common = Build.bind(
            tirx.max(height, self._all(const(0.0))) * tirx.max(width, self._all(const(0.0)))
        )
        union = Build.bind(one.area + other.area - common)
        ratio = common / tirx.Select(union > self._all(const(0.0)), union, self._all(const(1.0)))
        real = tirx.min(tirx.min(one.area, other.area), union) > self._all(const(0.0))
        no, yes = self._all(integer(0)), self._all(integer(1))
        return tirx.Select(real, tirx.Select(ratio > self._all(const(self.overlap)), yes, no), no)

    def _ramp(self, vector: Expr) -> Expr:
        return tirx.Ramp(vector * self.lanes, integer(1), self.lanes)

    def _all(self, value: Expr) -> Expr:
        return tirx.Broadcast(value, self.lanes)
