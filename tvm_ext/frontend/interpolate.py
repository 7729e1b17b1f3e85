"""How much each element of an axis has in each element between: linear and cubic interpolation.

Both are one function of distance: straight to 0 one element away, or cubic to 0 two away. Against
aliasing it is widened by as much as the axis shrinks, so that every element is counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tvm_ext.frontend.resize_axes import Along


class Filter(NamedTuple):
    """`cubic` is ONNX's `cubic_coeff_a`; None for straight lines."""

    cubic: float | None
    antialias: bool
    exclude_outside: bool

    def shares(self, along: Along, at: np.ndarray) -> np.ndarray:
        """What each element has in those at places `at` of the result, float64 [size, extent].

        Elements outside are those at the edge, or left out, and the others share their part.
        """
        narrow = min(1.0, float(along.scale)) if self.antialias else 1.0
        reach = int(np.ceil((1 if self.cubic is None else 2) / narrow))
        near = np.floor(at).astype(np.int64)[:, None] + np.arange(-reach, reach + 2)
        parts = self._at_distance(np.abs(near - at.astype(np.float64)[:, None]) * narrow)
        if self.exclude_outside:
            parts[(near < 0) | (near >= along.extent)] = 0
        total = parts.sum(axis=1, keepdims=True)
        table = np.zeros((along.size, along.extent))
        rows, columns = np.arange(along.size)[:, None], np.clip(near, 0, along.extent - 1)
        np.add.at(table, (rows, columns), parts / np.where(total == 0, 1, total))
        return table

    def _at_distance(self, away: np.ndarray) -> np.ndarray:
        if self.cubic is None:
            return np.maximum(1 - away, 0)
        a = self.cubic
        inner = ((a + 2) * away - (a + 3)) * away * away + 1
        outer = ((away - 5) * away + 8) * away * a - 4 * a
        return np.where(away <= 1, inner, np.where(away < 2, outer, 0))


def taps(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours that elements of a result are made of, int64 [taps, size], and their shares,
    as many for each as the one of most has."""
    there = table != 0
    first = there.argmax(axis=1)
    behind = np.where(there.any(axis=1), table.shape[1] - there[:, ::-1].argmax(axis=1), 0)
    count = max(1, int((behind - first).max()))
    begins = np.minimum(first, table.shape[1] - count)
    index = begins + np.arange(count)[:, None]
    return index, np.take_along_axis(table, index.T, axis=1).T
