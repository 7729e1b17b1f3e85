"""ChannelsLast on the IR: what is converted, what is not, and how many permutations remain."""

from __future__ import annotations

import numpy as np
import pytest
from channels_last_modules import (
    BORDERS,
    FIRST,
    LAST,
    SHAPE,
    calls,
    const,
    conv,
    converted,
    module,
)

from tvm_ext.graph.channels_last import ALL_CONVOLUTIONS, ChannelsLast
from tvm_ext.tvm_api import relax, tirx, topi, tvm

op, nn = relax.op, relax.op.nn


def test_convolution_bias_and_relu():
    def before(b, x):
        y = b.emit(conv(x, groups=2, cin=3, strides=2, padding=(0, 1, 2, 3)))
        return nn.relu(b.emit(op.add(y, const(1, 8, 1, 1))))

    def after(b, x):
        x = b.emit(op.permute_dims(x, LAST))
        weight = relax.const(np.arange(24, dtype="float32").reshape(8, 1, 1, 3), "float32")
        y = nn.conv2d(
            x,
            weight,
            groups=2,
            strides=2,
            padding=(0, 1, 2, 3),
            data_layout="NHWC",
            kernel_layout="OHWI",
        )
        bias = relax.const(np.arange(8, dtype="float32").reshape(1, 1, 1, 8), "float32")
        return op.permute_dims(b.emit(nn.relu(b.emit(op.add(b.emit(y), bias)))), FIRST)

    tvm.ir.assert_structural_equal(converted(module(before, SHAPE)), module(after, SHAPE))


def test_weights_are_permuted_at_compile_time_and_only_once():
    weight = const(6, 6, 3, 3)

    def build(b, x):
        return nn.conv2d(b.emit(nn.conv2d(x, weight, padding=1)), weight, padding=1)

    first, second = (call.args[1] for call in calls(converted(module(build, SHAPE)), "nn.conv2d"))
    assert first.same_as(second)
    expected = weight.value.numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(first.value.numpy(), expected)


def test_int64_constants_keep_their_type():
    indices = relax.const(np.arange(8, dtype="int64").reshape(1, 8, 1, 1), "int64")

    def build(b, x):
        return op.add(op.astype(conv(x), "int64"), indices)

    (add,) = calls(converted(module(build, SHAPE)), "add")
    assert add.args[1].value.dtype == "int64"
    assert [int(extent) for extent in add.args[1].ty.shape] == [1, 1, 1, 8]


CASES = {
    "max_pool": (lambda b, x: nn.max_pool2d(x, 2), BORDERS),
    "adaptive_avg_pool": (lambda b, x: nn.adaptive_avg_pool2d(x, 3), BORDERS),
    "resize": (lambda b, x: op.image.resize2d(x, (5, 5), layout="NCHW"), BORDERS),
    "unary": (lambda b, x: op.exp(nn.leakyrelu(op.clip(x, 0, 6))), BORDERS),
    "vector_constant": (lambda b, x: op.add(op.multiply(const(8, 1, 1), x), const()), BORDERS),
    "folded_reshape": (lambda b, x: op.add(x, op.reshape(const(8), (1, 8, 1, 1))), BORDERS),
    "residual": (lambda b, x: op.add(x, conv(nn.relu(x), cin=8)), BORDERS),
    "gate": (lambda b, x: op.multiply(x, op.mean(x, [2, 3], keepdims=True)), BORDERS),
    "where": (lambda b, x: op.where(op.less(x, const()), x, const(8, 1, 1)), BORDERS),
    "concat_slice_pad": (
        lambda b, x: nn.pad(
            op.strided_slice(op.concat([x, x], 1), [1], [2], [9]), (0, 0, 0, 1, 1, 1, 1, 1)
        ),
        BORDERS,
    ),
    "split": (lambda b, x: op.concat(list(b.emit(op.split(x, 2, 1))), 1), BORDERS),
    "batch_norm": (
        lambda b, x: nn.batch_norm(x, const(8), const(8), const(8), const(8), axis=1)[0],
        BORDERS,
    ),
    "group_norm": (
        lambda b, x: nn.group_norm(x, const(8), const(8), 2, channel_axis=1, axes=[2, 3]),
        BORDERS,
    ),
    "softmax": (lambda b, x: nn.softmax(x, 1), BORDERS),
    "lrn": (
        lambda b, x: op.squeeze(nn.avg_pool3d(op.expand_dims(x, 1), (3, 1, 1)), [1]),
        BORDERS,
    ),
    "sum_of_stack": (lambda b, x: op.sum(op.stack([x, x], 0), [0]), BORDERS),
    "depth_to_space": (
        lambda b, x: op.reshape(
            op.permute_dims(op.reshape(x, (2, 2, 2, 2, 9, 7)), [0, 3, 4, 1, 5, 2]), (2, 2, 18, 14)
        ),
        BORDERS + 1,
    ),
    "shuffle": (
        lambda b, x: op.reshape(
            op.permute_dims(op.reshape(x, (2, 4, 2, 9, 7)), [0, 2, 1, 3, 4]), (2, 8, 9, 7)
        ),
        BORDERS + 1,
    ),
    "global_pool": (lambda b, x: op.mean(x, [2, 3]), 1),
    "flatten_of_pooled": (lambda b, x: op.reshape(op.mean(x, [2, 3], keepdims=True), (2, 8)), 1),
    "squeeze_of_pooled": (lambda b, x: op.squeeze(op.mean(x, [2, 3], keepdims=True), [2, 3]), 1),
    "tokens": (lambda b, x: op.permute_dims(op.reshape(x, (2, 8, 63)), [0, 2, 1]), 1),
    "nhwc_requested": (lambda b, x: op.permute_dims(x, LAST), 1),
    "nhwc_and_back": (lambda b, x: conv(op.permute_dims(op.permute_dims(x, LAST), FIRST), 3, 8), 2),
    "flatten_of_image": (lambda b, x: op.reshape(x, (2, 504)), BORDERS),
    "argmax_of_all": (lambda b, x: op.argmax(x), BORDERS),
    "no_rule": (lambda b, x: op.tile(x, (1, 2, 1, 1)), BORDERS),
    "no_rule_between": (lambda b, x: conv(op.matmul(x, const(7, 7)), 3, 8), BORDERS + 2),
}


