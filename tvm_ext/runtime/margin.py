"""`Output`: what a kernel under test writes, between margins that it must leave alone.

    margin | output | margin

What lies beside a tensor is another tensor: a kernel that writes there is right by itself, and
makes others wrong, or ends the process later.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvm_ext.measure.inputs import numpy_dtype
from tvm_ext.runtime.machine import shared, to_arrays
from tvm_ext.runtime.weights import ALIGNED

MARGIN_BYTES = 1 << 14
"""Whole tiles of registers."""
_FILL = 0x5A


@dataclass(frozen=True)
class Output:
    """An output buffer whose every element is NaN, or for other types an unlikely value."""

    tensor: Any
    """What the kernel is given. Of types that numpy does not hand over it lies elsewhere, without
    margins."""
    _room: np.ndarray
    _begin: int
    _end: int

    @staticmethod
    def of(shape: tuple[int, ...], dtype: str) -> Output:
        """One for elements of a numpy type."""
        kind = numpy_dtype(dtype)
        size_bytes = prod(shape) * kind.itemsize
        room = np.full(size_bytes + 2 * MARGIN_BYTES + ALIGNED, _FILL, "uint8")
        begin = MARGIN_BYTES + -(room.ctypes.data + MARGIN_BYTES) % ALIGNED
        array = room[begin : begin + size_bytes].view(kind).reshape(shape)
        array[...] = _unlikely(array.dtype)
        return Output(shared(array), room, begin, begin + size_bytes)

    def numpy(self) -> np.ndarray:
        """A copy of what stands in it."""
        return to_arrays(self.tensor)[0]

    def overrun(self) -> str:
        """What is wrong with the margins; an empty text if nothing is."""
        before = np.flatnonzero(self._room[: self._begin] != _FILL)
        behind = np.flatnonzero(self._room[self._end :] != _FILL)
        if before.size:
            return f"writes up to {self._begin - int(before[0])} bytes before its output"
        return f"writes up to {int(behind[-1]) + 1} bytes behind its output" if behind.size else ""


def _unlikely(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).max - 1
    return False if dtype.kind == "b" else np.nan
