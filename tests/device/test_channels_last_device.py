"""ChannelsLast on the CPU: a converted network computes what the original computes."""

from __future__ import annotations

import numpy as np
import pytest
from channels_last_modules import branch, module
from tvm_ffi import structural_equal

from tvm_ext.graph.channels_last import ChannelsLast
from tvm_ext.tvm_api import Target, relax, te, topi, tvm

op, nn = relax.op, relax.op.nn
RNG = np.random.default_rng(0)


def const(*shape, positive=False):
    data = (RNG.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype("float32")
    return relax.const(np.abs(data) + 0.5 if positive else data, "float32")


def conv(x, out, cin=6, kernel=3, **attrs):
    groups = attrs.get("groups", 1)
    spatial = {3: 1, 4: 2, 5: 3}[x.ty.ndim] if hasattr(x.ty, "ndim") and x.ty.ndim > 0 else 2
    function = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}[spatial]
    return function(x, const(out, cin // groups, *[kernel] * spatial), **attrs)


def run(mod, inputs):
    executable = tvm.compile(mod, target=Target({"kind": "llvm", "opt-level": 0}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(x) for x in inputs])
    outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [output.numpy() for output in outputs]


def assert_same_numbers(mod):
    converted = ChannelsLast()(mod)
    assert not structural_equal(converted, mod)
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    inputs = [RNG.standard_normal(shape).astype("float32") for shape in shapes]
    for ours, reference in zip(run(converted, inputs), run(mod, inputs), strict=True):
        assert ours.shape == reference.shape
        # a sum of terms of size one that nearly cancels is still rounded like its terms
        atol = max(1e-5 * np.abs(reference).max(), 1e-7)
        np.testing.assert_allclose(ours, reference, rtol=0, atol=atol)


X4 = (2, 6, 9, 7)
CONVOLUTIONS = {
    "conv1d": ((2, 6, 11), {"padding": (2, 1), "strides": 2, "dilation": 2}),
    "conv2d": (X4, {"padding": (1, 1)}),
    "conv2d_strided_asymmetric": (X4, {"padding": (0, 2, 1, 0), "strides": (2, 1)}),
    "conv2d_dilated": (X4, {"padding": 2, "dilation": 2}),
    "conv2d_grouped": (X4, {"padding": 1, "groups": 3}),
    "conv2d_depthwise": (X4, {"padding": 1, "groups": 6}),
    "conv3d": ((1, 6, 5, 6, 4), {"padding": (1, 0, 1, 0, 1, 1)}),
    "conv3d_grouped": ((1, 6, 5, 6, 4), {"groups": 2, "strides": (1, 2, 1)}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    shape, attrs = CONVOLUTIONS[name]
    assert_same_numbers(module(lambda b, x: nn.relu(conv(x, 12, **attrs)), shape))


def test_weights_as_inputs():
    mod = module(lambda b, x, w: nn.conv2d(x, w, groups=2), X4, (4, 3, 3, 3))
    assert_same_numbers(mod)


def test_transposed_convolution_between_convolutions():
    def build(b, x):
        y = b.emit(conv(x, 4, padding=1))
        y = b.emit(nn.conv2d_transpose(y, const(4, 6, 2, 2), strides=(2, 2)))
        return conv(y, 5)

    assert_same_numbers(module(build, X4))


FOLLOWERS = {
    "max_pool": lambda b, x: nn.max_pool2d(x, (3, 2), strides=(2, 1), padding=(1, 0, 1, 1)),
    "avg_pool": lambda b, x: nn.avg_pool2d(x, 3, strides=2, padding=1, ceil_mode=True),
    "avg_pool_with_padding": lambda b, x: nn.avg_pool2d(x, 3, padding=1, count_include_pad=True),
    "adaptive_avg_pool": lambda b, x: nn.adaptive_avg_pool2d(x, (3, 2)),
    "lrn": lambda b, x: op.squeeze(
        nn.avg_pool3d(op.expand_dims(x, 1), (3, 1, 1), padding=(1, 0, 0, 1, 0, 0)), 1
    ),
    "resize": lambda b, x: op.image.resize2d(x, (13, 10), layout="NCHW", method="linear"),
    "unary": lambda b, x: op.tanh(nn.silu(nn.leakyrelu(op.clip(x, -1.5, 2.0), 0.1))),
    "astype": lambda b, x: op.astype(op.astype(op.multiply(x, const()), "int32"), "float32"),
    "add_scalar": lambda b, x: op.add(x, const()),
    "add_channel_constant": lambda b, x: op.add(const(8, 1, 1), op.add(x, const(1, 8, 1, 1))),
    "add_row_constant": lambda b, x: op.multiply(x, const(7)),
    "add_full_constant": lambda b, x: op.subtract(const(8, 9, 7), x),
    "residual": lambda b, x: op.add(x, conv(nn.relu(x), 8, cin=8, padding=1)),
    "gate": lambda b, x: op.multiply(x, op.sigmoid(op.mean(x, [2, 3], keepdims=True))),
    "where": lambda b, x: op.where(op.greater(x, const()), x, op.multiply(x, const(8, 1, 1))),
    "broadcast_to": lambda b, x: op.broadcast_to(op.sum(x, [1, 3], keepdims=True), (2, 8, 9, 7)),
    "concat": lambda b, x: op.concat([x, nn.relu(x), const(2, 3, 9, 7)], axis=1),
    "concat_negative_axis": lambda b, x: op.concat([x, nn.relu(x)], axis=-1),
    "stack_and_sum": lambda b, x: op.sum(op.stack([x, nn.relu(x)], axis=0), axis=[0]),
    "stack_last": lambda b, x: op.stack([x, nn.relu(x)], axis=-1),
    "slice": lambda b, x: op.strided_slice(x, [1, -1], [1, 6], [8, -8], [2, -2]),
    "pad": lambda b, x: nn.pad(x, (0, 0, 1, 2, 0, 3, 2, 1), pad_value=0.5),
    "pad_reflect": lambda b, x: nn.pad(x, (0, 0, 0, 0, 2, 1, 1, 2), pad_mode="reflect"),
    "prelu": lambda b, x: nn.prelu(x, const(8), axis=1),
    "softmax": lambda b, x: nn.softmax(x, axis=1),
    "log_softmax": lambda b, x: nn.log_softmax(x, axis=-1),
    "cumsum": lambda b, x: op.cumsum(x, axis=1),
    "flip": lambda b, x: op.flip(x, axis=2),
    "quantise": lambda b, x: op.dequantize(
        op.quantize(
            x, const(8, positive=True), relax.const(np.zeros(8, "int8")), axis=1, out_dtype="int8"
        ),
        const(8, positive=True),
        relax.const(np.zeros(8, "int8")),
        axis=1,
    ),
    "layer_norm_channels": lambda b, x: nn.layer_norm(x, const(8), const(8), axes=[1]),
    "layer_norm_all": lambda b, x: nn.layer_norm(x, const(8, 9, 7), const(8, 9, 7), axes=[1, 2, 3]),
    "layer_norm_rows": lambda b, x: nn.layer_norm(x, const(8, 7), const(8, 7), axes=[1, 3]),
    "rms_norm_has_no_rule": lambda b, x: nn.rms_norm(x, const(7), axes=[3]),
    "group_norm": lambda b, x: nn.group_norm(
        x, const(8), const(8), num_groups=4, channel_axis=1, axes=[2, 3]
    ),
    "instance_norm": lambda b, x: nn.instance_norm(
        x, const(8), const(8), channel_axis=1, axes=[2, 3]
    ),
    "mean_all": lambda b, x: op.mean(x),
    "sum_rows": lambda b, x: op.sum(x, [2]),
    "max_channels": lambda b, x: op.max(x, [1]),
    "variance": lambda b, x: op.variance(x, [-1, 1], keepdims=True),
    "argmax": lambda b, x: op.astype(op.argmax(x, 1), "float32"),
    "argmax_flat": lambda b, x: op.astype(op.argmax(x), "float32"),
    "flatten": lambda b, x: op.flatten(op.reshape(x, (2, 8, 63))),
    "flatten_of_pooled": lambda b, x: op.reshape(op.mean(x, [2, 3], keepdims=True), (2, 8)),
    "tokens": lambda b, x: op.permute_dims(op.reshape(x, (2, 8, 63)), [0, 2, 1]),
    "permute": lambda b, x: op.permute_dims(op.permute_dims(nn.relu(x), [0, 2, 3, 1])),
    "shuffle": lambda b, x: op.reshape(
        op.permute_dims(op.reshape(x, (2, 4, 2, 9, 7)), [0, 2, 1, 3, 4]), (2, 8, 9, 7)
    ),
    "depth_to_space": lambda b, x: op.reshape(
        op.permute_dims(op.reshape(x, (2, 2, 2, 2, 9, 7)), [0, 3, 4, 1, 5, 2]), (2, 2, 18, 14)
    ),
    "tile_has_no_rule": lambda b, x: op.tile(x, (1, 2, 1, 1)),
    "lowered_clip": lambda b, x: b.call_te(topi.maximum, x, const(8, 1, 1)),
    "lowered_pad": lambda b, x: b.call_te(topi.nn.pad, x, (0, 1, 2, 0), (0, 0, 1, 3)),
    "lowered_mirror_pad": lambda b, x: b.call_te(
        topi.nn.mirror_pad, x, (0, 0, 2, 1), (0, 0, 1, 2), "REFLECT"
    ),
    "lowered_reduction_has_no_rule": lambda b, x: b.call_te(
        lambda t: te.compute(t.shape, lambda *i: t(*i)) + topi.sum(t, 1, keepdims=True), x
    ),
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_followers_between_convolutions(name):
    """conv, operator, and another convolution of whatever comes out if it is an image."""

    def build(b, x):
        y = b.emit(FOLLOWERS[name](b, b.emit(conv(x, 8, padding=1))))
        if y.ty.ndim != 4:
            return y
        return relax.Tuple([y, b.emit(conv(y, 3, cin=int(y.ty.shape[1]), kernel=1))])

    assert_same_numbers(module(build, X4))


def test_one_and_three_spatial_axes_follow_too():
    def one(b, x):
        y = b.emit(conv(x, 8))
        y = b.emit(nn.max_pool1d(op.add(y, const(8, 1)), 2, strides=2))
        return nn.avg_pool1d(nn.adaptive_avg_pool1d(y, 4), 2)

    def three(b, x):
        y = b.emit(conv(x, 8, padding=1))
        y = b.emit(nn.max_pool3d(op.add(y, const(8, 1, 1, 1)), 2, strides=2))
        return nn.adaptive_avg_pool3d(nn.avg_pool3d(y, 2, padding=1), 2)

    assert_same_numbers(module(one, (2, 6, 23)))
    assert_same_numbers(module(three, (1, 6, 6, 5, 7)))


@pytest.mark.parametrize("shape", [(2, 8, 9, 7), (8, 1, 1), (9, 1), (2, 1, 9, 1), ()])
def test_operands_that_are_inputs_broadcast(shape):
    assert_same_numbers(module(lambda b, x, y: op.add(conv(x, 8, padding=1), op.exp(y)), X4, shape))


@pytest.mark.parametrize("dataflow", [True, False])
def test_tuples(dataflow):
    def build(b, x):
        parts = b.emit(op.split(conv(x, 8, padding=1), [2, 5], axis=1))
        y = b.emit(op.concat([parts[2], parts[0]], axis=1))
        normal = b.emit(
            nn.batch_norm(y, const(5), const(5), const(5), const(5, positive=True), axis=1)
        )
        return relax.Tuple([normal[0], parts[1], op.concat(parts, axis=2 - 1), normal[2]])

    assert_same_numbers(module(build, X4, dataflow=dataflow))


def test_if_takes_and_gives_plain_values():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X4, "float32"))

    shape = (2, 6, 9, 7)
    with builder.function("main", [x]):
        y = builder.emit(conv(x, 6, padding=1))
        condition = builder.emit(op.greater(op.mean(y), const()))
        chosen = builder.emit(
            relax.If(condition, branch(nn.relu(y), shape), branch(op.negative(y), shape))
        )
        builder.emit_func_output(builder.emit(conv(chosen, 4, padding=1)))
    assert_same_numbers(builder.finalize())


@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed):
    """Chains with skip connections of operators drawn at random, all on one image size."""
    rng = np.random.default_rng(seed)
    steps = [
        lambda b, x, y: conv(x, 8, cin=8, padding=1, groups=int(rng.choice([1, 2, 8]))),
        lambda b, x, y: op.add(x, y),
        lambda b, x, y: op.multiply(x, op.sigmoid(op.mean(y, [2, 3], keepdims=True))),
        lambda b, x, y: nn.max_pool2d(x, 3, padding=1),
        lambda b, x, y: FOLLOWERS["shuffle"](b, x),
        lambda b, x, y: nn.softmax(op.add(x, const(8, 1, 1)), axis=int(rng.integers(1, 4))),
        lambda b, x, y: op.strided_slice(op.concat([x, y], 1), [1], [3], [11]),
        lambda b, x, y: op.permute_dims(op.permute_dims(x, [0, 2, 3, 1]), [0, 3, 1, 2]),
        lambda b, x, y: op.matmul(x, const(7, 7)),
        lambda b, x, y: op.flip(x, axis=1),
        lambda b, x, y: op.reshape(op.reshape(x, (2, 8, 63)), (2, 8, 9, 7)),
    ]

    def build(b, x):
        values = [b.emit(conv(x, 8, padding=1))]
        for index in rng.integers(len(steps), size=12):
            values.append(b.emit(steps[index](b, values[-1], values[rng.integers(len(values))])))
        return relax.Tuple([values[-1], values[rng.integers(len(values))]])

    assert_same_numbers(module(build, X4))
