"""Extents that data say: graphs of static shape that compute the same, whatever data say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.errors import ModelError

LENGTH, WIDTH = 37, 6
NONE, SOME, ALL = "none", "some", "all"
Nodes = Sequence[onnx.NodeProto]
CONSTANTS: dict[str, np.ndarray] = {
    "zero": np.float32(0),
    "half": np.float32(0.5),
    "first": np.array([0], np.int64),
    "second": np.array([1], np.int64),
    "last": np.array([-1], np.int64),
    "five": np.array([5], np.int64),
    "end": np.array([2**63 - 1], np.int64),
    "two": np.array([2], np.int64),
    "axes": np.array([0, 1], np.int64),
    "picture": np.random.default_rng(5).standard_normal((1, 3, 7, 9)).astype("float32"),
    "rows": np.array([-1, WIDTH], np.int64),
    "flat": np.array([-1], np.int64),
    "image": np.array([-1, 1, 2, 3], np.int64),
    "row": np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH),
    "square": np.random.default_rng(3).standard_normal((WIDTH, 5)).astype("float32"),
    "taps": np.random.default_rng(4).standard_normal((4, 1, 2, 2)).astype("float32"),
    "blank": np.zeros((LENGTH, WIDTH), np.float32),
    "nought": np.int64(0),
    "one": np.int64(1),
    "as_row": np.array([-1, 1], np.int64),
    "zeros": np.zeros(LENGTH, np.float32),
    "length": np.int64(LENGTH),
}


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    given = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, given, outputs.split(), **attributes)


def branch(name: str, nodes: Nodes, result: str) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, name, [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
    )


COUNT: Nodes = [node("Shape", "found", "shape"), node("Gather", "shape nought", "count")]
"""[n, WIDTH], and n."""
CASES: dict[str, tuple[Nodes, str]] = {
    "places": ([node("Identity", "places", "y")], "y"),
    "places of a table": ([node("NonZero", "table", "y")], "y"),
    "rows": ([node("Relu", "found", "y")], "y"),
    "rows of rows": (
        [
            node("Gather", "found nought", "column", axis=1),
            node("Greater", "column half", "more"),
            node("NonZero", "more", "again"),
            node("Squeeze", "again first", "which"),
            node("Gather", "found which", "y"),
        ],
        "y",
    ),
    "points": ([node("Transpose", "nz", "t"), node("GatherND", "data t", "y")], "y"),
    "two lots": (
        [
            node("Less", "x zero", "below"),
            node("NonZero", "below", "others"),
            node("Squeeze", "others first", "other"),
            node("Gather", "data other", "below_rows"),
            node("Concat", "found row below_rows found", "y", axis=0),
        ],
        "y",
    ),
    "beside each other": ([node("Concat", "found found", "y", axis=1)], "y"),
    "the first": ([node("Slice", "found first five first", "y")], "y"),
    "columns": ([node("Slice", "found second end second", "y")], "y"),
    "the best": (
        [
            *COUNT,
            node("Unsqueeze", "count first", "counts"),
            node("Concat", "five counts", "both", axis=0),
            node("ReduceMin", "both", "least", keepdims=1),
            node("Gather", "found nought", "column", axis=1),
            node("TopK", "column least", "y at"),
            node("Gather", "found at", "best"),
        ],
        "y best",
    ),
    "as many ones": (
        [*COUNT, node("ConstantOfShape", "shape", "made"), node("Add", "made found", "y")],
        "y",
    ),
    "a row for each": ([*COUNT, node("Expand", "found shape", "y")], "y"),
    "counted up": (
        [
            *COUNT,
            node("Range", "nought count one", "steps"),
            node("Cast", "steps", "y", to=TensorProto.FLOAT),
        ],
        "y",
    ),
    "in one row, and back": (
        [node("Reshape", "found flat", "y"), node("Reshape", "y rows", "z")],
        "y z",
    ),
    "columns by their number": (
        [
            *COUNT,
            node("Gather", "shape one", "width"),
            node("Unsqueeze", "width first", "widths"),
            node("Sub", "widths second", "fewer"),
            node("Slice", "found first fewer second", "y"),
        ],
        "y",
    ),
    "turned": ([node("Transpose", "found", "y", perm=[1, 0])], "y"),
    "a product": ([node("MatMul", "found square", "y")], "y"),
    "images": (
        [node("Reshape", "found image", "i"), node("Conv", "i taps", "y", pads=[1, 1, 1, 1])],
        "y",
    ),
    "softmax of rows": ([node("Softmax", "found", "y", axis=-1)], "y"),
    "softmax of columns": ([node("Softmax", "found", "y", axis=0)], "y"),
    "sums of columns": ([node("ReduceSum", "found first", "y", keepdims=0)], "y"),
    "means of columns": ([node("ReduceMean", "found", "y", axes=[0], keepdims=1)], "y"),
    "lengths of columns": ([node("ReduceL2", "found", "y", axes=[0], keepdims=0)], "y"),
    "scattered across": (
        [
            node("Unsqueeze", "places first", "one_row"),
            node("Mul", "one_row nought", "which"),
            node("Gather", "found nought", "column", axis=1),
            node("Unsqueeze", "column first", "columns"),
            node("Concat", "columns columns", "two_rows", axis=0),
            node("Neg", "columns", "negative"),
            node("ScatterElements", "two_rows which negative", "y", axis=0),
        ],
        "y",
    ),
    "the largest": ([node("ReduceMax", "found", "y", keepdims=0)], "y"),
    "the least of rows": ([node("ReduceMin", "found", "y", axes=[1], keepdims=0)], "y"),
    "which is largest": ([node("ArgMax", "found", "y", axis=0)], "y"),
    "running sums": ([node("CumSum", "found nought", "y")], "y"),
    "points of an image": (
        [
            node("Slice", "found first two second", "pairs"),
            node("Unsqueeze", "pairs axes", "grid"),
            node("GridSample", "picture grid", "y", align_corners=0),
        ],
        "y",
    ),
    "rows put back": (
        [
            node("Shape", "found", "shape"),
            node("Reshape", "places as_row", "of_rows"),
            node("Expand", "of_rows shape", "each"),
            node("ScatterElements", "blank each found", "y", axis=0),
        ],
        "y",
    ),
    "rows put back by points": (
        [node("Reshape", "places as_row", "t"), node("ScatterND", "blank t found", "y")],
        "y",
    ),
    "elements put back": (
        [
            node("Gather", "found nought", "column", axis=1),
            node("ScatterElements", "zeros places column", "y", axis=0),
        ],
        "y",
    ),
    "rows put back from the end": (
        [
            node("Sub", "places length", "behind"),
            node("Reshape", "behind as_row", "t"),
            node("ScatterND", "blank t found", "y"),
        ],
        "y",
    ),
    "elements put back from the end": (
        [
            node("Sub", "places length", "behind"),
            node("Gather", "found nought", "column", axis=1),
            node("ScatterElements", "zeros behind column", "y", axis=0),
        ],
        "y",
    ),
    "points added from the end": (
        [
            node("Sub", "places length", "behind"),
            node("Reshape", "behind as_row", "t"),
            node("ScatterND", "blank t found", "y", reduction="add"),
        ],
        "y",
    ),
    "the last one": ([node("Gather", "found last", "y")], "y"),
    "how many": (COUNT, "count"),
    "if there are any": (
        [
            *COUNT,
            node("Equal", "count nought", "empty"),
            node(
                "If",
                "empty",
                "y",
                then_branch=branch("then", [node("Identity", "row", "a")], "a"),
                else_branch=branch("else", [node("Neg", "found", "b")], "b"),
            ),
        ],
        "y",
    ),
}
NOT_OF_NONE = {
    "points of an image",
    "the largest",
    "which is largest",
    "means of columns",
    "the last one",
    "images",
}
"""Cases that mean nothing where nothing is found, or that the reference cannot do then."""


def model_of(case: str) -> onnx.ModelProto:
    nodes, outputs = CASES[case]
    before = [
        node("Greater", "x zero", "alive"),
        node("NonZero", "alive", "nz"),
        node("Squeeze", "nz first", "places"),
        node("Gather", "data places", "found"),
        node("Greater", "data half", "table"),
    ]
    inputs = [value("x", LENGTH), value("data", LENGTH, WIDTH)]
    read = {name for one in [*before, *nodes] for name in one.input} | {"row"}
    constants = {name: np.asarray(array) for name, array in CONSTANTS.items() if name in read}
    return make_model([*before, *nodes], inputs, outputs.split(), constants)


def drawn(how: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(LENGTH).astype("float32")
    x = {NONE: -np.abs(x), SOME: x, ALL: np.abs(x) + 1}[how]
    return {"x": x, "data": rng.standard_normal((LENGTH, WIDTH)).astype("float32")}


@pytest.mark.parametrize("case", CASES)
def test_counted(case: str) -> None:
    model = model_of(case)
    compiled = tvm_ext.compile(model, num_threads=2)
    assert not compiled.manifest.notes
    reference = ReferenceEvaluator(model)
    before: list[tuple[Any, Any]] = []
    for how in (SOME, ALL, NONE):
        if how == NONE and case in NOT_OF_NONE:
            continue
        data = drawn(how)
        results = compiled(data)
        for one, other in zip(results, reference.run(None, data), strict=True):
            assert one.shape == np.asarray(other).shape
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
            before.append((one, np.array(one)))
    for result, copy in before:  # nobody writes over what a run has returned
        np.testing.assert_array_equal(result, copy)


def test_what_has_no_bound() -> None:
    """A reshape that takes rows apart: the operator is named, and nothing computed wrong."""
    target = {"to": np.array([2, -1], np.int64), **{k: CONSTANTS[k] for k in ("zero", "first")}}
    nodes = [
        node("Greater", "x zero", "alive"),
        node("NonZero", "alive", "nz"),
        node("Squeeze", "nz first", "places"),
        node("Gather", "data places", "found"),
        node("Reshape", "found to", "y"),
        node("NonMaxSuppression", "boxes scores", "kept"),
    ]
    inputs = [value("x", LENGTH), value("data", LENGTH, WIDTH)]
    inputs += [value("boxes", 1, 4, 4), value("scores", 1, 1, 4)]
    with pytest.raises(ModelError, match="no bound: Reshape"):
        tvm_ext.compile(make_model(nodes, inputs, ["y", "kept"], target))


@pytest.mark.parametrize("shape", [(70_000,), (3, 41_111), (5, 2, 3)], ids=str)
def test_places_of_many(shape: tuple[int, ...]) -> None:
    """In parts, one for each core, and put together."""
    model = make_model([node("NonZero", "x", "y")], [value("x", *shape)], ["y"])
    compiled = tvm_ext.compile(model, num_threads=2)
    rng = np.random.default_rng(0)
    for often in (0.0, 0.3, 1.0):
        x = (rng.random(shape) < often).astype("float32") * -2
        np.testing.assert_array_equal(compiled(x)[0], np.array(np.nonzero(x)))


ROI: dict[str, dict[str, Any]] = {
    "two points a bin": {"sampling_ratio": 2},
    "as many points as elements": {"sampling_ratio": 0},
    "from corners": {"coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 3},
    "one bin": {"output_height": 1, "output_width": 1},
}


@pytest.mark.parametrize("scale", [0.5, 1.0])
@pytest.mark.parametrize("attributes", ROI.values(), ids=ROI)
def test_regions(attributes: dict[str, Any], scale: float) -> None:
    """As many regions of two images as data say, resampled."""
    given = {"output_height": 3, "output_width": 2, "spatial_scale": scale, **attributes}
    nodes = [
        node("Greater", "x zero", "alive"),
        node("NonZero", "alive", "nz"),
        node("Squeeze", "nz first", "places"),
        node("Gather", "boxes places", "found"),
        node("Mod", "places two", "image"),
        node("RoiAlign", "picture found image", "y", **given),
    ]
    inputs = [value("x", 9), value("boxes", 9, 4), value("picture", 2, 21, 8, 11)]
    constants = {name: np.asarray(CONSTANTS[name]) for name in ("zero", "first")}
    constants["two"] = np.array(2, np.int64)
    model = make_model(nodes, inputs, ["y"], constants)
    compiled = tvm_ext.compile(model, num_threads=2)
    rng = np.random.default_rng(0)
    corner = rng.random((9, 2)) * 12 - 2
    data = {
        "x": rng.standard_normal(9).astype("float32"),
        "boxes": np.concatenate([corner, corner + rng.random((9, 2)) * 9], 1).astype("float32"),
        "picture": rng.standard_normal((2, 21, 8, 11)).astype("float32"),
    }
    (expected,) = ReferenceEvaluator(model).run(None, data)
    np.testing.assert_allclose(compiled(data)[0], expected, rtol=1e-5, atol=1e-5)
