"""How each Relax operator runs on channels-last data: one rule a kind of operator.

A rule returns the call rewritten for a layout, or None when it does not apply; the operator then
gets plain inputs. Convolutions choose channels-last; everything else follows its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm_ext.graph.layout_perm import (
    Perm,
    after_drop,
    after_insert,
    channels_last,
    identity,
    reshape_layout,
)
from tvm_ext.graph.layout_values import Layouts, Value, known_shape
from tvm_ext.graph.legalise_conv_transpose import TRANSPOSED, is_ours
from tvm_ext.tvm_api import Call, ir, relax, tirx

PLAIN_DATA = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
PLAIN_KERNEL = {3: "OIW", 4: "OIHW", 5: "OIDHW"}


class Placed(NamedTuple):
    """A rewritten call and the layout of its result, or of the full-rank fields of its tuple."""

    call: relax.Expr
    perm: Perm


Rule = Callable[[Layouts, Call], "Placed | None"]


def with_attrs(call: Call, args: Sequence[relax.Expr], **changes: Any) -> Call:
    """The call on other arguments, with some of its attributes changed."""
    attrs = call.attrs
    if changes:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = ir.make_node(info.type_key, **{**fields, **changes})
    return Call(call.op, list(args), attrs, call.ty_args)


def is_plain_conv(call: Call) -> bool:
    """True for a convolution of NCHW data (or NCW, NCDHW) that can run channels-last."""
    rank = getattr(call.ty, "ndim", -1)
    if rank not in PLAIN_DATA:
        return False
    plain = call.attrs.data_layout == call.attrs.out_layout == PLAIN_DATA[rank]
    if call.op.name in TRANSPOSED:
        return plain and is_ours(call)
    return plain and call.attrs.kernel_layout == PLAIN_KERNEL[rank]


def conv(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: conv(x, w) -> conv(x in NHWC, w in OHWI), whatever the groups and strides."""
    values = [layouts.value(arg) for arg in call.args]
    if None in values or not is_plain_conv(call):
        return None
    last = channels_last(call.ty.ndim)
    args = [layouts.to(value, last) for value in values if value is not None]
    data, kernel = _letters(PLAIN_DATA, last), _letters(PLAIN_KERNEL, last)
    changes = {"data_layout": data, "kernel_layout": kernel, "out_layout": data}
    return Placed(with_attrs(call, args, **changes), last)


