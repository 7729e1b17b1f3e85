"""Operators that TVM's importer takes for something else compute what ONNX means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import make_model, value
from scatters import COMBINE

import tvm_ext

RANDOM = np.random.default_rng(11)


def run(
    op: str,
    given: dict[str, np.ndarray],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    **attributes: Any,
) -> np.ndarray:
    """The result of one node of some inputs and constants, in this order."""
    constants = constants or {}
    inputs = [
        value(name, *array.shape, dtype=helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in given.items()
    ]
    node = helper.make_node(op, [*given, *constants], ["y"], **attributes)
    model = make_model([node], inputs, ["y"], constants, opset)
    (y,) = tvm_ext.compile(model)(**given)
    return y


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    ("extents", "kernel", "strides"),
    [
        ((7, 9), (3, 4), (3, 2)),
        ((7,), (1,), (2,)),
        ((8, 5), (3, 3), (2, 2)),
        ((5, 6), (2, 2), (1, 3)),
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_that_pad_themselves(
    op: str,
    extents: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    lower: bool,
) -> None:
    x = RANDOM.standard_normal((2, 3, *extents)).astype(np.float32)
    y = run(
        op,
        {"x": x},
        kernel_shape=kernel,
        strides=strides,
        auto_pad="SAME_LOWER" if lower else "SAME_UPPER",
    )
    outputs = tuple(-(-extent // stride) for extent, stride in zip(extents, strides, strict=True))
    wanted = np.zeros((2, 3, *outputs))
    for place in np.ndindex(outputs):
        window: list[Any] = [slice(None), slice(None)]
        for axis, at in enumerate(place):
            missing = (outputs[axis] - 1) * strides[axis] + kernel[axis] - extents[axis]
            before = -(-max(0, missing) // 2) if lower else max(0, missing) // 2
            first = at * strides[axis] - before
            window.append(slice(max(0, first), first + kernel[axis]))
        part = x[tuple(window)].reshape(2, 3, -1)
        wanted[(..., *place)] = part.max(-1) if op == "MaxPool" else part.mean(-1)
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize(
    ("op", "alone"),
    [
        ("ReduceSumSquare", np.square),
        ("ReduceL1", np.abs),
        ("ReduceL2", np.abs),
        ("ReduceLogSum", np.log),
        ("ReduceLogSumExp", lambda x: x),
        ("ReduceSum", lambda x: x),
        ("ReduceMax", lambda x: x),
    ],
)
def test_reductions_over_no_axes(op: str, alone: Any, stated: bool) -> None:
    x = RANDOM.uniform(0.5, 2.0, (3, 4)).astype(np.float32)
    axes = {"axes": np.zeros(0, np.int64)} if stated else {}
    np.testing.assert_allclose(run(op, {"x": x}, axes, noop_with_empty_axes=1), alone(x), rtol=1e-5)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("axes", [(0,), (0, 2, 3), (2, 3)])
def test_elements_that_are_all_alike_are_normalised_to_zero(
    axes: tuple[int, ...], opset: int
) -> None:
    x = RANDOM.standard_normal((1, 3, 4, 5)).astype(np.float32)
    x[:, 1] = 0.1
    y = run("MeanVarianceNormalization", {"x": x}, opset=opset, axes=axes)
    away = x - x.astype(np.float64).mean(axes, keepdims=True)
    alike = away / (np.sqrt((away**2).mean(axes, keepdims=True)) + 1e-9)
    if axes == (0,):
        assert not y.any()
    else:
        np.testing.assert_allclose(y[:, [0, 2]], alike[:, [0, 2]], rtol=1e-5, atol=1e-5)
        assert np.isfinite(y).all()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("how", COMBINE)
@pytest.mark.parametrize(
    ("whole", "part", "axis"),
    [
        ((3, 2, 5), (1, 2, 3), 0),
        ((4, 3), (2, 2), -1),
        ((4, 3), (4, 2), 1),
        ((2, 3, 4), (2, 2, 4), 2),
    ],
)
def test_elements_scattered_over_a_part(
    whole: tuple[int, ...], part: tuple[int, ...], axis: int, how: str, known: bool
) -> None:
    x = RANDOM.standard_normal(whole).astype(np.float32)
    updates = RANDOM.standard_normal(part).astype(np.float32)
    extent = whole[axis]
    order = np.argsort(RANDOM.random((*part, extent)), axis=-1)
    # no place twice, which only what combines may have; some counted from the end
    counts = np.arange(part[axis]).reshape(
        [-1 if n == axis % len(part) else 1 for n in range(len(part))]
    )
    along = np.broadcast_to(counts, part) % extent if how == "none" else order[..., 0]
    indices = np.where(RANDOM.random(part) < 0.5, along, along - extent).astype(np.int64)
    wanted = x.copy()
    for place in np.ndindex(part):
        at = list(place)
        at[axis] = indices[place]
        wanted[tuple(at)] = COMBINE[how](wanted[tuple(at)], updates[place])
    given = {"x": x} if known else {"x": x, "i": indices, "u": updates}
    constants = {"i": indices, "u": updates} if known else {}
    y = run("ScatterElements", given, constants, axis=axis, reduction=how)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", COMBINE)
def test_all_rows_that_are_combined_are_not_replaced(how: str) -> None:
    x, updates = RANDOM.standard_normal((2, 3, 6)).astype(np.float32)
    y = run("ScatterND", {"x": x}, {"i": np.arange(3)[:, np.newaxis], "u": updates}, reduction=how)
    wanted = np.vectorize(COMBINE[how])(x, updates)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_infinities_below_a_threshold_are_zero(kind: Any) -> None:
    x = np.array([-np.inf, -1, 0.5, 0.75, np.inf], kind)
    y = run("ThresholdedRelu", {"x": x}, alpha=0.5)
    np.testing.assert_array_equal(y, np.array([0, 0, 0, 0.75, np.inf], kind))
