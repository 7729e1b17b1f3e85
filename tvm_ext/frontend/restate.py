"""Operators in the terms of others: cheaper ones, or those that the importer reads.

rewrite:
    Tanh(Softplus(x))      =>   e (e + 2) / (e (e + 2) + 2),   e = exp(x)
    Mish(x)                =>   x times that
    LpNormalization(x)     =>   x / Sqrt(ReduceSum(x x)), or ReduceSum(Abs(x)); 0 where that is 0
    Col2Im(x)              =>   Reshape(Transpose(Reshape(x))) where blocks lie side by side,
                                else ConvTranspose(Reshape(x)) by weights of one and zeros
    GridSample(x, grid)    =>   GridSample(x, Cast(grid)), of a grid of doubles
    e / ReduceSum(e), e = Exp(x - ReduceMax(x))   =>   Softmax(x), which attention is found by
    BatchNormalization(x), training_mode=1        =>   d / Sqrt(ReduceMean(d d) + eps), scaled and
                                shifted; d = x - ReduceMean(x): weights that networks standardise
    IsInf(x), of one sign  =>   x == inf
    Split(x) into one      =>   x
    Where(all, x, y)       =>   x, and y where a constant chooses nothing of x
    ScatterND(x, box, y)   =>   Concat(x[:, :1], y, x[:, 5:]), where the indices count a box: what
                                exporters make of `x[:, 1:5] = y`

The first is half of Mish, with one exponential instead of two and a logarithm, for tanh(log(1 + e))
= ((1 + e)² - 1) / ((1 + e)² + 1). Nothing cancels; from `FLAT` on it is 1 to the last digit, and e²
would leave the range later.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, is_float, mean_of, node_of, opset_of

FLAT = 20.0


def _tanh_of_softplus(op: Any, x: Any) -> Any:
    return op.Tanh(op.Softplus(x))


def _rational(op: Any, x: ir.Value) -> Any:
    flat = constant(op, f"{x.name}_flat", np.float32(FLAT))
    two = constant(op, f"{x.name}_two", np.float32(2))
    e = op.Exp(op.Where(op.Greater(x, flat), flat, x))  # what is no number is not greater
    product = op.Mul(e, op.Add(e, two))
    return op.Div(product, op.Add(product, two))


def _mish(op: Any, x: Any) -> Any:
    return op.Mish(x)


def _times_rational(op: Any, x: ir.Value) -> Any:
    return op.Mul(x, _rational(op, x))


def _lp_normalization(op: Any, x: Any) -> Any:
    return op.LpNormalization(x, _outputs=["y"])


def _divided(op: Any, x: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    axis = node.attributes.get_int("axis", -1)
    manhattan = node.attributes.get_int("p", 2) == 1
    axes = constant(op, f"{x.name}_axes", np.array([axis], np.int64))
    zero = constant(op, f"{x.name}_zero", np.float32(0))
    one = constant(op, f"{x.name}_one", np.float32(1))
    summed = op.ReduceSum(op.Abs(x) if manhattan else op.Mul(x, x), axes, keepdims=1)
    norm = summed if manhattan else op.Sqrt(summed)
    return op.Div(x, op.Where(op.Equal(norm, zero), one, norm))


def _col2im(op: Any, x: Any, image: Any, block: Any) -> Any:
    return op.Col2Im(x, image, block, _outputs=["y"])


def _of_known_blocks(context: Any, x: ir.Value, **others: Any) -> bool:
    known = all(others[name].const_value is not None for name in ("image", "block"))
    return known and x.shape is not None and isinstance(x.shape[1], int)


def _side_by_side(op: Any, x: Any, image: Any, block: Any, y: Any) -> Any:
    """Columns, each of all channels of a block, as the image that is the sum of the blocks."""
    node = y.producer()
    extents, sizes = ([int(n) for n in one.const_value.numpy()] for one in (image, block))
    rank, taps = len(sizes), prod(sizes)
    strides = list(node.attributes.get_ints("strides", [1] * rank))
    dilations = list(node.attributes.get_ints("dilations", [1] * rank))
    pads = list(node.attributes.get_ints("pads", [0] * 2 * rank))
    reach = [dilations[d] * (sizes[d] - 1) + 1 for d in range(rank)]
    padded = [extents[d] + pads[d] + pads[rank + d] for d in range(rank)]
    counts = [(padded[d] - reach[d]) // strides[d] + 1 for d in range(rank)]
    channels = x.shape[1] // taps

    def reshape(value: Any, name: str, *shape: int) -> Any:
        return op.Reshape(value, constant(op, f"{x.name}_{name}", np.array([0, *shape], np.int64)))

    filled = [counts[d] * sizes[d] for d in range(rank)]
    if strides == sizes and padded == extents == filled:
        blocks = reshape(x, "blocks", channels, *sizes, *counts)
        order = [place for d in range(rank) for place in (2 + rank + d, 2 + d)]
        return reshape(op.Transpose(blocks, perm=[0, 1, *order]), "image", channels, *extents)
    made = [strides[d] * (counts[d] - 1) + reach[d] - padded[d] + extents[d] for d in range(rank)]
    weights = np.tile(np.eye(taps, dtype=np.float32), (channels, 1)).reshape(-1, 1, *sizes)
    return op.ConvTranspose(
        reshape(x, "columns", channels * taps, *counts),
        constant(op, f"{x.name}_taps", weights),
        group=channels,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=[extents[d] - made[d] for d in range(rank)],
    )


def _grid_sample(op: Any, x: Any, grid: Any) -> Any:
    return op.GridSample(x, grid, _outputs=["y"])


def _by_doubles(_: Any, x: ir.Value, grid: ir.Value, **__: Any) -> bool:
    return x.dtype == ir.DataType.FLOAT and grid.dtype == ir.DataType.DOUBLE


def _by_floats(op: Any, x: ir.Value, grid: ir.Value, y: ir.Value) -> Any:
    node = node_of(y)
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return op.GridSample(x, op.Cast(grid, to=ir.DataType.FLOAT), **given)


def _softmax(op: Any, x: Any) -> Any:
    top = op.ReduceMax(x, _allow_other_inputs=True, _outputs=["top"])
    power = op.Exp(op.Sub(x, top))
    return op.Div(power, op.ReduceSum(power, _allow_other_inputs=True, _outputs=["total"]))


def _along_one_axis(_: Any, x: ir.Value, top: ir.Value, total: ir.Value, **__: Any) -> bool:
    axis = _axis(top)
    return x.dtype == ir.DataType.FLOAT and axis is not None and axis == _axis(total)


def _as_softmax(op: Any, x: ir.Value, top: ir.Value, **_: Any) -> Any:
    return op.Softmax(x, axis=_axis(top))


def _axis(reduced: ir.Value) -> int | None:
    """The only axis of a reduction that keeps it, if `Softmax` of the model's operator set means
    that one: until 13 it took all from an axis on for one."""
    node = node_of(reduced)
    axes = list(node.attributes.get_ints("axes", []))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = node.inputs[1].const_value
        axes = [] if given is None else [int(axis) for axis in given.numpy().reshape(-1)]
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if len(axes) != 1 or not node.attributes.get_int("keepdims", 1) or shape is None:
        return None
    axis = axes[0] % len(shape)
    return axis if opset_of(node) >= 13 or axis == len(shape) - 1 else None


def _trained(op: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    return op.BatchNormalization(x, scale, bias, mean, variance, _outputs=["y", "m", "v"])


def _trained_alone(op: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    return op.BatchNormalization(x, scale, bias, mean, variance, _outputs=["y"])


def _in_training(outputs: int, _: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    node = y.producer()
    training = node is not None and node.attributes.get_int("training_mode", 0) == 1
    if node is None or len(node.outputs) != outputs:
        return False
    return training and x.dtype == ir.DataType.FLOAT and x.shape is not None and len(x.shape) > 1


def _standardised(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    bias: ir.Value,
    mean: ir.Value,
    variance: ir.Value,
    y: ir.Value,
    **_: Any,
) -> Any:
    """The result, the running mean and the running variance, as many as the node has."""
    node = node_of(y)
    assert x.shape is not None
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    momentum = node.attributes.get_float("momentum", 0.9)
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    row = constant(op, f"{x.name}_row", np.array([1, -1, *[1] * (len(axes) - 1)], np.int64))
    flat = constant(op, f"{x.name}_flat", np.array([-1], np.int64))

    centre = mean_of(op, node, x, axes)
    centred = op.Sub(x, centre)
    spread = mean_of(op, node, op.Mul(centred, centred), axes)
    small = constant(op, f"{x.name}_epsilon", np.float32(epsilon))
    unit = op.Div(centred, op.Sqrt(op.Add(spread, small)))
    result = op.Add(op.Mul(unit, op.Reshape(scale, row)), op.Reshape(bias, row))
    if len(node.outputs) == 1:
        return result
    old = constant(op, f"{x.name}_old", np.float32(momentum))
    new = constant(op, f"{x.name}_new", np.float32(1 - momentum))

    def moved(before: ir.Value, now: Any) -> Any:
        return op.Add(op.Mul(before, old), op.Mul(op.Reshape(now, flat), new))

    return result, moved(mean, centre), moved(variance, spread)


def _scatter(op: Any, x: Any, indices: Any, updates: Any) -> Any:
    return op.ScatterND(x, indices, updates, _outputs=["y"])


def _counts_a_box(_: Any, x: ir.Value, indices: ir.Value, y: ir.Value, **__: Any) -> bool:
    node = y.producer()
    plain = node is not None and node.attributes.get_string("reduction", "none") == "none"
    return plain and _box(x, indices) is not None


def _box(x: ir.Value, indices: ir.Value) -> list[tuple[int, int, int]] | None:
    """Along each axis that is indexed: where the box begins and ends, and the extent; None if the
    indices are not those of a box, in order, or are not known."""
    if indices.const_value is None or x.shape is None:
        return None
    given = indices.const_value.numpy()
    axes = given.shape[-1]
    extents = [extent for extent in list(x.shape)[:axes] if isinstance(extent, int)]
    if given.ndim - 1 != axes or not given.size or len(extents) < axes:
        return None
    box = []
    for axis, extent in enumerate(extents):
        along = given[..., axis]
        first, count = int(along.flat[0]), along.shape[axis]
        steps = np.arange(first, first + count).reshape([-1] + [1] * (axes - axis - 1))
        if not 0 <= first <= extent - count or not np.array_equal(
            along, np.broadcast_to(steps, along.shape)
        ):
            return None
        box.append((first, first + count, extent))
    return box


def _assigned(op: Any, x: ir.Value, indices: ir.Value, updates: ir.Value, **_: Any) -> Any:
    box = _box(x, indices)
    assert box is not None

    def part(value: Any, axis: int, begin: int, end: int) -> Any:
        limits = [
            constant(op, f"{updates.name}_{what}_{axis}_{begin}_{end}", np.array([at], np.int64))
            for what, at in (("from", begin), ("to", end), ("along", axis))
        ]
        return op.Slice(value, *limits)

    def filled(value: Any, axis: int) -> Any:
        if axis == len(box):
            return updates
        begin, end, extent = box[axis]
        if (begin, end) == (0, extent):
            return filled(value, axis + 1)
        parts = [filled(part(value, axis, begin, end), axis + 1)]
        if begin:
            parts.insert(0, part(value, axis, 0, begin))
        if end < extent:
            parts.append(part(value, axis, end, extent))
        return op.Concat(*parts, axis=axis)

    result = filled(x, 0)
    return op.Identity(result) if result is updates else result


def _where(op: Any, chosen: Any, x: Any, y: Any) -> Any:
    return op.Where(chosen, x, y, _outputs=["z"])


def _one_side(chosen: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value | None:
    """What a choice takes all elements from, if it is of the result's shape."""
    shapes = [value.shape for value in (chosen, x, y)]
    if chosen.const_value is None or not all(s is not None and s.is_static() for s in shapes):
        return None
    known = chosen.const_value.numpy()
    side = x if known.all() else y if not known.any() else None
    extents = [tuple(shape.numpy()) for shape in shapes if shape is not None]
    whole = np.broadcast_shapes(*extents)
    fits = side is not None and side.shape is not None and tuple(side.shape.numpy()) == whole
    return side if fits else None


