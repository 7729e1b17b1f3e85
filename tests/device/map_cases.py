"""Operators that move data or work element by element."""

from __future__ import annotations

from typing import Any

from case_table import case, const, fill

from tvm_ext.tvm_api import relax

op, nn = relax.op, relax.op.nn


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

    def regrouped(emit: Any, x: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
        order = [*range(len(before) - 2), len(before) - 1, len(before) - 2]
        return emit(op.reshape(emit(op.permute_dims(emit(op.reshape(x, before)), order)), after))

    rows = (1, 5, 7, 68)
    case("shuffle_last", lambda e, x: regrouped(e, x, (1, 5, 7, 4, 17), rows), rows)

    def windows(emit: Any, x: Any) -> Any:
        parts = emit(op.reshape(x, (1, 2, 5, 3, 7, 12)))
        return emit(op.reshape(emit(op.permute_dims(parts, [0, 1, 3, 2, 4, 5])), (6, 35, 12)))

    case("windows", windows, (1, 10, 21, 12))
    case("one_hot", lambda e, i: e(op.one_hot(i, 1.0, 0.0, 10)), ((3, 4), "int64"))
    for method in ("nearest_neighbor", "linear", "cubic"):
        case(
            f"resize_{method}",
            lambda e, x, method=method: e(
                op.image.resize2d(x, (13, 4), layout="NCHW", method=method)
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
    case(
        "scatter_nd",
        lambda e, x, i, u: e(op.scatter_nd(x, i, u, "add")),
        (5, 6, 7),
        ((4, 2), "int64"),
        (4, 7),
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
    (case("same_truth", lambda e, x, y: e(op.equal(x, y)), ((9, 1), "bool"), ((9, 7), "bool")),)
    (case("other_truth", lambda e, x, y: e(op.not_equal(x, y)), ((5, 6), "bool"), ((6,), "bool")),)
    (case("true", lambda e, x: e(op.equal(x, relax.const(True, "bool"))), ((64,), "bool")),)
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


for group in (_movement, _elementwise):
    fill(group)
