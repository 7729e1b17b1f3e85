"""Tile graphs built by hand, in the shapes that reading real kernels gives them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tvm_ext.tile import Access, AffineDim, Axis, Tensor, TileGraph, TileNode

Index = dict[str, int]
"""One index of an access: coefficient by axis name; `{}` is the constant 0."""


class GraphBuilder:
    """Collects tensors and nodes. Axes are written `{"i": 4, "k*": 8}`: a star is a reduction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self.nodes: list[TileNode] = []

    def tensor(self, name: str, shape: Sequence[int], role: str = "inner") -> int:
        self.tensors.append(Tensor(name, tuple(shape), "float32", 4, role))
        return len(self.tensors) - 1

    def node(
        self,
        name: str,
        axes: dict[str, int],
        reads: Sequence[tuple[int, Sequence[Index | AffineDim]]],
        write: tuple[int, Sequence[Index]],
        flops: float = 1.0,
    ) -> None:
        loops = tuple(
            Axis(axis.rstrip("*"), extent, "reduce" if axis.endswith("*") else "space")
            for axis, extent in axes.items()
        )
        names = [axis.name for axis in loops]

        def access(tensor: int, indices: Sequence[Index | AffineDim]) -> Access:
            dims = (
                i
                if i is None or isinstance(i, AffineDim)
                else AffineDim(tuple(i.get(n, 0) for n in names))
                for i in indices
            )
            return Access(tensor, tuple(dims))

        self.nodes.append(
            TileNode(
                name,
                "reduce" if any(axis.kind == "reduce" for axis in loops) else "map",
                loops,
                tuple(access(*read) for read in reads),
                access(*write),
                flops,
            )
        )

    def graph(self) -> TileGraph:
        return TileGraph(self.name, tuple(self.tensors), tuple(self.nodes), f"by-hand-{self.name}")


def axis_dim(place: int, rank: int, div: int = 1, mod: int = 0) -> AffineDim:
    """An index that follows one axis, cut into blocks by `div` or `mod`."""
    return AffineDim(tuple(int(i == place) for i in range(rank)), 0, div, mod)


