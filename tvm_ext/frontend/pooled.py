"""Where the largest elements of windows lie, and their way back there.

rewrite:
    MaxPool(x)          =>  best, at    Where(tap > best, tap, best) over the taps of the windows,
                                        each a slice of x; so their places
    MaxUnpool(x, at)    =>  Reshape(ScatterElements(zeros, at, x)), padded or cut to its shape

ONNX counts the places that `MaxUnpool` takes in a tensor as large as it makes without an
`output_shape`. What a `MaxPool` has found is counted in the tensor that it was found in, which may
have had a row more than its windows: those are told by the node that makes them, and read first.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, extents_of, node_of, opset_of, parted

MOST_TAPS = 128
"""Elements of a window at most; each takes four nodes."""
OPSET = 11
"""Since which `Pad` and `Slice` take numbers as inputs."""


class _Windows(NamedTuple):
    """Windows over the axes behind the first two."""

    extents: list[int]
    sizes: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    """Pads before the first element."""
    outer: list[int]
    steps: list[int]
    """What an element further along an axis counts."""

    def after(self) -> list[int]:
        """Elements that the last windows reach past the end."""
        return [
            max(0, (outer - 1) * stride + (size - 1) * dilation + 1 - before - extent)
            for extent, size, stride, dilation, before, outer, _ in zip(*self, strict=True)
        ]

    def corners(self) -> np.ndarray:
        """The places of the first taps, in the image or before it, [outer ..]."""
        return self._summed(
            [
                step * (np.arange(outer) * stride - before)
                for _, _, stride, _, before, outer, step in zip(*self, strict=True)
            ]
        )

    def first(self) -> np.ndarray:
        """How much further the first taps are that lie in the image, [outer ..]."""
        return self._summed(
            [
                step * -(np.minimum(0, np.arange(outer) * stride - before) // dilation) * dilation
                for _, _, stride, dilation, before, outer, step in zip(*self, strict=True)
            ]
        )

    @staticmethod
    def _summed(along: list[np.ndarray]) -> np.ndarray:
        return np.array(sum(np.ix_(*along)))


def _windows(x: ir.Value, y: ir.Value) -> _Windows | None:
    """Those of a pool; None where extents are not known."""
    node = node_of(y)
    given, extents, outer = node.attributes, extents_of(x, 2), extents_of(y, 2)
    sizes = list(given.get_ints("kernel_shape", []))
    if not len(extents) == len(outer) == len(sizes) > 0:
        return None
    strides, dilations = (
        list(given.get_ints(name, [1] * len(sizes))) for name in ("strides", "dilations")
    )
    padding = given.get_string("auto_pad", "NOTSET")
    before = list(given.get_ints("pads", [0] * 2 * len(sizes)))[: len(sizes)]
    if padding != "NOTSET":
        before = [0] * len(sizes)
    if padding.startswith("SAME"):
        before = [
            parted(
                (last - 1) * stride + (size - 1) * dilation + 1 - extent, padding[5:] == "UPPER"
            )[0]
            for last, stride, size, dilation, extent in zip(
                outer, strides, sizes, dilations, extents, strict=True
            )
        ]
    steps = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    if given.get_int("storage_order", 0):
        steps = [prod(extents[:axis]) for axis in range(len(extents))]
    return _Windows(extents, sizes, strides, dilations, before, outer, steps)


def _max_pool(op: Any, x: Any) -> Any:
    return op.MaxPool(x, _outputs=["y", "places"])


def _finds_places(_: Any, x: ir.Value, y: ir.Value, places: ir.Value | None = None) -> bool:
    """Places that a `MaxUnpool` reads wait for it to ask what they are counted in."""
    windows = _windows(x, y)
    if places is None or windows is None or not extents_of(x):
        return False
    waits = any(reader.op_type == "MaxUnpool" for reader, _ in places.uses())
    read = bool(places.uses()) or places.is_graph_output()
    small = prod(windows.sizes) <= MOST_TAPS
    return read and small and not waits and opset_of(node_of(y)) >= OPSET


def _by_taps(op: Any, x: ir.Value, y: ir.Value, places: ir.Value) -> Any:
    windows, kind = _windows(x, y), x.dtype
    assert windows is not None
    assert kind is not None
    rank, after = len(windows.sizes), windows.after()
    planes = extents_of(x)[:2]

    def known(name: str, value: Any) -> Any:
        return constant(op, f"{places.name}_{name}", value)

    def numbers(name: str, values: list[int]) -> Any:
        return known(name, np.array(values, np.int64))

    image = x
    if any(windows.before) or any(after):
        least = -np.inf if kind.is_floating_point() else np.iinfo(kind.numpy()).min
        pads = numbers("pads", [0, 0, *windows.before, 0, 0, *after])
        image = op.Pad(x, pads, known("least", np.asarray(least, kind.numpy())))
    axes, strides = numbers("axes", [*range(2, rank + 2)]), numbers("strides", windows.strides)
    best, at = None, known("first", windows.first().astype(np.int32))
    for tap in np.ndindex(*windows.sizes):
        begins = [n * dilation for n, dilation in zip(tap, windows.dilations, strict=True)]
        ends = [
            begin + (outer - 1) * stride + 1
            for begin, outer, stride in zip(begins, windows.outer, windows.strides, strict=True)
        ]
        name = "_".join(map(str, tap))
        limits = (numbers(f"from_{name}", begins), numbers(f"to_{name}", ends))
        taken = op.Slice(image, *limits, axes, strides)
        if best is None:
            best = taken
            continue
        further = sum(n * step for n, step in zip(begins, windows.steps, strict=True))
        better = op.Greater(taken, best)
        best = op.Where(better, taken, best)
        at = op.Where(better, known(f"further_{name}", np.int32(further)), at)
    count = prod(windows.extents)
    before = np.arange(prod(planes)).reshape(*planes, *[1] * rank) * count
    at = op.Add(op.Cast(at, to=ir.DataType.INT64), known("corners", windows.corners()))
    return op.Identity(best), op.Add(at, known("planes", before))


def _max_unpool(op: Any, x: Any, places: Any) -> Any:
    return op.MaxUnpool(x, places, _allow_other_inputs=True, _outputs=["y"])


def _made(x: ir.Value, y: ir.Value) -> tuple[list[int], list[int]] | None:
    """The extents that a `MaxUnpool` makes without an `output_shape`, and those that it makes; None
    if they are not known."""
    node, extents = node_of(y), extents_of(x)
    wanted = node.inputs[2] if len(node.inputs) > 2 else None
    if not extents or (wanted is not None and wanted.const_value is None):
        return None
    sizes = list(node.attributes.get_ints("kernel_shape", []))
    strides = list(node.attributes.get_ints("strides", [1] * len(sizes)))
    pads = list(node.attributes.get_ints("pads", [0] * 2 * len(sizes)))
    usual = extents[:2]
    for axis, size in enumerate(sizes):
        cut = pads[axis] + pads[len(sizes) + axis]
        usual.append((extents[axis + 2] - 1) * strides[axis] + size - cut)
    if wanted is None or wanted.const_value is None:
        return usual, usual
    return usual, [int(extent) for extent in wanted.const_value.numpy()]


def _is_known(_: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    return _made(x, y) is not None and x.dtype is not None


def _scattered(op: Any, x: ir.Value, places: ir.Value, y: ir.Value) -> Any:
    made, maker = _made(x, y), places.producer()
    assert made is not None
    assert x.dtype is not None
    usual, whole = made
    counted = usual
    if maker is not None and maker.op_type == "MaxPool" and maker.inputs[0] is not None:
        counted = extents_of(maker.inputs[0]) or usual

    def numbers(name: str, values: list[int]) -> Any:
        return constant(op, f"{y.name}_{name}", np.array(values, np.int64))

    zero = constant(op, f"{y.name}_zero", np.zeros((), x.dtype.numpy()))
    flat = numbers("flat", [-1])
    zeros = op.Expand(zero, numbers("count", [prod(counted)]))
    filled = op.ScatterElements(zeros, op.Reshape(places, flat), op.Reshape(x, flat), axis=0)
    result = op.Reshape(filled, numbers("counted", counted))
    kept = [min(own, other) for own, other in zip(counted, whole, strict=True)]
    if kept != counted:
        begins, axes = [0] * len(kept), [*range(len(kept))]
        limits = [numbers("from", begins), numbers("to", kept), numbers("axes", axes)]
        result = op.Slice(result, *limits)
    if kept != whole:
        more = [own - other for own, other in zip(whole, kept, strict=True)]
        result = op.Pad(result, numbers("more", [0] * len(kept) + more), zero)
    return result


rules = (
    RewriteRule(_max_pool, _by_taps, _finds_places, name="MaxPoolWithPlaces"),
    RewriteRule(_max_unpool, _scattered, _is_known, name="MaxUnpool"),
)
