"""For which numbers of open extents a model is compiled: cuts, windows and sums of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, value

from tvm_ext.bounds import Bounds
from tvm_ext.errors import ShapeError
from tvm_ext.flow import lower

END = 1 << 40
Shapes = dict[str, tuple[Any, ...]]


def found(model: onnx.ModelProto, shapes: Shapes) -> Bounds:
    return lower(model, "cpu", shapes, None).bounds


def cut(begin: int, end: int, *more: onnx.NodeProto, of: str = "x") -> onnx.ModelProto:
    node = helper.make_node("Slice", [of, "begin", "end", "axis"], ["part"])
    last = helper.make_node("Relu", ["part"], ["y"])
    constants = {"begin": np.array([begin]), "end": np.array([end]), "axis": np.array([0])}
    inputs = [value("x", "n", 4), *([value("z", "p", 4)] if more else [])]
    return make_model([*more, node, last], inputs, ["y"], constants)


@pytest.mark.parametrize(
    ("begin", "end", "fewest", "most"),
    [
        (0, 3, {"n": 3}, {}),
        (-3, END, {"n": 3}, {}),
        (0, 100, {"n": 100}, {}),
        (0, 512, {}, {"n": 512}),
        (0, 2000, {}, {"n": 2000}),
        (0, -1, {"n": 2}, {}),
        (0, END, {}, {}),
    ],
)
def test_cuts(begin: int, end: int, fewest: dict[str, int], most: dict[str, int]) -> None:
    assert found(cut(begin, end), {"x": ("n", 4)}) == Bounds(fewest, most)


def test_what_several_extents_decide_together() -> None:
    """The last 32 rows of two parts: as many of both as leave them in any case."""
    both = helper.make_node("Concat", ["x", "z"], ["rows"], axis=0)
    model = cut(-32, END, both, of="rows")
    fewest, most = found(model, {"x": ("n", 4), "z": ("p", 4)})
    assert 32 <= sum(fewest.values()) <= 48
    assert most == {}
    cut_off = found(cut(0, 600, both, of="rows"), {"x": ("n", 4), "z": ("p", 4)})
    assert all(500 < number < 600 for number in cut_off.most.values()) or cut_off.fewest


def test_a_window_ends_where_it_was_not_seen() -> None:
    """Exporters fold which words see each other, and with it how far back they look."""
    length = 1024
    nodes = [
        helper.make_node("Shape", ["s"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"], axis=0),
        helper.make_node("Range", ["zero", "n", "one"], ["j"]),
        helper.make_node("Unsqueeze", ["j", "last"], ["i"]),
        helper.make_node("Sub", ["i", "j"], ["apart"]),
        helper.make_node("Less", ["apart", "window"], ["near"]),
        helper.make_node("Where", ["near", "s", "never"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "zero": np.array(0),
        "one": np.array(1),
        "last": np.array([1]),
        "window": np.array(length),
        "never": np.array(-1e9, np.float32),
    }
    model = make_model(nodes, [value("s", "n", "n")], ["y"], constants)
    assert found(model, {"s": ("n", "n")}) == Bounds({}, {"n": length})


def test_which_extent_is_larger_does_not_decide() -> None:
    """The first n of k rows are other rows where n is more than k."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"], axis=0),
        helper.make_node("Slice", ["z", "zero", "n", "zero"], ["part"]),
        helper.make_node("Relu", ["part"], ["y"]),
    ]
    inputs = [value("x", "n", 4), value("z", "p", 4)]
    model = make_model(nodes, inputs, ["y"], {"zero": np.array([0])})
    with pytest.raises(ShapeError, match="cannot be left open"):
        found(model, {"x": ("n", 4), "z": ("p", 4)})


@pytest.mark.parametrize("width", [33, 41, 48, 64, 77, 94, 96, 100, 112, 128])
def test_known_widths_are_not_taken_for_extents(width: int) -> None:
    """Whatever stands for what is open, some rows of the model are nearly as long."""
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    model = make_model([node], [value("x", "b", "n", width)], ["y"], {})
    lowered = lower(model, "cpu", {"x": ("b", "n", width)}, None)
    assert lowered.bounds == Bounds({}, {})
    assert [task.kind for task in lowered.tasks.values()] == ["softmax"]