def conv(
    rows: int,
    columns: int,
    channels: int,
    out: int,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    block: int = 32,
    batch: int = 1,
    epilogue: bool = True,
) -> TileGraph:
    """Channels-last convolution with weights packed [O/B, kh, kw, C, B], then a clamp."""
    build = GraphBuilder(f"conv{kernel}x{kernel}")
    reach = [(size - 1) * stride + (kernel - 1) * dilation + 1 for size in (rows, columns)]
    x = build.tensor("x", (batch, *reach, channels), "input")
    w = build.tensor("w", (-(-out // block), kernel, kernel, channels, block), "input")
    y = build.tensor("y", (batch, rows, columns, out), "inner" if epilogue else "output")
    axes = {
        "n": batch,
        "p": rows,
        "q": columns,
        "o": out,
        "r*": kernel,
        "s*": kernel,
        "c*": channels,
    }
    window = [{"n": 1}, {"p": stride, "r": dilation}, {"q": stride, "s": dilation}, {"c": 1}]
    packed = [axis_dim(3, 7, div=block), {"r": 1}, {"s": 1}, {"c": 1}, axis_dim(3, 7, mod=block)]
    point = [{"n": 1}, {"p": 1}, {"q": 1}, {"o": 1}]
    build.node("conv", axes, [(x, window), (w, packed)], (y, point), 2.0)
    if epilogue:
        z = build.tensor("z", (batch, rows, columns, out), "output")
        build.node(
            "relu", {"n": batch, "p": rows, "q": columns, "o": out}, [(y, point)], (z, point)
        )
    return build.graph()


def depthwise(
    rows: int, columns: int, channels: int, kernel: int = 3, stride: int = 1, copied: bool = False
) -> TileGraph:
    """Depthwise convolution, channels last; of a `copied` input, or of the input itself."""
    build = GraphBuilder("depthwise")
    reach = [(size - 1) * stride + kernel for size in (rows, columns)]
    x = build.tensor("x", (1, *reach, channels), "input")
    if copied:
        point = [{"n": 1}, {"p": 1}, {"q": 1}, {"c": 1}]
        copy = build.tensor("copy", (1, *reach, channels), "inner")
        axes = {"n": 1, "p": reach[0], "q": reach[1], "c": channels}
        build.node("copy", axes, [(x, point)], (copy, point))
        x = copy
    w = build.tensor("w", (kernel, kernel, channels), "input")
    y = build.tensor("y", (1, rows, columns, channels), "output")
    build.node(
        "depthwise",
        {"n": 1, "p": rows, "q": columns, "c": channels, "r*": kernel, "s*": kernel},
        [
            (x, [{"n": 1}, {"p": stride, "r": 1}, {"q": stride, "s": 1}, {"c": 1}]),
            (w, [{"r": 1}, {"s": 1}, {"c": 1}]),
        ],
        (y, [{"n": 1}, {"p": 1}, {"q": 1}, {"c": 1}]),
        2.0,
    )
    return build.graph()


def grouped(rows: int, columns: int, channels: int, out: int, groups: int, block: int) -> TileGraph:
    """Grouped 3x3 convolution: x [n, h, w, G, C/G], weights packed [O/B, 3, 3, C/G, B]."""
    build = GraphBuilder("grouped")
    inner = channels // groups
    x = build.tensor("x", (1, rows + 2, columns + 2, groups, inner), "input")
    w = build.tensor("w", (-(-out // block), 3, 3, inner, block), "input")
    y = build.tensor("y", (1, rows, columns, out), "output")
    window = [
        {"n": 1},
        {"p": 1, "r": 1},
        {"q": 1, "s": 1},
        axis_dim(3, 7, div=out // groups),
        {"c": 1},
    ]
    packed = [axis_dim(3, 7, div=block), {"r": 1}, {"s": 1}, {"c": 1}, axis_dim(3, 7, mod=block)]
    build.node(
        "conv",
        {"n": 1, "p": rows, "q": columns, "o": out, "r*": 3, "s*": 3, "c*": inner},
        [(x, window), (w, packed)],
        (y, [{"n": 1}, {"p": 1}, {"q": 1}, {"o": 1}]),
        2.0,
    )
    return build.graph()


def pool(rows: int, columns: int, channels: int, kernel: int = 3, stride: int = 2) -> TileGraph:
    """Max pooling, channels last."""
    build = GraphBuilder("pool")
    reach = [(size - 1) * stride + kernel for size in (rows, columns)]
    x = build.tensor("x", (1, *reach, channels), "input")
    y = build.tensor("y", (1, rows, columns, channels), "output")
    build.node(
        "max",
        {"n": 1, "p": rows, "q": columns, "c": channels, "r*": kernel, "s*": kernel},
        [(x, [{"n": 1}, {"p": stride, "r": 1}, {"q": stride, "s": 1}, {"c": 1}])],
        (y, [{"n": 1}, {"p": 1}, {"q": 1}, {"c": 1}]),
    )
    return build.graph()


def matmul(m: int, n: int, k: int, block: int = 0) -> TileGraph:
    """a [m, k] times b [k, n], or b packed [n/B, k, B]."""
    build = GraphBuilder("matmul")
    a = build.tensor("a", (m, k), "input")
    c_at = [{"i": 1}, {"j": 1}]
    if block:
        b = build.tensor("b", (-(-n // block), k, block), "input")
        b_at = [axis_dim(1, 3, div=block), {"k": 1}, axis_dim(1, 3, mod=block)]
    else:
        b = build.tensor("b", (k, n), "input")
        b_at = [{"k": 1}, {"j": 1}]
    c = build.tensor("c", (m, n), "output")
    build.node(
        "matmul", {"i": m, "j": n, "k*": k}, [(a, [{"i": 1}, {"k": 1}]), (b, b_at)], (c, c_at), 2.0
    )
    return build.graph()


def softmax(rows: int, columns: int) -> TileGraph:
    """Softmax of every row in four stages: maximum, exponential, sum, quotient."""
    build = GraphBuilder("softmax")
    x = build.tensor("x", (rows, columns), "input")
    top = build.tensor("top", (rows,))
    power = build.tensor("power", (rows, columns))
    total = build.tensor("total", (rows,))
    y = build.tensor("y", (rows, columns), "output")
    each, row = [{"i": 1}, {"j": 1}], [{"i": 1}]
    over = {"i": rows, "k*": columns}
    build.node("max", over, [(x, [{"i": 1}, {"k": 1}])], (top, row))
    build.node("exp", {"i": rows, "j": columns}, [(x, each), (top, row)], (power, each), 30.0)
    build.node("sum", over, [(power, [{"i": 1}, {"k": 1}])], (total, row))
    build.node("divide", {"i": rows, "j": columns}, [(power, each), (total, row)], (y, each))
    return build.graph()


def elementwise(*shape: int, flops: float = 1.0) -> TileGraph:
    """y = f(x), element by element."""
    build = GraphBuilder("elementwise")
    axes = {f"i{place}": extent for place, extent in enumerate(shape)}
    point = [{name: 1} for name in axes]
    x = build.tensor("x", shape, "input")
    y = build.tensor("y", shape, "output")
    build.node("map", axes, [(x, point)], (y, point), flops)
    return build.graph()


def looked_up(height: int, width: int, channels: int, planes: bool = False) -> TileGraph:
    """y[h, w, c] = x[?, ?, c], from places that no affine map tells; with `planes` y[c, h, w]."""
    build = GraphBuilder("looked_up")
    axes = {"h": height, "w": width, "c": channels}
    order = "chw" if planes else "hwc"
    x = build.tensor("x", (14, 14, channels), "input")
    y = build.tensor("y", tuple(axes[name] for name in order), "output")
    build.node(
        "looked_up",
        {name: axes[name] for name in order},
        [(x, [None, None, {"c": 1}])],
        (y, [{name: 1} for name in order]),
        4.0,
    )
    return build.graph()


def transpose(rows: int, columns: int) -> TileGraph:
    """y[i, j] = x[j, i]."""
    build = GraphBuilder("transpose")
    x = build.tensor("x", (columns, rows), "input")
    y = build.tensor("y", (rows, columns), "output")
    build.node(
        "transpose",
        {"i": rows, "j": columns},
        [(x, [{"j": 1}, {"i": 1}])],
        (y, [{"i": 1}, {"j": 1}]),
        0.0,
    )
    return build.graph()


def total(*shape: int, kept: int = 0) -> TileGraph:
    """The sum over all but the first `kept` axes; over all of them into one element."""
    build = GraphBuilder("total")
    axes = {f"i{p}" if p < kept else f"k{p}*": extent for p, extent in enumerate(shape)}
    point = [{name.rstrip("*"): 1} for name in axes]
    x = build.tensor("x", shape, "input")
    y = build.tensor("y", shape[:kept], "output")
    build.node("sum", axes, [(x, point)], (y, point[:kept]))
    return build.graph()


def column_variance(rows: int, columns: int) -> TileGraph:
    """The sum of squares about the mean of every column."""
    build = GraphBuilder("column_variance")
    x = build.tensor("x", (rows, columns), "input")
    mean, y = build.tensor("mean", (columns,)), build.tensor("y", (columns,), "output")
    axes, row, column = {"c": columns, "k*": rows}, [{"k": 1}, {"c": 1}], [{"c": 1}]
    build.node("mean", axes, [(x, row)], (mean, column))
    build.node("squares", axes, [(x, row), (mean, column)], (y, column), 3.0)
    return build.graph()


def attention(rows: int, columns: int, depth: int) -> TileGraph:
    """Softmax of q [rows, depth] times k [columns, depth], times v [columns, depth]."""
    build = GraphBuilder("attention")
    q = build.tensor("q", (rows, depth), "input")
    k = build.tensor("k", (columns, depth), "input")
    v = build.tensor("v", (columns, depth), "input")
    scores = build.tensor("scores", (rows, columns))
    scaled = build.tensor("scaled", (rows, columns))
    top = build.tensor("top", (rows,))
    powers = build.tensor("powers", (rows, columns))
    total_ = build.tensor("total", (rows,))
    shares = build.tensor("shares", (rows, columns))
    y = build.tensor("y", (rows, depth), "output")
    i, j, d = {"i": 1}, {"j": 1}, {"d": 1}
    across = {"i": rows, "j": columns}
    down = {"i": rows, "j*": columns}
    build.node("qk", {**across, "d*": depth}, [(q, [i, d]), (k, [j, d])], (scores, [i, j]), 2.0)
    build.node("scale", across, [(scores, [i, j])], (scaled, [i, j]))
    build.node("max", down, [(scaled, [i, j])], (top, [i]))
    build.node("exp", across, [(scaled, [i, j]), (top, [i])], (powers, [i, j]), 10.0)
    build.node("sum", down, [(powers, [i, j])], (total_, [i]))
    build.node("divide", across, [(powers, [i, j]), (total_, [i])], (shares, [i, j]))
    axes = {"i": rows, "d": depth, "j*": columns}
    build.node("pv", axes, [(shares, [i, j]), (v, [j, d])], (y, [i, d]), 2.0)
    return build.graph()


def fused_attention(heads: int, queries: int, columns: int, keys: int, depth: int) -> TileGraph:
    """`compute.attention` of so many queries, padded to `columns`, with a bias for each key."""
    build = GraphBuilder("fused_attention")
    inputs = [
        build.tensor(name, (1, count, heads, depth), "input")
        for name, count in (("q", queries), ("k", keys), ("v", keys))
    ]
    q, k, v = inputs
    bias = build.tensor("bias", (1, 1, keys, 1), "input")
    square = (1, heads, keys, columns)
    turned = build.tensor("turned", (1, heads, depth, columns))
    scores, biased, power = (build.tensor(n, square) for n in ("scores", "biased", "power"))
    top, total = (build.tensor(n, (1, heads, columns)) for n in ("top", "total"))
    mixed = build.tensor("mixed", (1, heads, depth, columns))
    y = build.tensor("y", (1, queries, heads, depth), "output")
    b, h, i, j, d, r = ({axis: 1} for axis in "bhijdr")
    outer = {"b": 1, "h": heads}
    column = [b, h, i]
    build.node(
        "turned", {**outer, "d": depth, "i": columns}, [(q, [b, i, h, d])], (turned, [b, h, d, i])
    )
    build.node(
        "scores",
        {**outer, "j": keys, "i": columns, "d*": depth},
        [(k, [b, j, h, d]), (turned, [b, h, d, i])],
        (scores, [b, h, j, i]),
        2.0,
    )
    points = {**outer, "j": keys, "i": columns}
    at = [b, h, j, i]
    build.node("biased", points, [(scores, at), (bias, [{}, {}, j, {}])], (biased, at))
    down = {**outer, "i": columns, "j*": keys}
    build.node("top", down, [(biased, at)], (top, column))
    build.node("power", points, [(biased, at), (top, column)], (power, at), 20.0)
    build.node(
        "mixed",
        {**outer, "d": depth, "i": columns, "r*": keys},
        [(v, [b, r, h, d]), (power, [b, h, r, i])],
        (mixed, [b, h, d, i]),
        2.0,
    )
    build.node("total", down, [(power, at)], (total, column))
    build.node(
        "divided",
        {"b": 1, "i": queries, "h": heads, "d": depth},
        [(mixed, [b, h, d, i]), (total, column)],
        (y, [b, i, h, d]),
    )
    return build.graph()


GRAPHS: dict[str, TileGraph] = {
    "conv_large": conv(56, 56, 64, 64),
    "conv_stem": conv(112, 112, 3, 64, kernel=7, stride=2, block=32),
    "conv_1x1": conv(14, 14, 256, 1024, kernel=1),
    "conv_small": conv(5, 5, 3, 8, block=8),
    "conv_prime": conv(13, 11, 17, 31, block=31),
    "conv_dilated": conv(28, 28, 32, 64, dilation=2, batch=2, epilogue=False),
    "conv_one_pixel": conv(1, 1, 512, 1024, kernel=1),
    "grouped_large": grouped(56, 56, 128, 128, groups=4, block=32),
    "grouped_narrow": grouped(28, 28, 256, 256, groups=32, block=8),
    "grouped_by_lanes": grouped(28, 28, 128, 128, groups=32, block=16),
    "grouped_prime": grouped(7, 5, 10, 14, groups=2, block=7),
    "depthwise_large": depthwise(56, 56, 144),
    "depthwise_prime": depthwise(7, 5, 13, kernel=5, stride=2),
    "pool_large": pool(56, 56, 64),
    "pool_prime": pool(7, 5, 13),
    "matmul_packed": matmul(384, 768, 768, block=32),
    "matmul_plain": matmul(197, 1000, 64),
    "matmul_vector": matmul(1, 1000, 512, block=32),
    "matmul_column": matmul(197, 1, 64),
    "matmul_prime": matmul(31, 37, 41),
    "matmul_tiny": matmul(2, 3, 2),
    "softmax_large": softmax(12 * 384, 384),
    "softmax_prime": softmax(7, 1009),
    "softmax_one": softmax(1, 1),
    "elementwise_large": elementwise(8, 128, 56, 56),
    "elementwise_prime": elementwise(1009),
    "elementwise_one": elementwise(1, 1),
    "gelu_large": elementwise(384, 3072, flops=40.0),
    "transpose_large": transpose(512, 384),
    "transpose_prime": transpose(31, 17),
    "sum_rows": total(512, 1024, kept=1),
    "sum_prime": total(7, 11, 13, kept=2),
    "sum_to_scalar": total(64, 1024),
    "column_variance_large": column_variance(1599, 512),
    "column_variance_prime": column_variance(31, 37),
    "attention_large": attention(128, 384, 64),
    "attention_prime": attention(7, 13, 5),
    "fused_attention_large": fused_attention(12, 384, 384, 384, 64),
    "fused_attention_prime": fused_attention(3, 29, 32, 13, 5),
}


def touched(
    graph: TileGraph, access: Access, node: TileNode, start: Sequence[int], size: Sequence[int]
) -> set[tuple[int, ...]]:
    """Elements an access really touches while its node runs over a box of iterations."""
    ranges = [
        range(at, min(at + extent, axis.extent))
        for at, extent, axis in zip(start, size, node.axes, strict=True)
    ]
    found = set()
    for point in product(*ranges):
        index = []
        for dim in access.dims:
            assert dim is not None
            value = (
                sum(c * v for c, v in zip(dim.coeffs, point, strict=True)) + dim.offset
            ) // dim.div
            index.append(value % dim.mod if dim.mod else value)
        found.add(tuple(index))
    return found
