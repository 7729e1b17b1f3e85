"""Operators on awkward shapes: the Relax functions whose kernels `test_kernels` plans and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.tvm_api import IRModule, relax

op, nn = relax.op, relax.op.nn

Build = Callable[..., Any]


class Case(NamedTuple):
    """A Relax function as `build(emit, *inputs)`, and the shape and dtype of each input."""

    group: str
    build: Build
    inputs: tuple[tuple[tuple[int, ...], str], ...]


CASES: dict[str, Case] = {}

LEFT_TO_TVM = {
    "topk": "sorting",
    "sort": "sorting",
    "argsort": "sorting",
    "cumsum": "a scan: each element needs the one before",
    "cumprod": "a scan: each element needs the one before",
    "scatter_elements": "writes where the data says",
    "adaptive_pool": "windows of uneven size; even ones become plain pooling",
}
"""Cases whose work no plan of the picker covers, and why; in all others every stage is planned."""

_group = ""


def case(name: str, build: Build, *inputs: Any) -> None:
    """Adds a case; an input is a shape, of float32, or a (shape, dtype)."""
    assert name not in CASES, name
    typed = (i if i and isinstance(i[-1], str) else (i, "float32") for i in inputs)
    CASES[name] = Case(_group, build, tuple(typed))


def names(*groups: str) -> list[str]:
    """Names of the cases of some groups, or of all."""
    return [name for name, case in CASES.items() if not groups or case.group in groups]


def const(*shape: int, positive: bool = False) -> Any:
    """A random constant scaled so that a product with it keeps its operand's magnitude."""
    rng = np.random.default_rng(sum(shape) + len(shape))
    data = rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:], dtype=int)))
    return relax.const((np.abs(data) + 0.5 if positive else data).astype("float32"))


