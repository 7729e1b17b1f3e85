"""Exports single operators as models: what a network is made of, each alone and at a usual size.

    python benchmarks/operator_models.py --out operator_models                 # all of them
    python benchmarks/operator_models.py --out operator_models conv_3x3 top_k
    python benchmarks/compare.py operator_models/*.onnx --rounds 2 --engines tvm_ext,onnxruntime

Images come and go in planes, as ONNX has them: a convolution alone pays for channels last on both
sides, where layers of a network do not. Weights are random, activations the model's inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from export_command import write_models
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
NEWER = {"Gelu": 20, "GridSample": 20, "GroupNormalization": 21}
"""Operators that later sets added, or where they added the names and shapes used here."""
IMAGE = (1, 64, 56, 56)
ROWS = (512, 768)
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64

Shape = tuple[int, ...]
Operand = Any
"""A shape: an input. A list of integers, or an array: a constant. None: left out."""


class Weight(tuple[int, ...]):
    """The shape of a constant that is drawn at random."""


def _conv(shape: Shape, outer: int, kernel: Shape, **attributes: Any) -> tuple[Any, ...]:
    groups = attributes.pop("group", 1)
    pads = attributes.pop("pads", None)
    dilations = attributes.get("dilations", (1,) * len(kernel))
    if pads is None:
        half = [d * (k - 1) // 2 for k, d in zip(kernel, dilations, strict=True)]
        pads = half * 2
    weight = Weight((outer, shape[1] // groups, *kernel))
    return "Conv", [shape, weight, Weight((outer,))], {"group": groups, "pads": pads, **attributes}


def _transposed(shape: Shape, outer: int, kernel: Shape, **attributes: Any) -> tuple[Any, ...]:
    groups = attributes.get("group", 1)
    return "ConvTranspose", [shape, Weight((shape[1], outer // groups, *kernel))], attributes


def _pool(op: str, shape: Shape, kernel: Shape, stride: int, **attributes: Any) -> tuple[Any, ...]:
    half = [(k - 1) // 2 for k in kernel]
    return (
        op,
        [shape],
        {"kernel_shape": kernel, "strides": [stride] * len(kernel), "pads": half * 2, **attributes},
    )


def _resize(mode: str, height: int, width: int, transform: str = "half_pixel") -> tuple[Any, ...]:
    attributes = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    return "Resize", [IMAGE, None, None, [1, 64, height, width]], attributes


CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "conv_3x3": _conv(IMAGE, 64, (3, 3)),
    "conv_3x3_narrow": _conv((1, 16, 112, 112), 16, (3, 3)),
    "conv_3x3_deep": _conv((1, 512, 7, 7), 512, (3, 3)),
    "conv_3x3_stride_2": _conv((1, 128, 56, 56), 128, (3, 3), strides=(2, 2)),
    "conv_3x3_dilated": _conv((1, 128, 28, 28), 128, (3, 3), dilations=(4, 4)),
    "conv_3x3_odd": _conv((1, 17, 53, 47), 23, (3, 3)),
    "conv_3x3_batch": _conv((8, 64, 28, 28), 64, (3, 3)),
    "conv_1x1": _conv(IMAGE, 256, (1, 1)),
    "conv_1x1_stride_2": _conv((1, 256, 56, 56), 512, (1, 1), strides=(2, 2)),
    "conv_5x5": _conv((1, 32, 28, 28), 64, (5, 5)),
    "conv_1x7": _conv((1, 128, 17, 17), 128, (1, 7)),
    "conv_7x1": _conv((1, 128, 17, 17), 128, (7, 1)),
    "conv_first_7x7": _conv((1, 3, 224, 224), 64, (7, 7), strides=(2, 2)),
    "conv_first_3x3": _conv((1, 3, 224, 224), 32, (3, 3), strides=(2, 2)),
    "conv_first_11x11": _conv((1, 3, 224, 224), 64, (11, 11), strides=(4, 4)),
    "conv_patches": _conv((1, 3, 224, 224), 768, (16, 16), strides=(16, 16), pads=[0] * 4),
    "conv_to_image": _conv((1, 64, 128, 128), 3, (3, 3)),
    "conv_to_one": _conv((1, 64, 56, 56), 1, (1, 1)),
    "conv_groups_4": _conv((1, 128, 28, 28), 128, (3, 3), group=4),
    "conv_groups_32": _conv((1, 256, 28, 28), 256, (3, 3), group=32),
    "conv_groups_1x1": _conv((1, 272, 14, 14), 272, (1, 1), group=4),
    "depthwise_3x3": _conv((1, 96, 56, 56), 96, (3, 3), group=96),
    "depthwise_3x3_stride_2": _conv((1, 96, 56, 56), 96, (3, 3), group=96, strides=(2, 2)),
    "depthwise_5x5": _conv((1, 240, 28, 28), 240, (5, 5), group=240),
    "depthwise_7x7": _conv((1, 96, 56, 56), 96, (7, 7), group=96),
    "depthwise_31x31": _conv((1, 64, 32, 32), 64, (31, 31), group=64),
    "depthwise_twofold": _conv((1, 48, 28, 28), 96, (3, 3), group=48),
    "depthwise_1d": _conv((1, 256, 400), 256, (31,), group=256),
    "conv_1d": _conv((1, 256, 400), 256, (5,)),
    "conv_1d_stride_5": _conv((1, 1, 16000), 512, (10,), strides=(5,), pads=[0, 0]),
    "conv_1d_causal": _conv((1, 64, 1000), 64, (3,), dilations=(16,), pads=[32, 0]),
    "conv_3d": _conv((1, 32, 16, 28, 28), 32, (3, 3, 3)),
    "conv_3d_1x3x3": _conv((1, 32, 16, 28, 28), 32, (1, 3, 3)),
    "conv_3d_3x1x1": _conv((1, 32, 16, 28, 28), 32, (3, 1, 1)),
    "depthwise_3d": _conv((1, 64, 8, 28, 28), 64, (3, 3, 3), group=64),
    "transposed_2x2": _transposed((1, 128, 28, 28), 64, (2, 2), strides=(2, 2)),
    "transposed_4x4": _transposed((1, 256, 16, 16), 128, (4, 4), strides=(2, 2), pads=[1] * 4),
    "transposed_3x3": _transposed(
        (1, 128, 28, 28), 64, (3, 3), strides=(2, 2), pads=[1] * 4, output_padding=(1, 1)
    ),
    "transposed_unit": _transposed((1, 64, 28, 28), 64, (3, 3), pads=[1] * 4),
    "transposed_to_image": _transposed((1, 64, 64, 64), 3, (4, 4), strides=(2, 2), pads=[1] * 4),
    "transposed_groups": _transposed(
        (1, 128, 28, 28), 128, (4, 4), strides=(2, 2), pads=[1] * 4, group=4
    ),
    "transposed_depthwise": _transposed(
        (1, 64, 28, 28), 64, (4, 4), strides=(2, 2), pads=[1] * 4, group=64
    ),
    "transposed_dilated": _transposed((1, 64, 28, 28), 64, (3, 3), dilations=(2, 2), pads=[2] * 4),
    "transposed_1d": _transposed((1, 256, 50), 128, (16,), strides=(8,), pads=[4, 4]),
    "transposed_3d": _transposed((1, 64, 8, 14, 14), 32, (2, 2, 2), strides=(2, 2, 2)),
}

PRODUCTS: dict[str, tuple[Any, ...]] = {
    "product_of_row": ("MatMul", [(1, 2048), Weight((2048, 2048))], {}),
    "product_of_8_rows": ("MatMul", [(8, 1024), Weight((1024, 4096))], {}),
    "product_of_128_rows": ("MatMul", [(128, 768), Weight((768, 3072))], {}),
    "product_of_512_rows": ("MatMul", [(512, 512), Weight((512, 512))], {}),
    "product_odd": ("MatMul", [(127, 253), Weight((253, 509))], {}),
    "product_to_few": ("MatMul", [(2048, 256), Weight((256, 4))], {}),
    "product_to_one": ("MatMul", [(2048, 256), Weight((256, 1))], {}),
    "product_of_few": ("MatMul", [(4096, 3), Weight((3, 64))], {}),
    "product_transposed": (
        "Gemm",
        [(64, 1024), Weight((1000, 1024)), Weight((1000,))],
        {"transB": 1},
    ),
    "product_of_inputs": ("MatMul", [(256, 512), (512, 256)], {}),
    "product_of_inputs_row": ("MatMul", [(1, 512), (512, 2048)], {}),
    "products_of_heads": ("MatMul", [(1, 12, 128, 64), (1, 12, 64, 128)], {}),
    "products_of_heads_row": ("MatMul", [(1, 12, 1, 64), (1, 12, 64, 256)], {}),
    "products_small": ("MatMul", [(256, 9, 32), (256, 32, 9)], {}),
    "einsum_keys": (
        "Einsum",
        [(1, 128, 12, 64), (1, 128, 12, 64)],
        {"equation": "bqhd,bkhd->bhqk"},
    ),
    "einsum_outer": ("Einsum", [(512,), (512,)], {"equation": "i,j->ij"}),
    "outer_sum": ("Einsum", [(64, 512), (64, 512)], {"equation": "bi,bi->b"}),
}

UNARY = (
    "Relu Sigmoid Tanh Exp Log Sqrt Erf Sin Cos Tan Atan Abs Neg Floor Round Sign Reciprocal "
    "Softplus Softsign HardSwish HardSigmoid Mish LeakyRelu Elu Selu Celu ThresholdedRelu Sinh "
    "Asinh"
)

ELEMENTWISE: dict[str, tuple[Any, ...]] = {
    **{f"map_{op.lower()}": (op, [ROWS], {}) for op in UNARY.split()},
    "map_gelu": ("Gelu", [ROWS], {}),
    "map_gelu_tanh": ("Gelu", [ROWS], {"approximate": "tanh"}),
    "map_clip": ("Clip", [ROWS, np.float32(0), np.float32(6)], {}),
    "map_prelu": ("PRelu", [IMAGE, Weight((64, 1, 1))], {}),
    "map_power": ("Pow", [ROWS, np.float32(3)], {}),
    "map_power_of": ("Pow", [ROWS, ROWS], {}),
    "map_to_int": ("Cast", [ROWS], {"to": INT}),
    "map_to_half": ("Cast", [ROWS], {"to": TensorProto.FLOAT16}),
    "sum_of_two": ("Add", [IMAGE, IMAGE], {}),
    "sum_of_five": ("Sum", [ROWS] * 5, {}),
    "sum_with_row": ("Add", [ROWS, (768,)], {}),
    "sum_with_column": ("Add", [ROWS, (512, 1)], {}),
    "product_with_channels": ("Mul", [IMAGE, (1, 64, 1, 1)], {}),
    "quotient": ("Div", [ROWS, ROWS], {}),
    "remainder": ("Mod", [ROWS, ROWS], {"fmod": 1}),
    "greatest": ("Max", [ROWS, ROWS], {}),
    "compared": ("Greater", [ROWS, ROWS], {}),
    "batch_norm": ("BatchNormalization", [IMAGE, *[Weight((64,))] * 3, np.ones(64, "float32")], {}),
}

REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "sum_of_rows": ("ReduceSum", [ROWS, [1]], {}),
    "sum_of_columns": ("ReduceSum", [ROWS, [0]], {}),
    "sum_of_middle": ("ReduceSum", [(16, 256, 128), [1]], {}),
    "sum_of_all": ("ReduceSum", [(1, 256, 56, 56), [0, 1, 2, 3]], {}),
    "mean_of_planes": ("ReduceMean", [(1, 256, 56, 56), [2, 3]], {}),
    "mean_of_channels": ("ReduceMean", [(1, 256, 56, 56), [1]], {}),
    "greatest_of_rows": ("ReduceMax", [ROWS, [1]], {}),
    "product_of_rows": ("ReduceProd", [ROWS, [1]], {}),
    "product_of_columns": ("ReduceProd", [ROWS, [0]], {}),
    "norm_of_rows": ("ReduceL2", [ROWS, [1]], {}),
    "log_sum_exp": ("ReduceLogSumExp", [ROWS, [1]], {}),
    "arg_max": ("ArgMax", [ROWS], {"axis": 1}),
    "arg_max_of_channels": ("ArgMax", [(1, 21, 128, 128)], {"axis": 1}),
    "cumulative_sum": ("CumSum", [ROWS, np.int64(1)], {}),
    "top_k": ("TopK", [(1, 1000), [5]], {}),
    "top_k_of_rows": ("TopK", [ROWS, [10]], {}),
    "softmax": ("Softmax", [(12, 128, 128)], {"axis": -1}),
    "softmax_of_channels": ("Softmax", [(1, 21, 128, 128)], {"axis": 1}),
    "log_softmax": ("LogSoftmax", [(64, 1000)], {"axis": -1}),
    "layer_norm": ("LayerNormalization", [ROWS, Weight((768,)), Weight((768,))], {"axis": -1}),
    "instance_norm": ("InstanceNormalization", [IMAGE, Weight((64,)), Weight((64,))], {}),
    "group_norm": ("GroupNormalization", [IMAGE, Weight((64,)), Weight((64,))], {"num_groups": 8}),
    "lp_norm": ("LpNormalization", [ROWS], {"axis": -1, "p": 2}),
    "lrn": ("LRN", [IMAGE], {"size": 5}),
    "max_pool_2x2": ("MaxPool", [IMAGE], {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "max_pool_3x3": _pool("MaxPool", (1, 64, 112, 112), (3, 3), 2),
    "max_pool_5x5": _pool("MaxPool", (1, 256, 20, 20), (5, 5), 1),
    "max_pool_1d": _pool("MaxPool", (1, 128, 1000), (3,), 2),
    "max_pool_3d": (
        "MaxPool",
        [(1, 32, 16, 28, 28)],
        {"kernel_shape": (2,) * 3, "strides": (2,) * 3},
    ),
    "average_pool_3x3": _pool("AveragePool", IMAGE, (3, 3), 1, count_include_pad=0),
    "average_pool_3d": _pool("AveragePool", (1, 32, 16, 28, 28), (3, 3, 3), 1),
    "global_average_pool": ("GlobalAveragePool", [(1, 512, 14, 14)], {}),
    "global_max_pool": ("GlobalMaxPool", [(1, 512, 14, 14)], {}),
    "lp_pool": ("LpPool", [IMAGE], {"kernel_shape": (2, 2), "strides": (2, 2), "p": 2}),
}

ROWS_TAKEN = np.arange(200, dtype=np.int64) * 7 % 512

MOVES: dict[str, tuple[Any, ...]] = {
    "to_channels_last": ("Transpose", [IMAGE], {"perm": (0, 2, 3, 1)}),
    "to_heads": ("Transpose", [(1, 128, 12, 64)], {"perm": (0, 2, 1, 3)}),
    "transposed": ("Transpose", [ROWS], {"perm": (1, 0)}),
    "concatenated_channels": ("Concat", [IMAGE, IMAGE], {"axis": 1}),
    "concatenated_columns": ("Concat", [(512, 300), (512, 468)], {"axis": 1}),
    "concatenated_four": ("Concat", [(1, 32, 28, 28)] * 4, {"axis": 1}),
    "split": ("Split", [(128, 2304), [768, 768, 768]], {"axis": 1}),
    "cut_out": ("Slice", [IMAGE, [3, 3], [53, 53], [2, 3]], {}),
    "every_other": ("Slice", [IMAGE, [0, 0], [56, 56], [2, 3], [2, 2]], {}),
    "reversed": ("Slice", [ROWS, [-1], [-1000], [1], [-1]], {}),
    "taken_rows": ("Gather", [ROWS, ROWS_TAKEN], {"axis": 0}),
    "taken_columns": ("Gather", [ROWS, ROWS_TAKEN], {"axis": 1}),
    "taken_points": ("GatherND", [ROWS, np.stack([ROWS_TAKEN, ROWS_TAKEN], 1)], {}),
    "taken_elements": ("GatherElements", [ROWS, np.tile(ROWS_TAKEN, (512, 1))], {"axis": 1}),
    "scattered_rows": ("ScatterND", [ROWS, ROWS_TAKEN[:73, None], (73, 768)], {}),
    "scattered_elements": (
        "ScatterElements",
        [ROWS, np.tile(ROWS_TAKEN[:73], (512, 1)), (512, 73)],
        {"axis": 1},
    ),
    "padded": ("Pad", [IMAGE, [0, 0, 1, 1, 0, 0, 1, 1]], {}),
    "padded_by_reflection": ("Pad", [IMAGE, [0, 0, 3, 3, 0, 0, 3, 3]], {"mode": "reflect"}),
    "padded_by_edge": ("Pad", [IMAGE, [0, 0, 1, 1, 0, 0, 1, 1]], {"mode": "edge"}),
    "tiled": ("Tile", [(1, 64, 28, 28), [1, 1, 2, 2]], {}),
    "expanded": ("Expand", [(1, 768), [512, 768]], {}),
    "upper_triangle": ("Trilu", [(12, 128, 128)], {}),
    "chosen": ("Where", [np.tri(512, 768) > 0, ROWS, ROWS], {}),
    "depth_to_space": ("DepthToSpace", [IMAGE], {"blocksize": 2, "mode": "CRD"}),
    "space_to_depth": ("SpaceToDepth", [IMAGE], {"blocksize": 2}),
    "resized_nearest": _resize("nearest", 112, 112, "asymmetric"),
    "resized_linear": _resize("linear", 112, 112),
    "resized_linear_odd": _resize("linear", 75, 93),
    "resized_corners": _resize("linear", 112, 112, "align_corners"),
    "resized_smaller": _resize("linear", 28, 28),
    "resized_cubic": _resize("cubic", 112, 112),
    "sampled_grid": ("GridSample", [IMAGE, (1, 56, 56, 2)], {}),
    "quantized": ("QuantizeLinear", [ROWS, np.float32(0.05), np.uint8(128)], {}),
}

OPERATORS = {**CONVOLUTIONS, **PRODUCTS, **ELEMENTWISE, **REDUCTIONS, **MOVES}


def export(name: str, seed: int) -> onnx.ModelProto:
    """The operator as a model whose inputs are `x0`, `x1` and so on. Log and its like are given
    what they are defined for: their input's absolute value."""
    op, operands, attributes = OPERATORS[name]
    random = np.random.default_rng(seed)
    inputs, constants, names = [], [], []
    for place, operand in enumerate(operands):
        names.append("" if operand is None else f"x{place}")
        if isinstance(operand, Weight):
            drawn = random.standard_normal(operand) / max(1, np.prod(operand[1:])) ** 0.5
            constants.append(numpy_helper.from_array(drawn.astype("float32"), f"x{place}"))
        elif isinstance(operand, tuple):
            inputs.append(helper.make_tensor_value_info(f"x{place}", FLOAT, operand))
        elif operand is not None:
            constants.append(numpy_helper.from_array(np.asarray(operand), f"x{place}"))
    nodes = []
    if op in {"Log", "Sqrt"} or name == "map_power_of":
        nodes.append(helper.make_node("Abs", ["x0"], ["positive"]))
        names[0] = "positive"
    counts = {"Split": 3, "TopK": 2}
    outputs = [f"y{place}" for place in range(counts.get(op, 1))]
    nodes.append(helper.make_node(op, names, outputs, **attributes))
    graph = helper.make_graph(
        nodes, name, inputs, [helper.make_empty_tensor_value_info(y) for y in outputs], constants
    )
    opset = helper.make_opsetid("", NEWER.get(op, OPSET))
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    for value in model.graph.output:
        if not value.type.tensor_type.elem_type:  # onnx infers nothing of a group norm
            value.type.CopyFrom(model.graph.input[0].type)
    return model


if __name__ == "__main__":
    write_models(__doc__, OPERATORS, export)