def _takes_one_side(_: Any, chosen: ir.Value, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    return _one_side(chosen, x, y) is not None


def _that_side(op: Any, chosen: ir.Value, x: ir.Value, y: ir.Value, **_: Any) -> Any:
    return op.Identity(_one_side(chosen, x, y))


def _split(op: Any, x: Any) -> Any:
    return op.Split(x, _allow_other_inputs=True, _outputs=["whole"])


def _as_it_is(op: Any, x: ir.Value, **_: Any) -> Any:
    return op.Identity(x)


def _is_inf(op: Any, x: Any) -> Any:
    return op.IsInf(x, _outputs=["y"])


def _of_one_sign(_: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    return x.dtype is not None and x.dtype.is_floating_point() and len(_signs(y)) < 2


def _signs(y: ir.Value) -> list[float]:
    """The infinities that an `IsInf` finds."""
    node = node_of(y)
    names = {"detect_negative": -np.inf, "detect_positive": np.inf}
    return [sign for name, sign in names.items() if node.attributes.get_int(name, 1)]


def _equals_infinity(op: Any, x: ir.Value, y: ir.Value) -> Any:
    assert x.dtype is not None
    sign = (*_signs(y), np.nan)[0]  # nothing equals what is no number
    return op.Equal(x, constant(op, f"{y.name}_end", np.array(sign, x.dtype.numpy())))


rules = (
    RewriteRule(_tanh_of_softplus, _rational, is_float, name="TanhOfSoftplus"),
    RewriteRule(_mish, _times_rational, is_float, name="Mish"),
    RewriteRule(_lp_normalization, _divided, is_float, name="LpNormalization"),
    RewriteRule(_col2im, _side_by_side, _of_known_blocks, name="Col2Im"),
    RewriteRule(_softmax, _as_softmax, _along_one_axis, name="Softmax"),
    RewriteRule(_grid_sample, _by_floats, _by_doubles, name="GridSampleByFloats"),
    RewriteRule(_where, _that_side, _takes_one_side, name="WhereOfOneSide"),
    RewriteRule(_split, _as_it_is, name="SplitIntoOne"),
    RewriteRule(_is_inf, _equals_infinity, _of_one_sign, name="IsInfOfOneSign"),
    RewriteRule(_scatter, _assigned, _counts_a_box, name="ScatterABox"),
    RewriteRule(_trained, _standardised, partial(_in_training, 3), name="BatchNormOfBatch"),
    RewriteRule(_trained_alone, _standardised, partial(_in_training, 1), name="BatchNormAlone"),
)
