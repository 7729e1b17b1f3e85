"""`Resize` to the nearest neighbour, its indices worked out as ONNX Runtime does.

rewrite:
    Resize(x, whole factors)   =>  Resize(x, asymmetric, floor)       i * in // out, in integers
    Resize(x, any other)       =>  Gather(Gather(x, rows), columns)   constant indices

Half an element from two neighbours the last bit of a float decides: the kernels compute positions
by multiplication and took another neighbour than ONNX Runtime, which divides (54 rows to 14).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, text_of

Positions = np.ndarray


def settle_nearest(graph: ir.Graph) -> None:
    """Rewrites every such node whose extents are known, in place."""
    for node in list(graph):
        chosen = _indices(node)
        if chosen is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        extents = list(source.shape.numpy()) if source.shape else []
        if all(_repeats(index, extents[axis]) for axis, index in chosen.items()):
            node.attributes["coordinate_transformation_mode"] = ir.AttrString(
                "coordinate_transformation_mode", "asymmetric"
            )
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
            continue
        value = source
        for axis, index in chosen.items():
            if np.array_equal(index, np.arange(extents[axis])):
                continue
            constant = add_initialiser(graph, f"{result.name}_index{axis}", index)
            inputs, attributes = [value, constant], {"axis": axis}
            gather = ir.node("Gather", inputs, attributes, name=f"{node.name}/axis{axis}")
            extents[axis] = index.size
            value = gather.outputs[0]
            value.name = f"{result.name}_axis{axis}"
            value.type, value.shape = result.type, ir.Shape(extents)
            graph.insert_before(node, gather)
        ir.convenience.replace_all_uses_with(result, value, replace_graph_outputs=True)
        graph.remove(node, safe=True)


def _indices(node: ir.Node) -> dict[int, np.ndarray] | None:
    """For each axis the elements that are taken; None for other nodes and unknown extents."""
    if node.domain or node.op_type != "Resize" or text_of(node, "mode", "nearest") != "nearest":
        return None
    if text_of(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    source, result = node.inputs[0], node.outputs[0]
    given = [value.shape for value in (source, result) if value is not None]
    known = [list(shape.numpy()) for shape in given if shape is not None and shape.is_static()]
    if len(known) != 2:
        return None
    before, after = known
    scales = _scales(node, before, after)
    transform = text_of(node, "coordinate_transformation_mode", "half_pixel")
    rounding = text_of(node, "nearest_mode", "round_prefer_floor")
    if scales is None or not all(before) or rounding not in _ROUNDINGS:
        return None
    found = {}
    for axis, (extent, size, scale) in enumerate(zip(before, after, scales, strict=True)):
        at = _positions(transform, extent, size, scale)
        if at is None:
            return None
        index = np.arange(extent) if scale == 1 and extent == size else _ROUNDINGS[rounding](at)
        found[axis] = np.clip(index, 0, extent - 1).astype(np.int64)
    return found


def _scales(node: ir.Node, before: list[int], after: list[int]) -> list[np.float32] | None:
    """The factor of each axis, as given or as the extents' quotient; None if it is not known."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if value is not None and tensor is None:
        return None
    if tensor is None or not tensor.size:
        return [np.float32(size) / np.float32(e) for e, size in zip(before, after, strict=True)]
    axes = node.attributes.get("axes")
    places = range(len(before)) if axes is None else [a % len(before) for a in axes.as_ints()]
    scales = [np.float32(1)] * len(before)
    for place, scale in zip(places, tensor.numpy().astype(np.float32), strict=True):
        scales[place] = scale
    return scales


def _positions(transform: str, extent: int, size: int, scale: np.float32) -> Positions | None:
    """Where the elements of a result lie in what is resized, in float32."""
    at, half = np.arange(size, dtype=np.float32), np.float32(0.5)
    if transform == "asymmetric":
        return at / scale
    if transform == "half_pixel" or (transform == "pytorch_half_pixel" and size > 1):
        return (at + half) / scale - half
    if transform == "pytorch_half_pixel" or (transform == "align_corners" and size == 1):
        return at * 0
    if transform == "align_corners":
        return at * np.float32(extent - 1) / np.float32(size - 1)
    return None


def _round(at: Positions) -> np.ndarray:
    """To the nearest, halves away from zero."""
    return np.trunc(at + np.copysign(np.float32(0.5), at))


def _round_prefer_floor(at: Positions) -> np.ndarray:
    return np.where(at == np.trunc(at) + np.float32(0.5), np.floor(at), _round(at))


_ROUNDINGS: dict[str, Callable[[Positions], np.ndarray]] = {
    "round_prefer_floor": _round_prefer_floor,
    "round_prefer_ceil": _round,
    "floor": np.floor,
    "ceil": np.ceil,
}


def _repeats(index: np.ndarray, extent: int) -> bool:
    """Whether every element is taken equally often, one after another."""
    times, rest = divmod(index.size, extent)
    return not rest and np.array_equal(index, np.arange(index.size) // times)
