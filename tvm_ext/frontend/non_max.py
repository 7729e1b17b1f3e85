"""`NonMaxSuppression` as Relax has it, with how many rows are found as a result of its own.

    NonMaxSuppression(boxes, scores, most, overlap, least)
        →
    rows, n = all_class_non_max_suppression(...); rows[:classes * most], n

TVM's importer gives the result the shape of all rows that there might be, and drops `n`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from tvm_ext.tvm_api import constant, constant_array, relax, static_extents

MANY = 2**31 - 1
"""Boxes, more of which no class can have."""


def kept_boxes(builder: Any, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Image, class and box of those kept, int64 [as many as can be, 3], and how many are, int64 []
    (ONNX, operators, NonMaxSuppression-11).

    Raises ValueError: thresholds that are no constants, or boxes whose number is not known.
    """
    boxes, scores, *rest = inputs
    shape = static_extents(scores.ty)
    if static_extents(boxes.ty) is None or shape is None:
        raise ValueError("boxes whose number is not known when it is compiled")
    most, overlap, least = (*map(_limit, rest), None, None, None)[:3]
    if not most or most < 0:  # of which none is above the least score
        most, least = 1, inf
    limits = (
        constant(np.asarray(min(most, attrs.get("first", most), MANY), np.int64)),
        constant(np.asarray(overlap or 0.0, np.float32)),
        constant(np.asarray(-inf if least is None else least, np.float32)),
    )
    if attrs.get("center_point_box", 0):
        boxes = builder.normalize(_corners(builder, boxes))
    found = builder.emit(
        relax.op.vision.all_class_non_max_suppression(boxes, scores, *limits, output_format="onnx")
    )
    rows, count = (builder.emit(relax.TupleGetItem(found, place)) for place in (0, 1))
    images, classes, length = shape
    ends = [images * classes * min(most, length), 3]
    rows = builder.normalize(relax.op.strided_slice(rows, [0, 1], [0, 0], ends))
    return rows, builder.normalize(relax.op.reshape(count, ()))


def _limit(given: Any) -> Any:
    """The number that a limit is; None for one that is left out."""
    array = None if given is None else constant_array(given)
    if given is not None and array is None:
        raise ValueError("a limit that is no constant")
    return None if array is None else array.reshape(-1)[0].item()


def _corners(builder: Any, boxes: Any) -> Any:
    """Boxes given by their middle and their extents."""
    x, y, width, height = (
        builder.emit(relax.op.strided_slice(boxes, [2], [place], [place + 1])) for place in range(4)
    )
    half = relax.const(0.5, boxes.ty.dtype)
    half_width, half_height = (builder.emit(each * half) for each in (width, height))
    corners = [y - half_height, x - half_width, y + half_height, x + half_width]
    return relax.op.concat([builder.emit(each) for each in corners], axis=2)
