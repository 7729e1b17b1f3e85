"""Max pools along one axis after another: which, in what order, and that results are the same."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from byte_modules import module, operators, run

from tvm_ext.costs import predicted_us
from tvm_ext.graph.pool_axes import PoolAxes, Window, in_turn
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tir.stages import read_program
from tvm_ext.tvm_api import IRModule, PrimFunc, relax

op = relax.op
POOL = "nn.max_pool2d"


def elements(func: PrimFunc) -> float:
    """A price: the elements that a function looks at."""
    return sum(stage.steps * prod(stage.shape) for stage in read_program(func).stages)


def pooled(shape: tuple[int, ...], size: Any, layout: str, dtype: str, **given: Any) -> IRModule:
    pool = op.nn.max_pool2d if len(shape) == 4 else op.nn.max_pool3d
    return module(lambda _, x: pool(x, size, layout=layout, **given), shape, dtype)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, dict[str, Any]]] = {
    "planes": ((2, 3, 17, 19), (5, 5), "NCHW", {"padding": (2, 2, 2, 2)}),
    "channels last": ((1, 20, 23, 5), (13, 9), "NHWC", {"padding": (6, 4, 6, 4)}),
    "no two pads alike": ((1, 11, 13, 3), (5, 4), "NHWC", {"padding": (1, 3, 2, 0)}),
    "strides": ((1, 3, 23, 29), (7, 7), "NCHW", {"strides": (2, 1), "padding": (3, 0, 3, 0)}),
    "cut short": ((1, 3, 22, 29), (7, 6), "NCHW", {"strides": (1, 3), "ceil_mode": True}),
    "far apart": ((1, 3, 23, 29), (5, 7), "NCHW", {"dilation": (2, 3)}),
    "volumes": ((1, 2, 9, 11, 13), (3, 5, 4), "NCDHW", {"padding": (1, 2, 0, 1, 2, 3)}),
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", CASES)
def test_the_largest_of_the_largest_is_the_same(name: str, dtype: str) -> None:
    shape, size, layout, given = CASES[name]
    mod = pooled(shape, size, layout, dtype, **given)
    turned = PoolAxes(elements)(mod)
    assert operators(turned) == operators(mod) * len(size)
    assert turned["main"].ret_ty == mod["main"].ret_ty
    x = (np.random.default_rng(0).standard_normal(shape) * 50).astype(dtype)
    np.testing.assert_array_equal(run(turned, x), run(mod, x))


@pytest.mark.parametrize(("size", "count"), [((13, 13), 2), ((2, 2), 1), ((13, 1), 1)])
def test_what_takes_less_time_is_turned(
    size: tuple[int, int], count: int, hardware: HardwareModel
) -> None:
    mod = pooled((1, 256, 40, 40), size, "NCHW", "float32")
    predict_us = partial(predicted_us, hardware=hardware)
    assert operators(PoolAxes(predict_us)(mod)) == [POOL] * count


def test_a_pool_is_compared_as_it_would_run() -> None:
    """With its own pads, of which the last row and column are read by no window."""
    asked: list[PrimFunc] = []
    mod = pooled((1, 3, 8, 8), (3, 3), "NCHW", "float32", strides=(2, 2), padding=(1, 1, 1, 1))
    PoolAxes(lambda func: asked.append(func) or 1.0)(mod)
    assert [read_program(func).stages[0].shape[2:] for func in asked] == [(9, 8), (4, 9), (10, 10)]


def test_axes_that_strides_shorten_are_first() -> None:
    windows = (Window(5), Window(5, stride=2))
    first, last = in_turn((1, 3, 20, 20), windows, [2, 3])
    assert (first, last) == ((Window(), windows[1]), (windows[0], Window()))