def conv_transpose(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: conv_transpose(x, w) -> conv_transpose(x in NHWC, w), if `Legalise` has a rule."""
    data = layouts.value(call.args[0])
    if data is None or not is_plain_conv(call):
        return None
    last = channels_last(data.rank)
    letters = _letters(PLAIN_DATA, last)
    args = [layouts.to(data, last), call.args[1]]
    return Placed(with_attrs(call, args, data_layout=letters, out_layout=letters), last)


def pool(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: pool(x, NCHW) -> pool(x, layout of x), in any order of the axes."""
    data = _leading(layouts, call)
    attrs = call.attrs
    if data is None or not attrs.layout == attrs.out_layout == PLAIN_DATA.get(data.rank):
        return None
    layout = _letters(PLAIN_DATA, data.perm)
    args = [layouts.to(data, data.perm)]
    return Placed(with_attrs(call, args, layout=layout, out_layout=layout), data.perm)


def resize(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: resize2d(x, NCHW) -> resize2d(x, NHWC), the only other order TVM knows."""
    data = _leading(layouts, call)
    if data is None or call.attrs.layout != PLAIN_DATA.get(data.rank):
        return None
    last = channels_last(data.rank)
    args = [layouts.to(data, last), *map(layouts.plain, call.args[1:])]
    return Placed(with_attrs(call, args, layout=_letters(PLAIN_DATA, last)), last)


def elementwise(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: f(x, y, ...) with numpy broadcasting -> the same on the layout of the largest."""
    values = [layouts.value(arg) for arg in call.args]
    rank = getattr(call.ty, "ndim", -1)
    perm = _majority([value for value in values if value is not None and value.rank == rank])
    if perm is None:
        return None
    if any(value is not None and value.shape is None and value.rank != rank for value in values):
        return None
    args = [
        layouts.plain(arg) if value is None else layouts.broadcast(value, perm)
        for arg, value in zip(call.args, values, strict=True)
    ]
    return Placed(with_attrs(call, args), perm)


def broadcast_to(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: broadcast_to(x, shape) -> broadcast_to(x, permuted shape), ranks being equal."""
    data = _leading(layouts, call)
    shape = known_shape(call.ty)
    if data is None or shape is None or len(shape) != data.rank:
        return None
    target = relax.ShapeExpr([shape[axis] for axis in data.perm])
    return Placed(with_attrs(call, [layouts.to(data, data.perm), target]), data.perm)


def call_tir(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: call_tir(f, (x, ...)) -> call_tir(f on permuted buffers, ...), f data-moving.

    Importers lower some operators themselves (ONNX Clip and Pad arrive in this form).
    """
    rank = getattr(call.ty, "ndim", -1)
    values = layouts.fields(call.args[1])
    shape = known_shape(call.ty)
    if values is None or shape is None or len(call.args) != 2:
        return None
    perm = _majority([value for value in values if value.rank == rank])
    program = None if perm is None else layouts.permuted_program(call.args[0], perm)
    if perm is None or program is None:
        return None
    args = [layouts.to(v, perm if v.rank == rank else identity(v.rank)) for v in values]
    out = relax.TensorType([shape[axis] for axis in perm], call.ty.dtype)
    return Placed(relax.call_tir(program, args, out), perm)


def concat(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: concat((x, y, ...), axis) -> the same on the layout of the largest."""
    values = layouts.fields(call.args[0])
    perm = _majority(values or [])
    if values is None or perm is None or call.attrs.axis is None:
        return None
    fields = relax.Tuple([layouts.to(value, perm) for value in values])
    return Placed(with_attrs(call, [fields], axis=_at(perm, call.attrs.axis)), perm)


def stack(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: stack((x, y, ...), axis) -> the same, the new axis before the one it preceded."""
    values = layouts.fields(call.args[0])
    perm = _majority(values or [])
    if values is None or perm is None:
        return None
    fields = relax.Tuple([layouts.to(value, perm) for value in values])
    axis = call.attrs.axis % (len(perm) + 1)
    place = perm.index(axis) if axis < len(perm) else axis
    return Placed(with_attrs(call, [fields], axis=place), after_insert(perm, axis, place))


def along_axis(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: f(x, axis) -> f(x, the place of that axis); further inputs are per-axis vectors."""
    data = _leading(layouts, call)
    if data is None or call.attrs.axis is None:
        return None
    args = [layouts.to(data, data.perm), *map(layouts.plain, call.args[1:])]
    return Placed(with_attrs(call, args, axis=_at(data.perm, call.attrs.axis)), data.perm)


def normalise(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: layer_norm, group_norm, instance_norm with `axes` (and `channel_axis`).

    Scale and shift of several axes are permuted as these axes are. TVM lowers rms_norm over
    trailing axes only, so that operator has no rule.
    """
    data = _leading(layouts, call)
    if data is None:
        return None
    places = [_at(data.perm, axis) for axis in call.attrs.axes]
    order = tuple(sorted(range(len(places)), key=lambda i: places[i]))
    changes: dict[str, Any] = {"axes": [places[i] for i in order]}
    if hasattr(call.attrs, "channel_axis"):
        changes["channel_axis"] = _at(data.perm, call.attrs.channel_axis)
    args = [layouts.to(data, data.perm)]
    for arg in call.args[1:]:
        value = layouts.value(arg)
        multi = value is not None and value.rank == len(order)
        args.append(layouts.to(value, order) if value and multi else layouts.plain(arg))
    return Placed(with_attrs(call, args, **changes), data.perm)


def reduce(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: sum(x, axes) -> sum(x, the places of these axes); what is left keeps its order."""
    data = _leading(layouts, call)
    if data is None:
        return None
    axes = call.attrs.axis
    over_all = axes is None
    gone = set(range(data.rank)) if over_all else {axis % data.rank for axis in axes}
    changes = {} if over_all else {"axis": sorted(_at(data.perm, axis) for axis in gone)}
    perm = data.perm if call.attrs.keepdims else after_drop(data.perm, gone)
    return Placed(with_attrs(call, [layouts.to(data, data.perm)], **changes), perm)


def arg_reduce(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: argmax(x, axis); over all axes the answer depends on the layout, so not that."""
    data = _leading(layouts, call)
    axis = call.attrs.axis
    if data is None or axis is None:
        return None
    perm = data.perm if call.attrs.keepdims else after_drop(data.perm, {axis % data.rank})
    args = [layouts.to(data, data.perm)]
    return Placed(with_attrs(call, args, axis=_at(data.perm, axis)), perm)


def pad(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: pad(x, widths) -> pad(x, widths in the order of its axes), in every mode."""
    data = _leading(layouts, call)
    if data is None:
        return None
    widths = call.attrs.pad_width
    moved = [widths[2 * axis + side] for axis in data.perm for side in (0, 1)]
    return Placed(with_attrs(call, [layouts.to(data, data.perm)], pad_width=moved), data.perm)


def strided_slice(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: strided_slice(x, axes, ...) -> strided_slice(x, the places of these axes, ...)."""
    data = _leading(layouts, call)
    if data is None or not isinstance(call.args[1], relax.Tuple):
        return None
    axes = [tirx.IntImm("int64", _at(data.perm, int(axis))) for axis in call.args[1].fields]
    args = [layouts.to(data, data.perm), relax.Tuple(axes), *map(layouts.plain, call.args[2:])]
    return Placed(with_attrs(call, args), data.perm)


def reshape(layouts: Layouts, call: Call) -> Placed | None:
    """rewrite: reshape, squeeze, expand_dims, flatten -> one reshape of the data as it lies.

    Axes that merge are first brought together, which moves data only if they lie apart.
    """
    data = _leading(layouts, call)
    if data is None:
        return None
    old, new = data.shape, known_shape(call.ty)
    plan = None if old is None or new is None else reshape_layout(data.perm, old, new)
    if plan is None or new is None:
        return None
    before, after = plan
    source = layouts.to(data, before)
    return Placed(relax.op.reshape(source, [new[axis] for axis in after]), after)


def _leading(layouts: Layouts, call: Call) -> Value | None:
    """The first argument, if it is a tensor that prefers a layout of its own."""
    value = layouts.value(call.args[0])
    return None if value is None or value.is_plain else value


def _majority(values: Sequence[Value]) -> Perm | None:
    """The layout most of the data is in; None where that is the plain one."""
    moving = [value for value in values if not value.is_constant]
    if not moving:
        return None
    largest = max(moving, key=lambda value: (value.static_size, not value.is_plain))
    return None if largest.is_plain else largest.perm


def _at(perm: Perm, axis: int) -> int:
    """Where an axis of the model's tensor, possibly negative, lies in memory."""
    return perm.index(axis % len(perm))


def _letters(plain: dict[int, str], perm: Perm) -> str:
    return "".join(plain[len(perm)][axis] for axis in perm)


def _table() -> dict[str, Rule]:
    kinds: dict[Rule, str] = {
        conv: "nn.conv1d nn.conv2d nn.conv3d",
        conv_transpose: "nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose",
        pool: "nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d "
        "nn.avg_pool3d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d",
        resize: "image.resize2d image.resize3d",
        elementwise: "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp floor "
        "isfinite isinf isnan log logical_not negative round rsqrt sigmoid sign sin sinh sqrt "
        "square tan tanh trunc astype clip nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.selu "
        "nn.silu nn.softplus add atan2 bitwise_and bitwise_or bitwise_xor divide equal "
        "floor_divide floor_mod greater greater_equal left_shift less less_equal log_add_exp "
        "logical_and logical_or logical_xor maximum minimum mod multiply not_equal power "
        "right_shift subtract where ewise_fma",
        broadcast_to: "broadcast_to",
        call_tir: "call_tir",
        concat: "concat",
        stack: "stack",
        along_axis: "split nn.softmax nn.log_softmax nn.prelu nn.batch_norm quantize dequantize "
        "cumsum cumprod flip",
        normalise: "nn.layer_norm nn.group_norm nn.instance_norm",
        reduce: "sum mean max min prod variance std",
        arg_reduce: "argmax argmin",
        pad: "nn.pad",
        strided_slice: "strided_slice",
        reshape: "reshape squeeze expand_dims flatten nn.batch_flatten",
    }
    return {f"relax.{name}": rule for rule, names in kinds.items() for name in names.split()}


RULES: dict[str, Rule] = _table()
"""Operator name to rule. An operator that is not here gets plain inputs."""