def module(case: Case) -> IRModule:
    """The case as a module with one function, `main`."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{place}", relax.TensorType(shape, dtype))
        for place, (shape, dtype) in enumerate(case.inputs)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(case.build(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.finalize()


def _conv(out: int, kernel: tuple[int, ...], epilogue: Build | None = None, **attrs: Any) -> Build:
    """A convolution by a constant, for inputs NC.."""
    function = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}[len(kernel)]

    def build(emit: Any, x: Any, *others: Any) -> Any:
        weight = const(out, int(x.ty.shape[1]) // attrs.get("groups", 1), *kernel)
        y = emit(function(x, weight, **attrs))
        return epilogue(emit, y, *others) if epilogue else y

    return build


def _convolutions() -> None:
    def bias_relu(emit: Any, y: Any) -> Any:
        return emit(nn.relu(emit(op.add(y, const(1, int(y.ty.shape[1]), 1, 1)))))

    case("conv2d_3x3", _conv(7, (3, 3), padding=1), (1, 5, 9, 9))
    case("conv2d_3x3_bias_relu", _conv(16, (3, 3), bias_relu, padding=1), (1, 8, 14, 14))
    case("conv2d_crop_bias_relu", _conv(17, (3, 3), bias_relu, padding=1), (1, 3, 11, 13))
    case("conv2d_1x1", _conv(33, (1, 1)), (2, 17, 7, 7))
    case("conv2d_1x1_blocks", _conv(96, (1, 1), bias_relu), (1, 32, 7, 9))
    case("conv2d_1x1_to_one", _conv(1, (1, 1)), (1, 1, 5, 5))
    case("conv2d_7x7_stride2", _conv(16, (7, 7), strides=2, padding=3), (1, 3, 23, 23))
    case("conv2d_asymmetric", _conv(8, (3, 2), strides=(2, 1), padding=(0, 2, 1, 0)), (1, 4, 9, 7))
    case("conv2d_dilated", _conv(12, (3, 3), padding=2, dilation=(2, 1)), (1, 6, 9, 10))
    case("conv2d_to_1x1", _conv(24, (5, 5)), (3, 6, 5, 5))
    case("conv2d_on_1x1", _conv(40, (1, 1), bias_relu), (1, 24, 1, 1))
    case("conv2d_batch3", _conv(32, (3, 3), padding=1), (3, 5, 6, 5))
    case("conv2d_prime", _conv(31, (3, 3), bias_relu), (1, 13, 19, 15))
    case("conv2d_grouped", _conv(12, (3, 3), padding=1, groups=3), (1, 6, 9, 8))
    case("conv2d_grouped_wide", _conv(64, (3, 3), bias_relu, padding=1, groups=2), (1, 16, 7, 7))
    case("conv2d_grouped_prime", _conv(14, (1, 3), strides=2, groups=2), (2, 10, 7, 9))
    case("conv2d_depthwise", _conv(16, (3, 3), bias_relu, padding=1, groups=16), (1, 16, 9, 9))
    case(
        "conv2d_depthwise_prime", _conv(13, (5, 5), padding=2, strides=2, groups=13), (2, 13, 9, 7)
    )
    case("conv2d_depthwise_double", _conv(12, (3, 3), groups=6), (1, 6, 8, 8))
    case(
        "conv2d_residual",
        _conv(8, (3, 3), lambda e, y, r: e(nn.relu(e(op.add(y, r)))), padding=1),
        (1, 8, 9, 7),
        (1, 8, 9, 7),
    )
    case(
        "conv2d_silu",
        _conv(20, (3, 3), lambda e, y: e(nn.silu(y)), padding=1, strides=2),
        (1, 4, 15, 15),
    )
    case(
        "conv2d_pooled",
        _conv(8, (3, 3), lambda e, y: e(nn.max_pool2d(e(nn.relu(y)), 2, strides=2)), padding=1),
        (1, 3, 10, 10),
    )
    case(
        "conv2d_weight_input",
        lambda e, x, w: e(nn.conv2d(x, w, padding=1)),
        (1, 4, 7, 7),
        (6, 4, 3, 3),
    )
    case(
        "conv2d_transpose",
        lambda e, x: e(nn.conv2d_transpose(x, const(4, 6, 3, 3), strides=(2, 2), padding=1)),
        (1, 4, 5, 7),
    )
    case("conv1d", _conv(7, (3,), padding=(2, 1), strides=2, dilation=2), (2, 6, 23))
    case("conv1d_depthwise", _conv(9, (5,), padding=2, groups=9), (1, 9, 17))
    case("conv3d", _conv(10, (3, 1, 2), padding=(1, 0, 1, 0, 1, 1)), (1, 3, 5, 6, 4))
    case("conv3d_grouped", _conv(8, (2, 2, 2), groups=2, strides=(1, 2, 1)), (1, 4, 4, 5, 5))


def _products() -> None:
    for m in (1, 7, 197):
        for n in (1, 10, 33, 1000):
            case(f"matmul_{m}x{n}", lambda e, x, n=n: e(op.matmul(x, const(37, n))), (m, 37))
    case("matmul_k1", lambda e, x: e(op.matmul(x, const(1, 24))), (5, 1))
    case("matmul_long_k", lambda e, x: e(op.matmul(x, const(1031, 40))), (3, 1031))
    case(
        "matmul_bias_gelu",
        lambda e, x: e(nn.gelu(e(op.add(e(op.matmul(x, const(32, 96))), const(96))))),
        (2, 19, 32),
    )
    case(
        "matmul_bias_crop_residual",
        lambda e, x, r: e(op.add(e(op.add(e(op.matmul(x, const(32, 19))), const(19))), r)),
        (1, 13, 32),
        (1, 13, 19),
    )
    case("matmul_4d_constant", lambda e, x: e(op.matmul(x, const(8, 12))), (2, 3, 5, 8))
    case("matmul_vector", lambda e, x: e(op.matmul(x, const(8, 12))), (8,))
    case("matmul_batched", lambda e, x, y: e(op.matmul(x, y)), (2, 3, 7, 16), (2, 3, 16, 11))
    case("matmul_broadcast", lambda e, x, y: e(op.matmul(x, y)), (4, 1, 5, 8), (3, 8, 24))
    case("matmul_matrices", lambda e, x, y: e(op.matmul(x, y)), (19, 23), (23, 48))
    case("matmul_one_column", lambda e, x, y: e(op.matmul(x, y)), (2, 9, 23), (2, 23, 1))
    case("matmul_one_row", lambda e, x, y: e(op.matmul(x, y)), (1, 64), (64, 50))
    case("matmul_dot", lambda e, x, y: e(op.matmul(x, y)), (1, 67), (67, 1))
    case(
        "attention_scores",
        lambda e, q, k: e(
            nn.softmax(
                e(op.divide(e(op.matmul(q, e(op.permute_dims(k, [0, 1, 3, 2])))), const(1))), -1
            )
        ),
        (1, 4, 17, 16),
        (1, 4, 17, 16),
    )


def _pooling() -> None:
    x = (2, 6, 13, 11)
    case("max_pool", lambda e, x: e(nn.max_pool2d(x, 3, strides=2, padding=1)), x)
    case("max_pool_asymmetric", lambda e, x: e(nn.max_pool2d(x, (2, 3), padding=(1, 0, 0, 2))), x)
    case("max_pool_wide", lambda e, x: e(nn.max_pool2d(x, 5, padding=2)), (1, 64, 7, 7))
    case("avg_pool", lambda e, x: e(nn.avg_pool2d(x, 3, strides=2, padding=1)), x)
    case(
        "avg_pool_counting",
        lambda e, x: e(nn.avg_pool2d(x, 3, strides=2, ceil_mode=True, count_include_pad=True)),
        x,
    )
    case("max_pool1d", lambda e, x: e(nn.max_pool1d(x, 3, strides=2)), (2, 5, 17))
    case("avg_pool3d", lambda e, x: e(nn.avg_pool3d(x, 2, padding=1)), (1, 4, 5, 3, 4))
    case("adaptive_pool", lambda e, x: e(nn.adaptive_avg_pool2d(x, (3, 2))), x)
    case("global_pool", lambda e, x: e(nn.adaptive_avg_pool2d(x, 1)), (2, 35, 7, 7))
    case("global_max", lambda e, x: e(op.max(x, [2, 3], keepdims=True)), (1, 35, 7, 7))


def _rows() -> None:
    x = (2, 5, 7, 11)
    for axis in range(4):
        case(f"softmax_axis{axis}", lambda e, x, axis=axis: e(nn.softmax(x, axis)), x)
    for shape in ((1, 1000), (197, 197), (3, 1), (1, 1), (64,), (12, 16)):
        name = "x".join(map(str, shape))
        case(f"softmax_{name}", lambda e, x: e(nn.softmax(x, -1)), shape)
    case("log_softmax", lambda e, x: e(nn.log_softmax(x, -1)), (5, 37))
    case("log_softmax_axis1", lambda e, x: e(nn.log_softmax(x, 1)), x)
    case(
        "softmax_scaled_masked",
        lambda e, x, m: e(nn.softmax(e(op.add(e(op.multiply(x, const(1))), m)), -1)),
        (2, 3, 9, 9),
        (1, 1, 9, 9),
    )
    norm, both = (const(48), const(48)), (const(7, 11), const(7, 11))
    case("layer_norm", lambda e, x: e(nn.layer_norm(x, *norm, [-1])), (2, 9, 48))
    case("layer_norm_prime", lambda e, x: e(nn.layer_norm(x, const(67), const(67), [-1])), (5, 67))
    case("layer_norm_one_row", lambda e, x: e(nn.layer_norm(x, *norm, [-1])), (1, 48))
    case("layer_norm_two_axes", lambda e, x: e(nn.layer_norm(x, *both, [2, 3])), x)
    case("layer_norm_middle", lambda e, x: e(nn.layer_norm(x, const(5), const(5), [1])), x)
    case(
        "layer_norm_of_sum",
        lambda e, x, r: e(nn.layer_norm(e(op.add(x, r)), *norm, [-1])),
        (9, 48),
        (9, 48),
    )
    case("rms_norm", lambda e, x: e(nn.rms_norm(x, const(48), [-1])), (2, 9, 48))
    case("rms_norm_prime", lambda e, x: e(nn.rms_norm(x, const(53), [-1])), (7, 53))
    case("instance_norm", lambda e, x: e(nn.instance_norm(x, const(5), const(5), 1, [2, 3])), x)
    case(
        "group_norm",
        lambda e, x: e(nn.group_norm(x, const(6), const(6), 3, 1, [2, 3])),
        (2, 6, 5, 7),
    )
    case(
        "instance_norm_last",
        lambda e, x: e(nn.instance_norm(x, const(11), const(11), 3, [1, 2])),
        x,
    )
    case(
        "group_norm_last",
        lambda e, x: e(nn.group_norm(x, const(12), const(12), 3, 3, [1, 2])),
        (2, 5, 7, 12),
    )
    case(
        "batch_norm",
        lambda e, x: e(
            e(
                nn.batch_norm(
                    *(x, const(5), const(5), const(5), const(5, positive=True)),
                    axis=1,
                    training=False,
                )
            )[0]
        ),
        x,
    )


def _reductions() -> None:
    x = (5, 7, 11)
    axes = {"0": [0], "1": [1], "2": [2], "01": [0, 1], "02": [0, 2], "12": [1, 2], "all": None}
    for name, over in axes.items():
        case(f"sum_{name}", lambda e, x, over=over: e(op.sum(x, over)), x)
        case(f"max_{name}", lambda e, x, over=over: e(op.max(x, over, keepdims=True)), x)
    case("mean_1", lambda e, x: e(op.mean(x, [1])), x)
    case("mean_12", lambda e, x: e(op.mean(x, [1, 2], keepdims=True)), (2, 32, 32))
    case("mean_all", lambda e, x: e(op.mean(x)), x)
    case("min_2", lambda e, x: e(op.min(x, [2])), x)
    case("prod_2", lambda e, x: e(op.prod(x, [2])), x)
    case("variance_2", lambda e, x: e(op.variance(x, [2])), x)
    case("std_02", lambda e, x: e(op.std(x, [0, 2], keepdims=True)), x)
    case("sum_of_one", lambda e, x: e(op.sum(x, [1])), (64, 1))
    case("sum_to_one", lambda e, x: e(op.sum(x, [2])), (1, 1, 64))
    case("sum_long", lambda e, x: e(op.sum(x, [1])), (3, 4099))
    case("sum_vector", lambda e, x: e(op.sum(x)), (4096,))
    case("max_all_long", lambda e, x: e(op.max(x)), (9, 203))
    case("sum_exp", lambda e, x: e(op.sum(e(op.exp(x)), [1])), (9, 40))
    case("sum_int64", lambda e, x: e(op.sum(x, [1])), ((4, 9), "int64"))
    case("argmax", lambda e, x: e(op.argmax(x, 1)), x)
    case("argmax_flat", lambda e, x: e(op.argmax(x)), x)
    case("argmin", lambda e, x: e(op.argmin(x, -1)), x)
    case("argmax_keepdims", lambda e, x: e(op.argmax(x, 0, keepdims=True)), x)
    case("argmax_flat_keepdims", lambda e, x: e(op.argmax(x, keepdims=True)), x)
    case("argmax_vector", lambda e, x: e(op.argmax(x, 0)), (1000,))
    case("argmin_long", lambda e, x: e(op.argmin(x, -1)), (6, 203))


def _movement() -> None:
    x = (5, 7, 11)
    for order in ([0, 2, 1], [1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]):
        name = "".join(map(str, order))
        case(f"transpose_{name}", lambda e, x, order=order: e(op.permute_dims(x, order)), x)
    case("transpose_4d", lambda e, x: e(op.permute_dims(x, [0, 2, 1, 3])), (1, 17, 4, 16))
    case("transpose_wide", lambda e, x: e(op.permute_dims(x, [1, 0])), (64, 48))
    for axis in range(3):
        case(
            f"concat_{axis}", lambda e, x, y, a=axis: e(op.concat([x, y], a)), (2, 3, 5), (2, 3, 5)
        )
    case(
        "concat_unequal",
        lambda e, x, y, z: e(op.concat([x, y, z], 1)),
        (2, 3, 8),
        (2, 1, 8),
        (2, 13, 8),
    )
    case("split", lambda e, x: relax.Tuple([e(op.split(x, [2, 5], 1))[i] for i in range(3)]), x)
    case(
        "split_even",
        lambda e, x: relax.Tuple([e(op.split(x, 2, 0))[i] for i in range(2)]),
        (4, 6),
    )
    case("stack", lambda e, x, y: e(op.stack([x, y], 1)), (3, 5), (3, 5))
    case("take", lambda e, x, i: e(op.take(x, i, 0)), (9, 33), ((2, 5), "int64"))
    case("take_axis1", lambda e, x, i: e(op.take(x, i, 1)), (3, 9, 5), ((4,), "int32"))
    case(
        "gather_elements", lambda e, x, i: e(op.gather_elements(x, i, 1)), (3, 9), ((3, 4), "int64")
    )
    case("gather_nd", lambda e, x, i: e(op.gather_nd(x, i)), (5, 6, 7), ((4, 2), "int64"))
    case("pad", lambda e, x: e(nn.pad(x, (0, 0, 1, 2, 3, 0), pad_value=0.5)), x)
    case("pad_reflect", lambda e, x: e(nn.pad(x, (0, 0, 2, 1, 1, 2), pad_mode="reflect")), x)
    case("tile", lambda e, x: e(op.tile(x, (2, 1, 3))), (3, 5, 7))
    case("repeat", lambda e, x: e(op.repeat(x, 2, 1)), (3, 5, 7))
    case("flip", lambda e, x: e(op.flip(x, 2)), x)
    case("slice", lambda e, x: e(op.strided_slice(x, [1, 2], [1, -1], [6, 0], [2, -3])), x)
    case("reshape", lambda e, x: e(op.reshape(x, (7, 55))), x)
    case("broadcast_to", lambda e, x: e(op.broadcast_to(x, (3, 5, 7))), (5, 1))
    case("squeeze", lambda e, x: e(op.squeeze(x, [1])), (3, 1, 7))
    case(
        "shuffle",
        lambda e, x: e(op.permute_dims(e(op.reshape(x, (1, 2, 4, 5, 5))), [0, 2, 1, 3, 4])),
        (1, 8, 5, 5),
    )
    case("one_hot", lambda e, i: e(op.one_hot(i, 1.0, 0.0, 10)), ((3, 4), "int64"))
    for method in ("nearest_neighbor", "linear", "cubic"):
        case(
            f"resize_{method}",
            lambda e, x, method=method: e(
                op.image.resize2d(x, (13, 10), layout="NCHW", method=method)
            ),
            (1, 3, 7, 6),
        )
    case("topk", lambda e, x: e(e(op.topk(x, 3, -1))[0]), (4, 17))
    case("sort", lambda e, x: e(op.sort(x, -1)), (4, 17))
    case("argsort", lambda e, x: e(op.argsort(x, -1)), (4, 17))
    case("cumsum", lambda e, x: e(op.cumsum(x, 1)), (4, 17))
    case("cumprod", lambda e, x: e(op.cumprod(x, 1)), (4, 17))
    case(
        "scatter_elements",
        lambda e, x, i, u: e(op.scatter_elements(x, i, u, 1)),
        (3, 9),
        ((3, 1), "int64"),
        (3, 1),
    )


def _elementwise() -> None:
    functions = {
        "exp": op.exp,
        "erf": op.erf,
        "tanh": op.tanh,
        "sigmoid": op.sigmoid,
        "gelu": nn.gelu,
        "gelu_tanh": nn.gelu_tanh,
        "silu": nn.silu,
        "relu": nn.relu,
        "leaky": nn.leakyrelu,
        "floor": op.floor,
        "round": op.round,
        "sin": op.sin,
        "softplus": nn.softplus,
        "selu": nn.selu,
    }
    for name, function in functions.items():
        case(name, lambda e, x, f=function: e(f(x)), (3, 5, 7))
    case("sqrt", lambda e, x: e(op.sqrt(e(op.abs(x)))), (17,))
    case("log", lambda e, x: e(op.log(e(op.add(e(op.abs(x)), const(positive=True))))), (17,))
    case("power", lambda e, x: e(op.power(e(op.abs(x)), relax.const(1.5, "float32"))), (33,))
    case("power_tensor", lambda e, x, y: e(op.power(x, y)), (3, 33), (33,))
    case("rsqrt", lambda e, x: e(op.rsqrt(e(op.add(e(op.square(x)), const(positive=True))))), (33,))
    for extent in (1, 7, 64, 4099, 100_003):
        case(f"gelu_{extent}", lambda e, x: e(nn.gelu(x)), (extent,))
    for name, shape in {"row": (7,), "column": (5, 1), "outer": (3, 1, 1), "scalar": ()}.items():
        case(f"add_{name}", lambda e, x, y: e(op.add(x, y)), (3, 5, 7), shape)
    case("add_both_ways", lambda e, x, y: e(op.add(x, y)), (5, 1, 33), (1, 4, 33))
    case("add_same", lambda e, x, y: e(op.add(x, y)), (3, 5, 7), (3, 5, 7))
    case("add_channel", lambda e, x: e(nn.relu(e(op.add(x, const(8, 1, 1))))), (1, 8, 9, 7))
    case("clip", lambda e, x: e(op.clip(x, -0.5, 0.5)), (3, 5, 7))
    case("where", lambda e, x, y: e(op.where(e(op.greater(x, y)), x, y)), (3, 33), (3, 33))
    case("where_row", lambda e, c, x: e(op.where(c, x, const())), ((1, 33), "bool"), (3, 33))
    case("cast_int", lambda e, x: e(op.astype(x, "int32")), (3, 35))
    case("cast_bool", lambda e, x: e(op.astype(x, "bool")), (3, 35))
    case("cast_float", lambda e, x: e(op.astype(x, "float32")), ((3, 35), "int64"))
    case("compare", lambda e, x, y: e(op.less(x, y)), (3, 35), (3, 35))
    case("logical", lambda e, x, y: e(op.logical_and(x, y)), ((9,), "bool"), ((9,), "bool"))
    case("add_int64", lambda e, x, y: e(op.add(x, y)), ((3, 5), "int64"), ((5,), "int64"))
    case("add_float16", lambda e, x, y: e(op.add(x, y)), ((3, 35), "float16"), ((35,), "float16"))
    case("multiply_float64", lambda e, x: e(op.multiply(x, x)), ((3, 35), "float64"))
    case("prelu", lambda e, x: e(nn.prelu(x, const(8), axis=1)), (1, 8, 5, 5))
    case(
        "hard_swish",
        lambda e, x: e(
            op.multiply(x, e(op.divide(e(op.clip(e(op.add(x, _value(3.0))), 0, 6)), _value(6.0))))
        ),
        (1, 8, 9, 7),
    )
    case(
        "two_outputs",
        lambda e, x: relax.Tuple([e(nn.relu(x)), e(op.exp(e(nn.relu(x))))]),
        (3, 35),
    )
    case(
        "gate",
        lambda e, x: e(op.multiply(x, e(op.sigmoid(e(op.mean(x, [2, 3], keepdims=True)))))),
        (1, 24, 7, 7),
    )
    case(
        "quantise",
        lambda e, x: e(
            op.quantize(x, _value(0.05), relax.const(3, "int8"), axis=1, out_dtype="int8")
        ),
        (3, 35),
    )


def _value(value: float) -> Any:
    return relax.const(value, "float32")


for fill in (_convolutions, _products, _pooling, _rows, _reductions, _movement, _elementwise):
    _group = fill.__name__.strip("_")
    fill()
