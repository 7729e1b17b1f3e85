"""The best boxes of each class that do not lie on better ones, beside ONNX's own definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.errors import ModelError

SHAPES = {
    "one box": (1, 1, 1),
    "fewer than a vector": (1, 2, 7),
    "one block of scores": (2, 3, 16),
    "several blocks, shared out": (2, 4, 401),
}
LIMITS: dict[str, tuple[int, float, float]] = {
    "some": (5, 0.5, 0.1),
    "none twice as good": (3, 0.0, 0.5),
    "all": (2**40, 1.0, -1.0),
    "more than a vector": (40, 0.3, 0.0),
}


def suppression(
    images: int, classes: int, length: int, limits: tuple[Any, ...], **attributes: int
) -> onnx.ModelProto:
    """Boxes kept, and their corners."""
    kinds = (np.int64, np.float32, np.float32)
    named = zip(("most", "overlap", "least"), limits, kinds, strict=False)
    constants = {name: np.array([limit], kind) for name, limit, kind in named}
    own = ["boxes", "scores", *constants]
    nodes = [
        helper.make_node("NonMaxSuppression", own, ["kept"], **attributes),
        helper.make_node("Gather", ["kept", "column"], ["places"], axis=1),
        helper.make_node("Gather", ["boxes", "places"], ["corners"], axis=1),
    ]
    inputs = [value("boxes", images, length, 4), value("scores", images, classes, length)]
    constants["column"] = np.array(2, np.int64)
    return make_model(nodes, inputs, ["kept", "corners"], constants)


def drawn(images: int, classes: int, length: int) -> dict[str, np.ndarray]:
    """Boxes whose corners are in any order, some of no area, and scores of which some are equal."""
    rng = np.random.default_rng(0)
    corner = rng.random((images, length, 2))
    boxes = np.concatenate([corner, corner + 0.6 * (rng.random(corner.shape) - 0.3)], -1)
    boxes[:, ::5] = np.round(boxes[:, ::5] * 4) / 4
    scores = np.round(rng.random((images, classes, length)) * 50) / 50
    return {"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32)}


def check(model: onnx.ModelProto, data: dict[str, np.ndarray]) -> Any:
    compiled = tvm_ext.compile(model)
    found = compiled(data)
    for one, expected in zip(found, ReferenceEvaluator(model).run(None, data), strict=True):
        np.testing.assert_array_equal(one, expected)
    return compiled


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_corners_in_any_order(shape: tuple[int, int, int], limits: tuple[Any, ...]) -> None:
    compiled = check(suppression(*shape, limits), drawn(*shape))
    assert not compiled.manifest.notes
    (kernel,) = (group for group in compiled.manifest.groups if group.kind == "non_max")
    assert not kernel.fallback


def test_boxes_by_their_middles() -> None:
    data = drawn(1, 3, 100)
    data["boxes"] = np.abs(data["boxes"])
    check(suppression(1, 3, 100, (9, 0.4, 0.2), center_point_box=1), data)


@pytest.mark.parametrize("given", [1, 2], ids=["no overlap", "no least score"])
def test_limits_that_are_left_out(given: int) -> None:
    data, limits = drawn(1, 2, 50), (7, 0.5)[:given]
    written_out = suppression(1, 2, 50, (7, 0.0 if given == 1 else 0.5, -1e30))
    expected = ReferenceEvaluator(written_out).run(None, data)
    found = tvm_ext.compile(suppression(1, 2, 50, limits))(data)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_number_nothing_is_kept() -> None:
    (kept, corners) = tvm_ext.compile(suppression(1, 2, 9, ()))(drawn(1, 2, 9))
    assert kept.shape == (0, 3)
    assert corners.shape == (1, 0, 4)


def test_a_score_that_is_no_number_is_left_out() -> None:
    data = drawn(1, 2, 60)
    data["scores"][0, :, ::7] = np.nan
    check(suppression(1, 2, 60, (50, 0.7, 0.1)), data)


def test_from_a_file(tmp_path: Path) -> None:
    data = drawn(1, 2, 60)
    compiled = tvm_ext.compile(suppression(1, 2, 60, (5, 0.5, 0.3)))
    compiled.save(tmp_path / "boxes.so")
    for one, other in zip(tvm_ext.load(tmp_path / "boxes.so")(data), compiled(data), strict=True):
        np.testing.assert_array_equal(one, other)


def test_limits_of_a_run_are_refused() -> None:
    model = suppression(1, 2, 9, (5, 0.5, 0.3))
    most = next(weight for weight in model.graph.initializer if weight.name == "most")
    model.graph.initializer.remove(most)
    model.graph.input.append(value("most", 1, dtype=onnx.TensorProto.INT64))
    with pytest.raises(ModelError, match=r"NonMaxSuppression .* of as many as data say"):
        tvm_ext.compile(model)


def test_gpus_are_refused() -> None:
    with pytest.raises(ModelError, match="on CPUs alone"):
        tvm_ext.compile(suppression(1, 2, 9, (5, 0.5, 0.3)), "cuda/sm_80")
