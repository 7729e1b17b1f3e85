"""Loop orders: memory is walked as it lies, unless that would fetch weights again and again."""

from __future__ import annotations

import msgspec
import pytest
from graphs import (
    GraphBuilder,
    axis_dim,
    conv,
    depthwise,
    elementwise,
    looked_up,
    matmul,
    pool,
    transpose,
)

from tvm_ext.hardware import get
from tvm_ext.picker.company import exchange_us
from tvm_ext.picker.issue import LINES_CROSSED, picked_loads
from tvm_ext.picker.order import HELD, NEAR, loop_order, plain_order, reduce_order, square_order
from tvm_ext.tile import Tile, TileGraph
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.plan import LevelTile, TilePlan

HARDWARE = get("cpu/x86-avx512")


def is_plain(graph: TileGraph, anchor: int, **sizes: int) -> bool:
    """Whether the loops of a core tile are in plain order; `sizes` are those of axes a0, a1, ..."""
    node = graph.nodes[anchor]
    extents = [sizes.get(f"a{place}", axis.extent) for place, axis in enumerate(node.axes)]
    found = loop_order(graph, node, vector_axis(node), Tile(tuple(extents)), HARDWARE)
    assert sorted(found) == list(range(len(node.axes)))
    return found == plain_order(node)


@pytest.mark.parametrize(
    "graph", [depthwise(14, 14, 512), pool(56, 56, 64), elementwise(1, 56, 56, 96)]
)
def test_data_read_in_vectors_is_walked_as_it_lies(graph: TileGraph) -> None:
    assert all(
        is_plain(graph, place) for place, node in enumerate(graph.nodes) if node.kind == "reduce"
    )
    assert is_plain(graph, len(graph.nodes) - 1)


def test_what_is_looked_up_is_written_as_it_lies() -> None:
    """y[h, w, c] = x[?, ?, c]: nothing says that what is read stays in cache."""
    assert is_plain(looked_up(56, 56, 256), 0)


def test_places_along_vectors_are_worked_out_for_all_rows_at_once() -> None:
    """y[c, h, w] = x[?, ?, c]: vectors lie along the width, whose places no affine map tells."""
    assert not is_plain(looked_up(56, 56, 32, planes=True), 0)


def test_a_transposition_keeps_the_order_of_what_it_reads() -> None:
    assert not is_plain(transpose(512, 384), 0)


def test_small_weights_are_read_again_for_each_row_and_large_ones_stay() -> None:
    """64 x 32 weights against 1024 x 1024, and against a part of those that is small enough."""
    small, large = matmul(729, 64, 32, block=32), matmul(729, 1024, 1024, block=32)
    assert is_plain(small, 0)
    assert not is_plain(large, 0)
    near = NEAR * HARDWARE.levels[1].size_bytes
    assert 1024 * 4 * 8 <= near < 1024 * 4 * 32
    assert is_plain(large, 0, a1=8)
    assert not is_plain(large, 0, a0=64, a1=32)


def test_weights_that_a_core_holds_are_read_again_where_it_cannot_hold_the_rows() -> None:
    """128 KiB of weights, and 3 MiB or 256 KiB of rows."""
    graph = matmul(729, 1024, 1024, block=32)
    assert 64 * 4096 < HARDWARE.own_cache_bytes < 729 * 4096
    assert is_plain(graph, 0, a1=32)
    assert not is_plain(graph, 0, a0=64, a1=32)
    assert HELD * HARDWARE.own_cache_bytes < 1024 * 4096
    assert not is_plain(graph, 0)


def test_weights_of_a_short_sum_stay_in_registers() -> None:
    """Rows of 3 and of 9 elements by 256: the first sum is straight code, with columns outside."""
    assert not is_plain(matmul(4096, 256, 3, block=32), 0)
    assert is_plain(matmul(4096, 256, 9, block=32), 0)


