"""Taps in padding: which part of a window's work a tile needs."""

from __future__ import annotations

import pytest
from graphs import GraphBuilder
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.hardware import get
from tvm_ext.picker.perf import compute_cycles
from tvm_ext.tile import Tile
from tvm_ext.tile.graph import AffineDim, TileGraph
from tvm_ext.tile.skip import WORTH, needed_share, skipped
from tvm_ext.tile.strip import strip, strip_tiles


def padded(size: int, kernel: int, dilation: int, pad: int, stride: int = 1) -> TileGraph:
    """A line of 16 channels, padded on both sides, under a window to 32 channels."""
    build = GraphBuilder("padded")
    x = build.tensor("x", (size, 16), "input")
    wide = build.tensor("wide", (size + 2 * pad, 16))
    w = build.tensor("w", (kernel, 16, 32), "input")
    count = (size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    y = build.tensor("y", (count, 32), "output")
    moved = AffineDim((1, 0), -pad)
    axes = {"i": size + 2 * pad, "c": 16}
    build.node("pad", axes, [(x, [moved, {"c": 1}])], (wide, [{"i": 1}, {"c": 1}]), 0.0)
    window = [{"p": stride, "k": dilation}, {"c": 1}]
    weights = [{"k": 1}, {"c": 1}, {"o": 1}]
    axes = {"p": count, "o": 32, "k*": kernel, "c*": 16}
    build.node("conv", axes, [(wide, window), (w, weights)], (y, [{"p": 1}, {"o": 1}]), 2.0)
    return build.graph()


@given(
    st.integers(3, 40),
    st.integers(2, 5),
    st.integers(1, 14),
    st.integers(0, 20),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_what_is_needed_is_what_reads_the_image(
    size: int, kernel: int, dilation: int, pad: int, stride: int, width: int
) -> None:
    if size + 2 * pad <= (kernel - 1) * dilation:
        return
    graph = padded(size, kernel, dilation, pad, stride)
    node = graph.nodes[1]
    count = node.extents[0]
    width = min(width, count)
    tile = Tile((width, 32, 1, 4))
    read = [
        any(0 <= (at + i) * stride + tap * dilation - pad < size for i in range(width))
        for at in (min(begin, count - width) for begin in range(0, count, width))
        for tap in range(kernel)
    ]
    needed = sum(read) / len(read)
    for margin in skipped(graph, node, tile):
        share = margin.share(node, tile)
        assert share == needed if stride == 1 else share >= needed
    if not skipped(graph, node, tile):
        assert needed > 1 - WORTH or stride > 1


def test_the_taps_of_a_pyramid() -> None:
    """33 points, taps 12 apart: 12 points have no left tap and 12 no right one."""
    graph = padded(33, 3, 12, 12)
    node = graph.nodes[1]
    assert needed_share(graph, node, Tile((1, 32, 1, 4))) == pytest.approx(75 / 99)
    assert needed_share(graph, node, Tile((6, 32, 1, 4))) == pytest.approx(14 / 18)
    hardware = get("cpu/x86-avx512")
    times = [
        compute_cycles(one, one.nodes[1], Tile((33, 32, 3, 16)), Tile((1, 32, 1, 4)), 16, hardware)
        for one in (graph, padded(33, 3, 1, 1))
    ]
    assert times[0] == pytest.approx(75 / 99 * times[1])


def test_every_place_of_a_whole_row_is_known() -> None:
    """Of 7 points under 7 taps 37 of 49 are inside; a tile of part of a row may lie anywhere."""
    graph = padded(7, 7, 1, 3)
    node = graph.nodes[1]
    assert needed_share(graph, node, Tile((7, 32, 7, 4))) == pytest.approx(37 / 49)
    assert needed_share(graph, node, Tile((4, 32, 7, 4))) == 1


def test_a_plain_window_is_not_asked() -> None:
    graph = padded(56, 3, 1, 1)
    assert skipped(graph, graph.nodes[1], Tile((7, 32, 1, 4))) == ()


def test_a_strip_in_the_middle_reaches_no_padding() -> None:
    """All strips were taken for the first one, of which a third of the taps lies in padding."""
    graph = padded(8, 3, 2, 2)
    tile = next(tile for tile in strip_tiles(graph) if tile.extents[0] == 4)
    part = strip(graph, tile)
    assert part is not None
    register = Tile((1, 32, 1, 4))
    assert needed_share(part.graph, part.graph.nodes[-1], register) == 1
    assert needed_share(graph, graph.nodes[-1], register) == pytest.approx(20 / 24)
