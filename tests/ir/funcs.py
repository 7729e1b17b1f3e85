"""PrimFuncs in the forms that legalisation and fusion make, for tests that read and write them."""

from __future__ import annotations

from typing import Any

from tvm_ext.tile.graph import TileGraph
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import PrimFunc, te, tirx, topi


def placeholder(name: str, *shape: int, dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype=dtype, name=name)


def relu(x: Any, name: str = "relu") -> Any:
    return te.compute(x.shape, lambda *at: tirx.max(x[at], tirx.const(0.0, "float32")), name=name)


def bias(x: Any, b: Any) -> Any:
    return te.compute(x.shape, lambda *at: x[at] + b[at[-1]], name="bias")


def prepared_graph(func: PrimFunc) -> TileGraph:
    """The stages of a function that `prepare` understands."""
    prepared = prepare(func)
    assert prepared is not None
    return prepared.graph


def conv_func(
    size: int = 14,
    channels: int = 8,
    out: int = 32,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 1,
    groups: int = 1,
    epilogue: bool = True,
) -> PrimFunc:
    """Channels-last convolution with bias and relu; `out` is padded to blocks and cropped.

    Grouped: x [n, h, w, G, C/G]. Depthwise (groups = channels = out): weights [kh, kw, C].
    """
    depthwise = groups == channels == out
    per_group, inner = out // groups, channels // groups
    block = per_group if groups > 1 else 32
    split = groups > 1 and not depthwise
    x = placeholder("x", 1, size, size, *((groups, inner) if split else (channels,)))
    padded = x
    if pad:
        flat = [0] * (len(x.shape) - 3)
        padded = topi.nn.pad(x, [0, pad, pad, *flat], [0, pad, pad, *flat], name="pad")
    reach = size + 2 * pad - (kernel - 1) * dilation
    side = (reach - 1) // stride + 1
    taps = [te.reduce_axis((0, kernel), name=f"k{i}") for i in range(2)]
    c = te.reduce_axis((0, inner), name="c")

    def at(n: Any, p: Any, q: Any) -> list[Any]:
        return [n, p * stride + taps[0] * dilation, q * stride + taps[1] * dilation]

    if depthwise:
        w = placeholder("w", kernel, kernel, out)

        def body(n: Any, p: Any, q: Any, o: Any) -> Any:
            return te.sum(padded[(*at(n, p, q), o)] * w[(*taps, o)], axis=taps)

    else:
        w = placeholder("w", -(-out // block), kernel, kernel, inner, block)

        def body(n: Any, p: Any, q: Any, o: Any) -> Any:
            group = (o // per_group,) if split else ()
            element = padded[(*at(n, p, q), *group, c)]
            return te.sum(element * w[(o // block, *taps, c, o % block)], axis=[*taps, c])

    wide = -(-out // block) * block if not depthwise else out
    y = te.compute((1, side, side, wide), body, name="depthwise" if depthwise else "conv")
    if wide != out:
        whole = y
        y = te.compute((1, side, side, out), lambda *i: whole[i], name="crop")
    if not epilogue:
        return te.create_prim_func([x, w, y])
    b = placeholder("b", out)
    return te.create_prim_func([x, w, b, relu(bias(y, b))])


def dense(x: Any, w: Any) -> Any:
    """x [m, K] times w packed [N/B, K, B]."""
    blocks, inner, block = (int(extent) for extent in w.shape)
    k = te.reduce_axis((0, inner), name="k")
    return te.compute(
        (x.shape[0], blocks * block),
        lambda i, j: te.sum(x[i, k] * w[j // block, k, j % block], axis=k),
        name="dense",
    )


def dense_func(rows: int = 24, inner: int = 16, columns: int = 64) -> PrimFunc:
    """Product by a packed matrix, cropped, with bias."""
    x, b = placeholder("x", rows, inner), placeholder("b", columns)
    w = placeholder("w", -(-columns // 32), inner, 32)
    y = dense(x, w)
    if columns % 32:
        wide = y
        y = te.compute((rows, columns), lambda *at: wide[at], name="crop")
    return te.create_prim_func([x, w, b, bias(y, b)])


def matmul_func(m: int = 24, n: int = 40, k: int = 16) -> PrimFunc:
    """Plain product, without an epilogue."""
    a, b = placeholder("a", m, k), placeholder("b", k, n)
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="matmul")
    return te.create_prim_func([a, b, c])


def pool_func(size: int = 9, channels: int = 24, pad: int = 1) -> PrimFunc:
    """3x3 max pooling, channels last, stride 2."""
    x = placeholder("x", 1, size, size, channels)
    y = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (pad,) * 4, "max", layout="NHWC")
    return te.create_prim_func([x, y])


def over_rows(x: Any, combine: Any, value: Any, name: str) -> Any:
    """One number per row of x [rows, columns]."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    return te.compute((x.shape[0],), lambda i: combine(value(i, k), axis=k), name=name)


def softmax_func(rows: int = 12, columns: int = 48) -> PrimFunc:
    """Softmax of each row in four stages."""
    x = placeholder("x", rows, columns)
    top = over_rows(x, te.max, lambda i, k: x[i, k], "row_max")
    power = te.compute(x.shape, lambda i, j: tirx.exp(x[i, j] - top[i]), name="row_exp")
    total = over_rows(x, te.sum, lambda i, k: power[i, k], "row_sum")
    y = te.compute(x.shape, lambda i, j: power[i, j] / total[i], name="softmax")
    return te.create_prim_func([x, y])


def norm_func(rows: int = 12, columns: int = 48) -> PrimFunc:
    """Layer normalisation of each row in three stages."""
    x, g = placeholder("x", rows, columns), placeholder("g", columns)
    scale = tirx.const(1.0 / columns, "float32")
    total = over_rows(x, te.sum, lambda i, k: x[i, k], "row_sum")

    def centred(i: Any, j: Any) -> Any:
        return x[i, j] - total[i] * scale

    square = over_rows(x, te.sum, lambda i, k: centred(i, k) * centred(i, k), "row_square")
    y = te.compute(
        x.shape,
        lambda i, j: centred(i, j) * tirx.rsqrt(square[i] * scale + 1e-5) * g[j],
        name="normalise",
    )
    return te.create_prim_func([x, g, y])


def map_func(*shape: int) -> PrimFunc:
    x = placeholder("x", *(shape or (12, 48)))
    return te.create_prim_func([x, te.compute(x.shape, lambda *at: x[at] * 2.0, name="double")])


def chain_func(*shape: int) -> PrimFunc:
    """relu(relu(x) + x) + 1, three stages that are one."""
    x = placeholder("x", *(shape or (12, 48)))
    r = relu(x, "first")
    s = relu(te.compute(x.shape, lambda *at: r[at] + x[at], name="add"), "second")
    return te.create_prim_func([x, te.compute(x.shape, lambda *at: s[at] + 1.0, name="last")])


def transpose_func(rows: int = 33, columns: int = 20) -> PrimFunc:
    x = placeholder("x", columns, rows)
    return te.create_prim_func([x, te.compute((rows, columns), lambda i, j: x[j, i], name="t")])


def sum_func(rows: int = 12, columns: int = 48) -> PrimFunc:
    x = placeholder("x", rows, columns)
    return te.create_prim_func([x, topi.sum(x, axis=1)])


def total_func(rows: int = 12, columns: int = 48) -> PrimFunc:
    """The sum of everything, without any space axis."""
    x = placeholder("x", rows, columns)
    return te.create_prim_func([x, topi.sum(x)])


def mean_func(rows: int = 12, columns: int = 48) -> PrimFunc:
    """The mean of everything: a reduction and a quotient, both without a space axis."""
    x = placeholder("x", rows, columns)
    total = topi.sum(x)
    return te.create_prim_func([x, topi.divide(total, tirx.const(rows * columns, "float32"))])


def gather_func(rows: int = 9, columns: int = 33, picked: int = 5) -> PrimFunc:
    x = placeholder("x", rows, columns)
    at = placeholder("at", picked, dtype="int32")
    y = te.compute((picked, columns), lambda i, j: x[at[i], j], name="gather")
    return te.create_prim_func([x, at, y])


def argmax_func(rows: int = 5, columns: int = 7) -> PrimFunc:
    x = placeholder("x", rows, columns)
    return te.create_prim_func([x, topi.argmax(x, axis=1)])


FUNCS = {
    "conv": lambda: conv_func(),
    "conv_plain": lambda: conv_func(epilogue=False),
    "conv_crop": lambda: conv_func(out=17),
    "conv_strided": lambda: conv_func(stride=2, dilation=2, size=17),
    "conv_1x1": lambda: conv_func(kernel=1, pad=0),
    "conv_grouped": lambda: conv_func(groups=2, channels=8, out=24),
    "depthwise": lambda: conv_func(groups=16, channels=16, out=16),
    "dense": lambda: dense_func(),
    "dense_prime": lambda: dense_func(31, 17, 37),
    "dense_row": lambda: dense_func(1, 64, 96),
    "matmul": lambda: matmul_func(),
    "matmul_column": lambda: matmul_func(19, 1, 23),
    "pool": lambda: pool_func(),
    "softmax": lambda: softmax_func(),
    "softmax_prime": lambda: softmax_func(7, 37),
    "softmax_one": lambda: softmax_func(1, 1),
    "norm": lambda: norm_func(),
    "map": lambda: map_func(),
    "map_prime": lambda: map_func(7, 13),
    "map_one": lambda: map_func(1),
    "map_scalar": lambda: te.create_prim_func(scalar_map()),
    "chain": lambda: chain_func(),
    "transpose": lambda: transpose_func(),
    "sum": lambda: sum_func(),
    "sum_prime": lambda: sum_func(7, 13),
    "total": lambda: total_func(),
    "mean": lambda: mean_func(),
    "gather": lambda: gather_func(),
    "argmax": lambda: argmax_func(),
}


def scalar_map() -> list[Any]:
    x = te.placeholder((), name="x")
    return [x, te.compute((), lambda: x() * 2.0, name="double")]