@pytest.mark.parametrize("name", CASES)
def test_permutations_that_remain(name):
    """A convolution, then the case: one permutation in, and one out where an image comes out."""
    build, expected = CASES[name]
    result = converted(module(lambda b, x: build(b, b.emit(conv(x))), SHAPE))
    assert len(calls(result, "permute_dims")) == expected


def test_a_value_is_converted_once_for_all_its_users():
    def build(b, x):
        return relax.Tuple([conv(x), conv(x, 4), op.permute_dims(x, LAST)])

    assert len(calls(converted(module(build, SHAPE)), "permute_dims")) == 3


def test_an_input_of_a_convolution_prefers_its_layout_from_then_on():
    def build(b, x):
        return op.add(conv(x, 6), nn.relu(x))

    assert len(calls(converted(module(build, SHAPE)), "permute_dims")) == BORDERS


def test_nhwc_input_loses_its_transpose():
    def build(b, x):
        return nn.relu(conv(op.permute_dims(x, FIRST)))

    result = converted(module(build, (2, 9, 7, 6)))
    (only,) = calls(result, "permute_dims")
    assert list(only.attrs.axes) == FIRST


def test_transposed_matmul_operands_stay_as_they_are():
    def build(b, x, q, k):
        product = op.matmul(q, b.emit(op.multiply(op.permute_dims(k, [0, 2, 1, 3]), const())))
        return relax.Tuple([conv(x), product])

    result = converted(module(build, SHAPE, (1, 2, 3, 4), (1, 4, 2, 5)))
    permutations = [list(call.attrs.axes) for call in calls(result, "permute_dims")]
    assert sorted(permutations) == [[0, 2, 1, 3], LAST, FIRST]


def test_moving_only_extents_of_one_is_a_reshape():
    result = converted(module(lambda b, x: nn.relu(conv(x, cin=1)), (4, 1, 9, 7)))
    assert len(calls(result, "permute_dims")) == 1
    assert len(calls(result, "reshape")) == 1


def test_lowered_operators_are_permuted_and_their_programs_replaced():
    def build(b, x):
        y = b.emit(conv(x))
        y = b.emit(b.call_te(topi.maximum, y, const()))
        return b.call_te(topi.nn.pad, y, (0, 0, 1, 1), (0, 0, 2, 2))

    mod = module(build, SHAPE)
    result = converted(mod)
    assert len(calls(result, "permute_dims")) == BORDERS
    assert len(result.functions) == len(mod.functions)


def test_lowered_operators_that_reduce_stay():
    def build(b, x):
        return b.call_te(topi.nn.softmax, b.emit(conv(x)), 1)

    mod = module(build, SHAPE)
    result = converted(mod)
    tvm.ir.assert_structural_equal(result["softmax"], mod["softmax"])
    assert len(calls(result, "permute_dims")) == BORDERS


def test_lowered_operators_that_never_read_an_input_stay():
    def build(b, x):
        return b.call_te(topi.full_like, b.emit(conv(x)), 1.0)

    assert len(calls(converted(module(build, SHAPE)), "permute_dims")) == BORDERS


