"""What a `Resize` asks for along each axis, and where the elements of its result lie.

Positions are worked out in float32, as ONNX Runtime does: where half an element is missing from two
neighbours, the last bit of a float decides which of them is the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import constant_of, int_of, text_of
from tvm_ext.frontend.nodes import extents_of

PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
SYMMETRIC, CROP = "half_pixel_symmetric", "tf_crop_and_resize"
"""Ways to place elements; TVM's importer knows the first."""
AS_BEFORE = "as before opset 11"
"""A `nearest_mode` of our own: of a `Resize` that onnx has converted from a time without places."""
POLICIES = {"not_larger": min, "not_smaller": max}
WHOLE = 1e-6
"""By how much of itself an extent that is worked out of a scale may miss a whole number."""
HALF, ONE = np.float32(0.5), np.float32(1)


class Along(NamedTuple):
    """An axis that is resized: its extent before and after, the factor, the part that is taken."""

    axis: int
    extent: int
    size: int
    scale: np.float32
    begin: np.float32
    end: np.float32

    @property
    def is_copied(self) -> bool:
        """Whether nothing is changed."""
        return self.size == self.extent and self[3:] == (1, 0, 1)

    @property
    def is_whole(self) -> bool:
        """Whether the scale is the quotient of both extents."""
        exact, size = np.float32(self.extent) * self.scale, np.float32(self.size)
        return bool(abs(exact - size) <= WHOLE * size)


def resized_axes(node: ir.Node) -> tuple[Along, ...] | None:
    """The axes along which a `Resize` is more than a copy; None where they are not known."""
    shape = [] if node.inputs[0] is None else extents_of(node.inputs[0])
    roi, scales, sizes = (_numbers(node, place) for place in (1, 2, 3))
    transform = text_of(node, "coordinate_transformation_mode", "half_pixel")
    known = transform in (*PLACES, SYMMETRIC, CROP)
    if not known or min(shape, default=0) < 1 or scales is None or sizes is None:
        return None
    listed = node.attributes.get_ints("axes", range(len(shape)))
    axes = [axis % len(shape) for axis in listed]
    extents = [shape[axis] for axis in axes]
    targets = _by_scales(extents, scales) if scales.size else _by_sizes(node, extents, sizes)
    if len(targets) != len(axes):
        return None
    parts = np.repeat([[0], [1]], len(axes), axis=1)
    if transform == CROP:
        if roi is None or roi.size != parts.size:
            return None
        parts = roi.reshape(parts.shape)
    asked = zip(axes, extents, targets, parts.T.astype(np.float32), strict=True)
    found = [Along(axis, extent, *target, *part) for axis, extent, target, part in asked]
    if any(along.size < 1 for along in found):
        return None
    return tuple(along for along in found if not along.is_copied)


def is_old(node: ir.Node) -> bool:
    """Whether it is from before opset 11, where nothing is said of places."""
    known = node.op_type == "Resize" and len(node.inputs) > 2
    return not known or text_of(node, "nearest_mode", "") == AS_BEFORE


def are_planes(node: ir.Node, axes: Sequence[Along]) -> bool:
    """Whether TVM knows such tensors, and these axes are not those of images and channels."""
    rank = 0 if node.inputs[0] is None else len(extents_of(node.inputs[0]))
    return 3 <= rank <= 5 and all(along.axis >= 2 for along in axes)


def is_read(node: ir.Node, axes: Sequence[Along]) -> bool:
    """Whether TVM's importer reads a `Resize` that interpolates along these axes as it is meant."""
    transform = text_of(node, "coordinate_transformation_mode", "half_pixel")
    corners = transform == "align_corners" and any(along.size == 1 for along in axes)
    widened = int_of(node, "antialias", 0) == 1 and any(along.scale < 1 for along in axes)
    whole = all(along.is_whole for along in axes) and are_planes(node, axes)
    return transform in PLACES and whole and not corners and not widened


def misread(node: ir.Node) -> str:
    """What TVM's importer would get wrong about a `Resize` that is left; else empty."""
    if is_old(node):
        return " with scales that are no constant"
    axes = resized_axes(node)
    if axes is None:
        stated = [name for name in ("axes", "keep_aspect_ratio_policy") if name in node.attributes]
        return f" with {stated[0]}, and extents that are not known" if stated else ""
    if text_of(node, "mode", "nearest") == "nearest" or is_read(node, axes):
        return ""
    return " of other than floats, but for planes and whole extents"


def _numbers(node: ir.Node, place: int) -> np.ndarray | None:
    """The constant at a place, empty where there is none; None of what is not constant."""
    value = node.inputs[place] if place < len(node.inputs) else None
    return np.zeros(0, np.float32) if value is None else constant_of(value)


def _by_scales(extents: Sequence[int], scales: np.ndarray) -> list[tuple[int, np.float32]]:
    """For each axis its new extent, and the factor."""
    pairs = zip(extents, scales.astype(np.float32), strict=False)
    return [(int(np.float32(extent) * scale), scale) for extent, scale in pairs]


def _by_sizes(
    node: ir.Node, extents: Sequence[int], sizes: np.ndarray
) -> list[tuple[int, np.float32]]:
    """The same of sizes that are given, or of those that leave all factors one."""
    pairs = list(zip(sizes.tolist(), extents, strict=False))
    factors = [np.float32(size) / np.float32(extent) for size, extent in pairs]
    policy = POLICIES.get(text_of(node, "keep_aspect_ratio_policy", "stretch"))
    if policy is None:
        return [(size, factor) for (size, _), factor in zip(pairs, factors, strict=True)]
    factor = policy(factors)
    return [(int(factor * np.float32(extent) + HALF), factor) for _, extent in pairs]


def places(along: Along, transform: str) -> np.ndarray:
    """Where the elements of a result lie in what is resized, float32 [size].

    Corners are aligned by whole extents, as in PyTorch and ONNX Runtime, also where a scale asks
    for a part of an element more (which onnx's reference counts).
    """
    at, scale, alone = np.arange(along.size, dtype=np.float32), along.scale, along.size == 1
    last, steps = np.float32(along.extent - 1), np.float32(along.size - 1)
    if transform == "asymmetric":
        return at / scale
    if transform == CROP:
        middle, part = HALF * (along.begin + along.end) * last, along.end - along.begin
        return at + middle if alone else along.begin * last + at * part * last / steps
    if alone and transform in ("align_corners", "pytorch_half_pixel"):
        return at * 0
    if transform == "align_corners":
        return at * last / steps
    offset = np.float32(0)
    if transform == SYMMETRIC:
        extent = np.float32(along.extent)
        offset = extent * HALF * (ONE - np.float32(along.size) / (scale * extent))
    return offset + (at + HALF) / scale - HALF
