"""Register tiles for a matrix unit: loops over the points of a matrix stay loops, which lowering
makes an instruction (`tvm_amx`). Until they are written they are unrolled, or vectors, as those of
other register tiles are.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_amx import mark_amx
from tvm_ext.tvm_api import PrimFunc, structural_map, tirx

MATRIX = "tvm_ext.matrix"
"""Annotation of loops over the points of a matrix."""


def with_matrices(func: PrimFunc) -> PrimFunc:
    """The scheduled function with such loops in its marked places."""
    return mark_amx(func.with_body(structural_map(func.body, [(tirx.For, _plain)], order="post")))


def _plain(loop: Any) -> Any:
    if MATRIX not in loop.annotations:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