def grouped_product(rows: int, groups: int, inner: int, outer: int) -> TileGraph:
    """y[p, g, o] += x[p, g, c] * w[g, o // 16, c, o % 16]."""
    build = GraphBuilder("grouped")
    x = build.tensor("x", (rows, groups, inner), "input")
    w = build.tensor("w", (groups, outer // 16, inner, 16), "input")
    y = build.tensor("y", (rows, groups, outer), "output")
    packed = [{"g": 1}, axis_dim(2, 4, div=16), {"c": 1}, axis_dim(2, 4, mod=16)]
    build.node(
        "product",
        {"p": rows, "g": groups, "o": outer, "c*": inner},
        [(x, [{"p": 1}, {"g": 1}, {"c": 1}]), (w, packed)],
        (y, [{"p": 1}, {"g": 1}, {"o": 1}]),
        2.0,
    )
    return build.graph()


def test_rows_are_not_cut_by_groups_whose_weights_have_room() -> None:
    held = HELD * HARDWARE.own_cache_bytes
    assert 4 * 32 * 144 * 4 <= held < 4 * 256 * 1024 * 4
    assert is_plain(grouped_product(784, 4, 32, 144), 0)
    assert not is_plain(grouped_product(784, 4, 256, 1024), 0)


def test_a_single_row_reads_its_weights_once_in_any_order() -> None:
    graph = conv(1, 28, 128, 256, kernel=1)
    anchor = next(place for place, node in enumerate(graph.nodes) if node.kind == "reduce")
    assert not is_plain(graph, anchor)


@pytest.mark.parametrize(("channels", "order"), [(3, (4, 3)), (64, (3, 4))])
def test_taps_along_rows_are_not_the_inner_loop_over_few_channels(
    channels: int, order: tuple[int, int]
) -> None:
    """Or LLVM unrolls them and keeps alive what they share (3 channels, 3 x 3: 212 us, not 163)."""
    graph = conv(56, 56, channels, 32)
    node = next(node for node in graph.nodes if node.kind == "reduce")
    down, along, inner = node.reduce
    taps = {3: down, 4: along}
    assert reduce_order(node) == (*(taps[place] for place in order), inner)


def turned(channels: int, size: int, *, back: bool = False) -> TileGraph:
    """Planes to channels last, or back to planes."""
    planes, last = (channels, size, size), (size, size, channels)
    build = GraphBuilder("turned")
    x = build.tensor("x", last if back else planes, "input")
    y = build.tensor("y", planes if back else last, "output")
    axes = {"c": channels, "h": size, "w": size}
    names = ("c", "h", "w"), ("h", "w", "c")
    read, written = names if not back else reversed(names)
    at = [[{name: 1} for name in one] for one in (read, written)]
    build.node("turn", {name: axes[name] for name in written}, [(x, at[0])], (y, at[1]), 0.0)
    return build.graph()


@pytest.mark.parametrize(
    ("channels", "size", "back", "order"),
    [
        (128, 35, False, "hcw"),
        (128, 35, True, "hcw"),
        (512, 16, False, "hwc"),
        (96, 112, False, "chw"),
        (96, 112, True, "chw"),
    ],
)
def test_a_transposition_walks_along_few_pages(
    channels: int, size: int, back: bool, order: str
) -> None:
    """Row by row in the cores' own caches, and beyond them by the nearest axis."""
    graph = turned(channels, size, back=back)
    held = graph.io_bytes <= HARDWARE.own_cache_bytes * 2
    assert held == (order[0] == "h")
    node, hw = graph.nodes[0], msgspec.structs.replace(HARDWARE, cores=2)
    square = Tile(tuple(16 if axis.name in "cw" else 1 for axis in node.axes))
    found = square_order(graph, node, square, hw)
    assert "".join(node.axes[axis].name for axis in found) == order


@pytest.mark.parametrize(("channels", "size"), [(96, 56), (512, 3)])
def test_rows_stay_with_their_core_on_the_way_back_to_planes(channels: int, size: int) -> None:
    """Cut along them, a core finds what it wrote; where they are short it shares every line."""
    graph = turned(channels, size, back=True)
    hw = msgspec.structs.replace(HARDWARE, cores=2)

    def cut(core: tuple[int, int, int], count: int) -> float:
        tiles = LevelTile("core", Tile(core)), LevelTile("register", Tile((1, 1, 1)))
        return exchange_us(graph, TilePlan("tile", 0, tiles, (0, 1, 2), count, 16), hw)

    by_rows = cut((channels, -(-size // 2), size), 2)
    by_channels = cut((channels // 2, size, size), 1)
    assert (by_rows < by_channels) == (size > 3)


def test_planes_that_are_pooled_are_walked_as_they_lie() -> None:
    """y[c, q] = the largest of x[c, 2q + s]: vectors along q, their elements two apart."""
    build = GraphBuilder("pool")
    x, y = build.tensor("x", (64, 201), "input"), build.tensor("y", (64, 100), "output")
    read = (x, [{"c": 1}, {"q": 2, "s": 1}])
    build.node("max", {"c": 64, "q": 100, "s*": 3}, [read], (y, [{"c": 1}, {"q": 1}]))
    graph = build.graph()
    assert is_plain(graph, 0)
    loads = picked_loads(graph, graph.nodes[0], graph.nodes[0].reads[0], Tile((4, 32, 3)), 16)
    assert loads == 4 * 2 * 3 * 2 * LINES_CROSSED
