"""Means of squares over windows: which pools they are made of, and what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from byte_modules import module, operators, run

from tvm_ext.graph.pool_squares import PoolSquares
from tvm_ext.tvm_api import constant, relax

op = relax.op
SHAPE = (2, 5, 7, 11)
"""Images, rows, columns, channels."""
Body = Callable[..., Any]


def squared(emit: Any, x: Any) -> Any:
    return emit(op.multiply(x, x))


def over_channels(emit: Any, x: Any, around: int = 2, **options: Any) -> Any:
    """As channels-last conversion leaves the normalisation over neighbouring channels."""
    given = {"count_include_pad": True, "padding": (around, 0, 0, around, 0, 0)} | options
    deep = emit(op.reshape(squared(emit, x), (2, 5, 7, 1, 11)))
    return op.nn.avg_pool3d(deep, (5, 1, 1), layout="NHWCD", **given)


def cut_short(emit: Any, x: Any) -> Any:
    return over_channels(emit, x, 1, strides=(3, 1, 1), ceil_mode=True)


def over_pixels(emit: Any, x: Any, **options: Any) -> Any:
    return op.nn.avg_pool2d(squared(emit, x), (3, 2), layout="NHWC", **options)


def strided(emit: Any, x: Any) -> Any:
    return over_pixels(emit, x, strides=(2, 3))


def uncounted(emit: Any, x: Any) -> Any:
    return over_pixels(emit, x, padding=(1, 0, 1, 0), count_include_pad=False)


def dilated(emit: Any, x: Any) -> Any:
    return over_pixels(emit, x, dilation=(2, 1))


def of_two(emit: Any, x: Any) -> Any:
    other = constant(np.full(SHAPE, 2, np.float32))
    return op.nn.avg_pool2d(emit(op.multiply(x, other)), (3, 2), layout="NHWC")


def plain(emit: Any, x: Any) -> Any:
    return op.nn.avg_pool2d(x, (3, 2), layout="NHWC")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (over_channels, ["reshape", "mean_squares"]),
        (over_pixels, ["mean_squares"]),
        (strided, ["mean_squares"]),
        (cut_short, ["multiply", "reshape", "nn.avg_pool3d"]),
        (uncounted, ["multiply", "nn.avg_pool2d"]),
        (dilated, ["multiply", "nn.avg_pool2d"]),
        (of_two, ["multiply", "nn.avg_pool2d"]),
        (plain, ["nn.avg_pool2d"]),
    ],
)
def test_squares_are_part_of_their_sum(body: Body, expected: list[str]) -> None:
    mod = module(body, SHAPE)
    rewritten = PoolSquares()(mod)
    assert operators(rewritten) == expected
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(run(rewritten, x), run(mod, x), rtol=3e-6)
