"""Resizing to the nearest neighbour takes the neighbours that ONNX Runtime takes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, run_plainly, value
from simplify_case import operators, simplified

pytest.importorskip("onnxruntime")
TRANSFORMS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SIZES = (
    (32, 54, 14, 14),
    (8, 6, 4, 4),
    (9, 10, 3, 4),
    (4, 1, 10, 5),
    (7, 7, 14, 21),
    (14, 5, 5, 1),
)


def resize(
    transform: str, rounding: str, before: tuple[int, int], after: tuple[int, int], scaled: bool
) -> onnx.ModelProto:
    if scaled:
        factors = np.array([1, 1, after[0] / before[0], after[1] / before[1]], np.float32)
        names, constants = ["x", "", "f"], {"f": factors}
    else:
        names, constants = ["x", "", "", "s"], {"s": np.array([1, 3, *after], np.int64)}
    node = helper.make_node(
        "Resize",
        names,
        ["y"],
        coordinate_transformation_mode=transform,
        nearest_mode=rounding,
    )
    return make_model([node], [value("x", 1, 3, *before)], ["y"], constants)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_neighbours(transform: str, rounding: str, size: tuple[int, int, int, int]) -> None:
    """Each element of the input is another number, so that each neighbour shows."""
    before, after = size[:2], size[2:]
    x = np.arange(3 * before[0] * before[1], dtype=np.float32).reshape(1, 3, *before)
    # a factor that float32 rounds down may make one element less
    exact = [float(np.float32(b / a)) * a >= b for a, b in zip(before, after, strict=True)]
    for scaled in (False, True) if all(exact) else (False,):
        model = resize(transform, rounding, before, after, scaled)
        left = simplified(model)
        np.testing.assert_array_equal(run_plainly(left, {"x": x}), run_plainly(model, {"x": x}))
        kinds = set(operators(left))
        asked = {entry.name: entry.s for entry in left.graph.node[0].attribute}
        assert kinds <= {"Gather", "Identity"} or (
            kinds == {"Resize"} and asked["nearest_mode"] == b"floor"
        )


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_whole_factors_stay_one_operator(transform: str, factor: int) -> None:
    rounding = "floor" if transform == "asymmetric" else "round_prefer_floor"
    model = resize(transform, rounding, (5, 7), (5 * factor, 7 * factor), True)
    assert operators(simplified(model)) == {"Resize": 1}
