"""Gathers and scatters: what lies outside a tensor is neither read nor written, whatever indices
say. A gather reads the nearest element then, a scatter leaves the update out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, value
from scatters import COMBINE

import tvm_ext

ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)
RANDOM = np.random.default_rng(5)
FAR = (5, -6, 6, 2**31 - 1, -(2**31), 10**9, -(10**9))
FARTHEST = (2**63 - 1, -(2**63))
"""Indices of five that are out of range."""


def gather(axis: int) -> onnx.ModelProto:
    node = helper.make_node("Gather", ["w", "i"], ["y"], axis=axis)
    inputs = [value("i", 3, dtype=onnx.TensorProto.INT64)]
    return make_model([node], inputs, ["y"], {"w": ROWS})


def run(op: str, given: dict[str, np.ndarray], opset: int = 18, **attributes: Any) -> np.ndarray:
    inputs = [
        value(name, *array.shape, dtype=helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in given.items()
    ]
    node = helper.make_node(op, [*given], ["y"], **attributes)
    (y,) = tvm_ext.compile(make_model([node], inputs, ["y"], {}, opset))(**given)
    return y


def indices(shape: tuple[int, ...], dtype: str, far: bool) -> np.ndarray:
    """Of five elements, from both ends, and if `far` some out of range."""
    found = RANDOM.integers(-5, 5, shape)
    if far:
        outside = FAR + (FARTHEST if dtype == "int64" else ())
        found = np.where(RANDOM.random(shape) < 0.5, found, RANDOM.choice(outside, shape))
    return found.astype(dtype)


def nearest(places: np.ndarray, extent: int = 5) -> np.ndarray:
    """Indices as they are read, from the front."""
    wide = places.astype(object)
    return np.clip(np.where(wide < 0, wide + extent, wide), 0, extent - 1).astype(np.int64)


@pytest.mark.parametrize("axis", [0, 1])
def test_indices_from_both_ends(axis: int) -> None:
    (y,) = tvm_ext.compile(gather(axis))({"i": np.array([0, 3, -1])})
    np.testing.assert_array_equal(y, ROWS.take([0, 3, -1], axis))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 40), 0), ((3, 5), 1), ((2, 5, 3), -2)])
def test_rows_by_indices_out_of_range(
    shape: tuple[int, ...], axis: int, dtype: str, far: bool
) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    places = indices((2, 9), dtype, far)
    y = run("Gather", {"x": x, "i": places}, axis=axis)
    np.testing.assert_array_equal(y, x.take(nearest(places), axis))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("shape", "part", "axis"),
    [((5, 7), (9, 7), 0), ((5,), (30,), 0), ((2, 3, 5), (2, 2, 8), -1), ((3, 5, 4), (2, 3, 4), 1)],
)
def test_elements_by_indices_out_of_range(
    shape: tuple[int, ...], part: tuple[int, ...], axis: int, dtype: str, far: bool
) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    places = indices(part, dtype, far)
    y = run("GatherElements", {"x": x, "i": places}, axis=axis)
    inside = [slice(extent) for extent in part]
    inside[axis] = slice(None)
    np.testing.assert_array_equal(y, np.take_along_axis(x[tuple(inside)], nearest(places), axis))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(
    ("shape", "part", "batch"),
    [
        ((5, 5, 3), (4, 2), 0),
        ((5, 5), (2, 6, 2), 0),
        ((2, 5, 4), (2, 3, 1), 1),
        ((5, 2), (7, 1), 0),
    ],
)
def test_coordinates_out_of_range(
    shape: tuple[int, ...], part: tuple[int, ...], batch: int, far: bool
) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    places = indices(part, "int64", far)
    y = run("GatherND", {"x": x, "i": places}, batch_dims=batch)
    read = np.moveaxis(nearest(places), -1, 0)
    before = [np.arange(2).reshape(-1, 1)] if batch else []
    np.testing.assert_array_equal(y, x[(*before, *read)])


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("how", COMBINE)
@pytest.mark.parametrize(
    ("shape", "part", "axis", "dtype"),
    [
        ((5, 7), (9, 7), 0, "int32"),
        ((2, 3, 5), (2, 2, 4), -1, "int64"),
        ((5,), (30,), 0, "int64"),
    ],
)
def test_elements_scattered_out_of_range(
    shape: tuple[int, ...], part: tuple[int, ...], axis: int, dtype: str, how: str, far: bool
) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    updates = RANDOM.standard_normal(part).astype(np.float32)
    places = indices(part, dtype, far)
    y = run("ScatterElements", {"x": x, "i": places, "u": updates}, axis=axis, reduction=how)
    wanted = x.copy()
    for at in np.ndindex(part):
        if -5 <= places[at] < 5:
            to = list(at)
            to[axis] = int(places[at])
            wanted[tuple(to)] = COMBINE[how](wanted[tuple(to)], updates[at])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("how", COMBINE)
@pytest.mark.parametrize(
    ("shape", "part"),
    [((5, 5, 33), (4, 2)), ((5, 5), (2, 6, 2)), ((5, 3, 4), (6, 1)), ((5,), (9, 1))],
)
def test_rows_scattered_out_of_range(
    shape: tuple[int, ...], part: tuple[int, ...], how: str, far: bool
) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    places = indices(part, "int64", far)
    updates = RANDOM.standard_normal((*part[:-1], *shape[part[-1] :])).astype(np.float32)
    y = run("ScatterND", {"x": x, "i": places, "u": updates}, reduction=how)
    wanted = x.copy()
    for at in np.ndindex(part[:-1]):
        to = tuple(int(one) for one in places[at])
        if all(-5 <= one < 5 for one in to):
            wanted[to] = np.vectorize(COMBINE[how])(wanted[to], updates[at])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["RoiAlign", "MaxRoiPool"])
@pytest.mark.parametrize("image", [2, -(10**9)])
def test_images_that_are_not_there(op: str, image: int) -> None:
    x = RANDOM.standard_normal((2, 3, 8, 8)).astype(np.float32)
    corners = np.array([[0, 0, 4, 4]], np.float32)

    def pooled(number: int) -> np.ndarray:
        if op == "RoiAlign":
            given = {"x": x, "r": corners, "b": np.array([number])}
            return run(op, given, output_height=2, output_width=2)
        regions = np.concatenate([np.array([[number]], np.float32), corners], 1)
        return run(op, {"x": x, "r": regions}, pooled_shape=[2, 2])

    np.testing.assert_array_equal(pooled(image), pooled(min(max(image, 0), 1)))


@pytest.mark.parametrize("fixed", ["begin", "stride", "length"])
def test_slices_between_places_that_data_say(fixed: str) -> None:
    """Beyond either end, and of no elements."""
    nodes = [helper.make_node("Slice", ["w", "b", "e", "axes", "s"], ["y"])]
    constants = {"w": ROWS, "axes": np.array([0])}
    inputs = {"b": np.array([0]), "e": np.array([0]), "s": np.array([1])}
    if fixed == "length":
        nodes.insert(0, helper.make_node("Add", ["b", "two"], ["e"]))
        constants["two"] = np.array([2])
        del inputs["e"]
    if fixed != "stride":
        constants["s"] = inputs.pop("s")
    if fixed == "begin":
        constants["b"] = inputs.pop("b")
    typed = [value(name, 1, dtype=onnx.TensorProto.INT64) for name in inputs]
    compiled = tvm_ext.compile(make_model(nodes, typed, ["y"], constants))
    for begin, end, stride in [(0, 3, 1), (1, 99, 2), (-9, -1, 1), (99, -99, -2), (3, 1, 1)]:
        chosen = {"b": np.array([begin]), "e": np.array([end]), "s": np.array([stride])}
        if fixed != "stride":
            chosen["s"] = constants["s"]
        if fixed == "begin":
            chosen["b"] = constants["b"]
        if fixed == "length":
            chosen["e"] = chosen["b"] + 2
        (y,) = compiled({name: chosen[name] for name in inputs})
        cut = slice(int(chosen["b"][0]), int(chosen["e"][0]), int(chosen["s"][0]))
        np.testing.assert_array_equal(y, ROWS[cut])


def test_no_row_to_read() -> None:
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    inputs = [value("i", 2, dtype=onnx.TensorProto.INT64)]
    model = make_model([node], inputs, ["y"], {"w": np.zeros((0, 3), np.float32)})
    (y,) = tvm_ext.compile(model)({"i": np.array([0, -1])})
    np.testing.assert_array_equal(y, np.zeros((2, 3)))