def test_a_lowered_operator_that_others_still_call_is_kept():
    def build(b, x):
        double = b.call_te(lambda t: topi.add(t, t), x)
        y = b.emit(conv(b.emit(double), 6))
        return b.emit(relax.call_tir(double.args[0], [y], x.ty))

    mod = module(build, SHAPE)
    result = converted(mod)
    names = {name.name_hint for name in mod.get_global_vars()}
    assert names < {name.name_hint for name in result.get_global_vars()}


UNCHANGED = {
    "no_convolution": lambda b, x: nn.softmax(
        op.permute_dims(op.permute_dims(nn.max_pool2d(x, 2), LAST), FIRST), 1
    ),
    "transposed_convolution_only": lambda b, x: nn.conv2d_transpose(x, const(6, 4, 2, 2)),
    "convolution_in_nhwc": lambda b, x: nn.conv2d(
        x, const(3, 1, 1, 7), data_layout="NHWC", kernel_layout="OHWI"
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_modules_without_a_plain_convolution_are_unchanged(name):
    mod = module(UNCHANGED[name], SHAPE)
    tvm.ir.assert_structural_equal(ChannelsLast()(mod), mod)


def test_functions_grouped_for_a_back_end_are_unchanged():
    mod = module(lambda b, x: conv(x), SHAPE, Composite="backend.conv2d")
    tvm.ir.assert_structural_equal(ChannelsLast()(mod), mod)


def test_option_names_the_convolutions_to_convert():
    mod = module(lambda b, x: conv(x), SHAPE)
    only_3d = ChannelsLast(convolutions=("relax.nn.conv3d",))
    tvm.ir.assert_structural_equal(only_3d(mod), mod)


def test_runs_in_a_sequence_and_says_its_name():
    sequence = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), ChannelsLast(), relax.transform.LegalizeOps()]
    )
    assert ChannelsLast().info.name == "ChannelsLast"
    result = sequence(module(lambda b, x: conv(x), SHAPE))
    assert len(calls(result, "call_tir")) == 3


def test_weights_that_are_inputs_are_permuted_where_they_are_used():
    result = converted(module(lambda b, x, w: nn.conv2d(x, w), SHAPE, (4, 6, 3, 3)))
    assert len(calls(result, "permute_dims")) == 3


def test_symbolic_batch():
    batch = tirx.Var("n", "int64")

    def build(b, x):
        y = b.emit(op.permute_dims(op.reshape(conv(x), (batch, 4, 2, 9, 7)), [0, 2, 1, 3, 4]))
        return op.mean(op.reshape(y, (batch, 8, 9, 7)), [2, 3])

    assert len(calls(converted(module(build, (batch, 6, 9, 7))), "permute_dims")) == 2


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_where_they_are_asked_for(groups):
    def before(b, x):
        weight = const(6, 8 // groups, 2, 2)
        y = b.emit(nn.conv2d_transpose(x, weight, strides=(2, 2), groups=groups))
        return nn.relu(y)

    result = ChannelsLast(ALL_CONVOLUTIONS)(module(before, SHAPE))
    relax.analysis.well_formed(result)
    (call,) = calls(result, "nn.conv2d_transpose")
    assert (call.attrs.data_layout, call.attrs.kernel_layout) == ("NHWC", "IOHW")
    assert len(calls(result, "permute_dims")) == 2


@pytest.mark.parametrize(
    ("channels", "lanes", "layout"),
    [(2, 16, "NCHW"), (2, 0, "NHWC"), (2, 2, "NHWC"), (6, 16, "NHWC")],
)
def test_a_convolution_of_planes_to_few_channels_stays(channels, lanes, layout):
    """Not without a vector's width, nor where vectors are short, nor to more channels than it reads
    or than half a vector."""

    def before(b, x):
        return nn.conv2d(x, const(channels, 4, 3, 3), padding=1)

    result = ChannelsLast(lanes=lanes)(module(before, (1, 4, 8, 16)))
    (call,) = calls(result, "nn.conv2d")
    assert str(call.attrs.data_layout) == layout


def test_a_convolution_to_few_channels_follows_its_data():
    """rewrite: conv(conv(x)) -> both channels last, for the first one writes so."""

    def before(b, x):
        y = b.emit(nn.conv2d(x, const(32, 4, 3, 3), padding=1))
        return nn.conv2d(y, const(2, 32, 3, 3), padding=1)

    result = ChannelsLast(lanes=16)(module(before, (1, 4, 8, 16)))
    assert [str(call.attrs.data_layout) for call in calls(result, "nn.conv2d")] == ["NHWC"] * 2
