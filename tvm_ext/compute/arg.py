"""Where the largest or smallest element is, as two reductions that run in vectors.

argmax(x)  →  top = max over k of x[k]; the least k with x[k] = top
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ext.compute.norm import at_row, reduce_axes
from tvm_ext.tvm_api import te, tirx

Tensor = Any

LARGEST = 2**24
"""Elements whose positions float32 tells apart."""


def arg_extreme(x: Tensor, axis: int, how: str, keepdims: bool, lanes: int) -> Tensor:
    """Index of the first `max` or `min` along an axis, int32; [1] if no axis is left.

    Positions are float32 while they are compared, which every vector unit can do; that is exact for
    up to `LARGEST` elements. A NaN counts as an extreme, so the answer is the first NaN or extreme
    number. Where all elements are the infinity beyond which the reduction starts, it is 0.
    """
    axes = [axis]
    top = reduce_axes(x, axes, how, lanes, f"row_{how}")
    nowhere = tirx.const(float(int(x.shape[axis])), "float32")

    def place(element: Any, at: Sequence[Any]) -> Any:
        best = at_row(top, at, axes)
        short = element < best if how == "max" else element > best
        return tirx.Select(short, nowhere, at[axis].astype("float32"))

    first = reduce_axes(x, axes, "min", lanes, "row_place", place)
    shape = [
        1 if i == axis else extent for i, extent in enumerate(x.shape) if keepdims or i != axis
    ]

    def body(*at: Any) -> Any:
        found = at_row(first, at, axes) if keepdims else first[at]
        return tirx.Select(found < nowhere, found, tirx.const(0.0, "float32")).astype("int32")

    return te.compute(shape or (1,), body, name=f"arg{how}")
