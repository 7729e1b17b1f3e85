"""What stands for an extent that is left open while a model is read."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.ops import op_expand
from onnx_models import make_model, value

from tvm_ext.errors import ShapeError
from tvm_ext.frontend.simplify import LARGEST_CONSTANT
from tvm_ext.graph.unify import EXTENTS, SEVERAL
from tvm_ext.source import left_open, open_extents, read_open, read_source, tables


def with_mask(size: int, repeated: bool) -> onnx.ModelProto:
    """x[n, size, size] and a mask, which an exporter made for each of the n, or for all of them."""
    shape = np.array([0, size, size], np.int64)
    rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", size, size])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Expand", ["mask", "shape"], ["masks"]),
        helper.make_node("Add", ["x", "masks" if repeated else "mask"], ["sum"]),
        helper.make_node("Reshape", ["sum", "extents"], ["y"]),
    ]
    mask = np.random.default_rng(0).standard_normal((1, size, size)).astype("float32")
    return make_model(nodes, [rows], ["y"], {"mask": mask, "extents": shape})


@pytest.mark.parametrize(
    ("size", "repeated", "expected"),
    [(640, True, EXTENTS[-1]), (640, False, EXTENTS[0]), (64, True, EXTENTS[0])],
)
def test_masks_of_a_thousand_images_are_not_made(
    size: int, repeated: bool, expected: tuple[int, int]
) -> None:
    """A small Swin transformer took 11 GB to read for 982 images."""
    sources = next(read_open(with_mask(size, repeated), {"x": ("n", size, size)}, ("n",)))
    assert tuple(sources) == tuple((extent,) for extent in expected)


@pytest.mark.parametrize("repeated", [True, False])
def test_what_would_be_dropped_is_not_made(repeated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither masks that are too large to keep nor those that nobody reads: gigabytes, for each of
    the numbers that a model is read with."""
    made: list[Any] = []
    monkeypatch.setattr(op_expand.Expand, "_run", lambda *given: made.append(given))
    rows = 2 * LARGEST_CONSTANT // 640**2 if repeated else 16
    source = read_source(with_mask(640, repeated), {"x": (rows, 640, 640)})
    assert source.inputs[0].shape == (rows, 640, 640)
    assert not made


def test_every_choice_of_numbers_is_read() -> None:
    model = with_mask(64, False)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[1].dim_param, dims[2].dim_param = "m", ""
    for tensor in model.graph.initializer:
        if tensor.name == "extents":
            tensor.CopyFrom(numpy_helper.from_array(np.array([0, -1, 64], np.int64), "extents"))
    del model.graph.node[:2]
    del model.graph.node[0].input[:]
    model.graph.node[0].input.extend(["x", "row"])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(64, np.float32), "row"))
    shapes = {"x": ("n", "m", 64)}
    assert open_extents(model, shapes) == ("n", "m")
    sources = next(read_open(model, shapes, ("n", "m")))
    assert list(sources) == list(product(SEVERAL[0][1], SEVERAL[0][0]))
    assert [source.inputs[0].shape for source in sources.values()] == [
        (*point, 64) for point in sources
    ]
    whole = left_open(sources, ("n", "m"))
    assert whole.inputs[0].shape == whole.outputs[0].shape == ("n", "m", 64)


def test_names_in_order() -> None:
    shapes = {"ids": ("batch", "new"), "mask": ("batch", "past+new"), "kept": ("batch", 4, "past")}
    assert open_extents(None, shapes) == ("batch", "new", "past")
    with pytest.raises(ShapeError, match="a, b, c, d are left open, 3 can be; give numbers"):
        open_extents(None, {"x": ("a", "b", "c", "d")})


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            {"x": ("n+1", 4), "z": (1, 4)},
            r"n is nowhere an extent by itself, only in n\+1 of input",
        ),
        ({"x": ("2*n", 4), "z": (1, 4)}, "n is nowhere an extent by itself, only in 2.n of input"),
        ({"x": ("p", 4), "z": ("p+n", 4)}, r"n is nowhere an .*, only in p\+n of input 'z'; give"),
        ({"x": ("0*n+4", 4), "z": (1, 4)}, "n is nowhere an extent by itself; give"),
    ],
)
def test_a_run_has_to_be_told_each_extent(shapes: Any, words: str) -> None:
    """TVM reads them from the shapes of inputs, and solves no equations."""
    node = helper.make_node("Concat", ["x", "z"], ["y"], axis=0)
    model = make_model([node], [value("x", "a", 4), value("z", "b", 4)], ["y"])
    opened = open_extents(model, shapes)
    with pytest.raises(ShapeError, match=words):
        left_open(next(read_open(model, shapes, opened)), opened)


def test_weights_are_arrays_not_types() -> None:
    """A view's element type is a constant of a function as well."""
    node = helper.make_node("NonZero", ["x"], ["y"])
    model = make_model([node], [value("x", 5)], ["y"])
    mod = read_source(model, None).mod
    assert all(isinstance(array, np.ndarray) for array in tables(mod))
