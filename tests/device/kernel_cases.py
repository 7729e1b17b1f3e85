"""Operators on awkward shapes: the Relax functions whose kernels `test_kernels` plans and runs."""

from __future__ import annotations

from typing import Any

import map_cases  # noqa: F401 - adds its own
from case_table import CASES, LEFT_TO_TVM, Build, Case, case, const, fill, module, names

from tvm_ext.tvm_api import relax

__all__ = ["CASES", "LEFT_TO_TVM", "Case", "module", "names"]

op, nn = relax.op, relax.op.nn


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
    case("conv2d_1x1_crop", _conv(90, (1, 1), bias_relu), (1, 24, 13, 13))
    case("conv2d_1x1_to_one", _conv(1, (1, 1)), (1, 1, 5, 5))
    case("conv2d_7x7_stride2", _conv(16, (7, 7), strides=2, padding=3), (1, 3, 23, 23))
    case("conv2d_asymmetric", _conv(8, (3, 2), strides=(2, 1), padding=(0, 2, 1, 0)), (1, 4, 9, 7))
    case("conv2d_dilated", _conv(12, (3, 3), padding=2, dilation=(2, 1)), (1, 6, 9, 10))
    apart = {"padding": 4, "dilation": 4}
    case("conv2d_mostly_padding", _conv(17, (3, 3), bias_relu, **apart), (1, 13, 9, 7))
    case("conv2d_only_the_middle", _conv(40, (3, 3), padding=12, dilation=12), (2, 8, 7, 5))
    strided = {"padding": (6, 5, 2, 6), "dilation": 3, "strides": 2}
    case("conv2d_padding_stride2", _conv(16, (5, 5), bias_relu, **strided), (1, 6, 11, 17))
    case("conv1d_mostly_padding", _conv(33, (5,), padding=16, dilation=8), (1, 12, 20))
    case("conv3d_mostly_padding", _conv(16, (3, 3, 3), padding=2, dilation=2), (1, 5, 3, 4, 6))
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
    case("conv2d_depthwise_long", _conv(20, (13, 11), padding=6, groups=20), (1, 20, 14, 12))

    def residual(emit: Any, y: Any, r: Any) -> Any:
        return bias_relu(emit, emit(op.add(y, r)))

    ragged = _conv(69, (1, 1), residual, groups=3)
    case("conv2d_grouped_ragged_residual", ragged, (2, 15, 5, 7), (2, 69, 5, 7))
    case("conv2d_grouped_5_vectors", _conv(160, (1, 1), bias_relu, groups=2), (1, 80, 5, 7))
    case("conv2d_groups_of_4", _conv(64, (3, 3), bias_relu, padding=1, groups=16), (1, 64, 9, 7))
    of_2 = _conv(32, (3, 5), bias_relu, padding=(1, 2), strides=2, groups=16)
    case("conv2d_groups_of_2_from_4", of_2, (2, 64, 11, 8))
    case("conv2d_groups_of_4_from_8", _conv(32, (2, 3), groups=8), (1, 64, 6, 7))
    case("conv2d_groups_of_4_1x1", _conv(48, (1, 1), bias_relu, groups=12), (1, 24, 5, 9))
    case("conv2d_groups_of_8", _conv(40, (3, 3), bias_relu, padding=1, groups=5), (1, 40, 9, 7))
    case("conv2d_groups_of_16", _conv(48, (5, 3), strides=2, padding=1, groups=3), (1, 12, 9, 7))
    case("conv2d_depthwise_twofold", _conv(48, (3, 3), padding=1, groups=24), (1, 24, 9, 7))
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
    case("conv2d_planes", _conv(3, (3, 3), bias_relu, padding=1), (1, 5, 9, 23))
    case("conv2d_planes_1x1", _conv(1, (1, 1)), (2, 7, 3, 16))
    case("conv2d_planes_dilated", _conv(8, (3, 5), padding=(0, 2), dilation=(1, 2)), (1, 9, 6, 31))
    case("conv1d_planes", _conv(2, (7,), padding=(4, 1)), (2, 6, 37))
    case("conv3d_planes", _conv(3, (2, 1, 3)), (1, 4, 3, 5, 19))
    case("conv3d", _conv(10, (3, 1, 2), padding=(1, 0, 1, 0, 1, 1)), (1, 3, 5, 6, 4))
    case("conv1d_groups_of_4", _conv(32, (5,), padding=2, groups=8), (1, 32, 19))
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


for group in (_convolutions, _products, _pooling, _rows, _reductions):
    fill(group)
