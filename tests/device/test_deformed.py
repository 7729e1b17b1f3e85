"""Convolutions whose taps lie where their offsets say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_cases import check_case
from onnx_models import make_model, value

import tvm_ext

RANDOM = np.random.default_rng(3)


def sample(plane: np.ndarray, row: float, column: float) -> Any:
    """Between the elements of [channels, h, w], of zeros beyond it."""
    top, left = int(np.floor(row)), int(np.floor(column))
    total = np.zeros(len(plane))
    for at, along in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        if 0 <= at < plane.shape[1] and 0 <= along < plane.shape[2]:
            total += plane[:, at, along] * (1 - abs(row - at)) * (1 - abs(column - along))
    return total


@pytest.mark.parametrize(
    "name",
    [
        "basic_deform_conv_with_padding",
        "basic_deform_conv_without_padding",
        "deform_conv_with_mask_bias",
        "deform_conv_with_multiple_offset_groups",
    ],
)
def test_cases(name: str) -> None:
    check_case(name, fed=["offset", "mask"])


@pytest.mark.parametrize(
    ("image", "kernel", "channels", "group", "groups", "strides", "dilations", "pads"),
    [
        ((7, 5), (3, 3), 6, 2, 3, (1, 1), (1, 1), (1, 1)),
        ((6, 9), (2, 3), 5, 1, 1, (2, 3), (2, 1), (0, 2)),
        ((1, 1), (1, 1), 3, 3, 1, (1, 1), (1, 1), (0, 0)),
    ],
)
def test_taps_lie_where_offsets_say(
    image: tuple[int, int],
    kernel: tuple[int, int],
    channels: int,
    group: int,
    groups: int,
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int],
) -> None:
    batch, outer, taps = 2, 2 * group, kernel[0] * kernel[1]
    height, width = (
        (image[d] + 2 * pads[d] - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1
        for d in (0, 1)
    )
    x = RANDOM.standard_normal((batch, channels, *image), np.float32)
    weights = RANDOM.standard_normal((outer, channels // group, *kernel), np.float32)
    moved = 1.5 * RANDOM.standard_normal((batch, groups * taps * 2, height, width), np.float32)
    moved.flat[::3] = np.round(moved.flat[::3])  # some lie on elements, or on the zeros beyond
    mask = RANDOM.random((batch, groups * taps, height, width), np.float32)
    node = helper.make_node(
        "DeformConv",
        ["x", "w", "moved", "", "mask"],
        ["y"],
        group=group,
        offset_group=groups,
        strides=strides,
        dilations=dilations,
        pads=[*pads, *pads],
    )
    given = {"x": x, "moved": moved, "mask": mask}
    inputs = [value(name, *array.shape) for name, array in given.items()]
    (y,) = tvm_ext.compile(make_model([node], inputs, ["y"], {"w": weights}, opset=19))(**given)

    offsets = moved.reshape(batch, groups, *kernel, 2, height, width)
    factors = mask.reshape(batch, groups, *kernel, height, width)
    wanted = np.zeros((batch, outer, height, width))
    each, own, part = channels // groups, channels // group, outer // group
    for n, i, j, p, q in np.ndindex(batch, *kernel, height, width):
        columns = np.zeros(channels)
        for g in range(groups):
            row, column = (
                at * strides[d] - pads[d] + tap * dilations[d] + offsets[n, g, i, j, d, p, q]
                for d, (at, tap) in enumerate(((p, i), (q, j)))
            )
            plane = x[n, g * each : (g + 1) * each]
            columns[g * each : (g + 1) * each] = (
                sample(plane, row, column) * factors[n, g, i, j, p, q]
            )
        for g in range(group):
            product = weights[g * part : (g + 1) * part, :, i, j] @ columns[g * own : (g + 1) * own]
            wanted[n, g * part : (g + 1) * part, p, q] += product
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
