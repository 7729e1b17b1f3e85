"""Laws of tiles: what a tile touches, what its producers must make, what it costs to move."""

from __future__ import annotations

from itertools import product
from math import prod

import msgspec
import pytest
from graphs import GRAPHS, conv, depthwise, elementwise, matmul, pool, softmax, touched, transpose
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.tile import (
    Access,
    AffineDim,
    Axis,
    LevelTile,
    Tensor,
    Tile,
    TileGraph,
    TileNode,
    TilePlan,
    show_graph,
)
from tvm_ext.tile.footprint import access_bytes, footprint_bytes
from tvm_ext.tile.infer import propagate, region
from tvm_ext.tile.nest import Nest, crowding

SLIDING = {
    "conv": conv(6, 5, 2, 4, block=4),
    "conv_strided": conv(4, 3, 2, 4, stride=2, block=2),
    "conv_1x1_strided": conv(4, 3, 2, 4, kernel=1, stride=2, block=4),
    "conv_dilated": conv(5, 4, 1, 2, kernel=2, dilation=3, block=2),
    "depthwise": depthwise(4, 5, 3),
    "pool": pool(3, 4, 2),
    "pool_gaps": pool(3, 4, 2, kernel=2, stride=3),
    "matmul": matmul(5, 6, 4),
    "transpose": transpose(5, 4),
    "softmax": softmax(4, 5),
}


def traffic_bytes(
    graph: TileGraph, node: TileNode, tile: Tile, order: tuple[int, ...], line_bytes: int
) -> float:
    """Traffic of the whole operator into a level that holds one tile and nothing more."""
    plan = TilePlan("tile", 0, (LevelTile("register", tile),), order, parallel=0)
    return Nest(graph, node, plan, Tile(node.extents), line_bytes).bytes_into(0)[0]


def tiles_of(node: TileNode, whole_reduction: bool = False) -> list[Tile]:
    """Tiles of a node: each extent 1, about half, or the whole axis."""
    choices = [
        [axis.extent]
        if whole_reduction and axis.kind == "reduce"
        else sorted({1, (axis.extent + 1) // 2, axis.extent})
        for axis in node.axes
    ]
    return [Tile(extents) for extents in product(*choices)]


@pytest.mark.parametrize("name", SLIDING)
def test_a_region_counts_at_least_what_is_touched(name: str) -> None:
    graph = SLIDING[name]
    for node in graph.nodes:
        for tile in tiles_of(node):
            for access in (*node.reads, node.write):
                box = region(access, tile, graph.tensors[access.tensor].shape)
                found = touched(graph, access, node, [0] * len(node.axes), tile.extents)
                for place, size in enumerate(box):
                    assert size >= len({index[place] for index in found})
                assert prod(box) >= len(found)


@pytest.mark.parametrize("name", SLIDING)
def test_a_region_is_a_box_around_what_is_touched(name: str) -> None:
    """From the first to the last element touched is no further than the box reaches."""
    graph = SLIDING[name]
    for node in graph.nodes:
        for tile in tiles_of(node, whole_reduction=True):
            for access in (*node.reads, node.write):
                box = region(access, tile, graph.tensors[access.tensor].shape)
                found = touched(graph, access, node, [0] * len(node.axes), tile.extents)
                for place, size in enumerate(box):
                    values = {index[place] for index in found}
                    assert size > max(values) - min(values)


def chain(stride: int, dilation: int) -> TileGraph:
    """A map stage, then a pooling window over it: the producer is what propagation must size."""
    window = pool(4, 3, 2, kernel=2, stride=stride)
    node = window.nodes[0]
    before, after = window.tensors
    sliding = Access(
        1,
        tuple(
            AffineDim(
                tuple(c * dilation if i in node.reduce else c for i, c in enumerate(d.coeffs))
            )
            for d in node.reads[0].dims
            if d is not None
        ),
    )
    shape = tuple(
        sum(c * (e - 1) for c, e in zip(d.coeffs, node.extents, strict=True)) + 1
        for d in sliding.dims
        if d is not None
    )
    map_node = elementwise(*shape).nodes[0]
    inner = Tensor("inner", shape, "float32", 4, "inner")
    tensors = (msgspec.structs.replace(before, shape=shape), inner, after)
    consumer = msgspec.structs.replace(
        node, reads=(sliding,), write=msgspec.structs.replace(node.write, tensor=2)
    )
    return TileGraph("chain", tensors, (map_node, consumer))


CHAINS = {
    "softmax": softmax(4, 5),
    "conv_relu": conv(3, 4, 2, 4, block=4),
    "window": chain(stride=1, dilation=1),
    "window_strided": chain(stride=2, dilation=1),
    "window_dilated": chain(stride=1, dilation=2),
    "window_gaps": chain(stride=3, dilation=1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_propagation_gives_producers_all_that_is_read(name: str) -> None:
    """Wherever the tile lies, the box of each producer holds every element its readers touch."""
    graph = CHAINS[name]
    last = len(graph.nodes) - 1
    node = graph.nodes[last]
    for tile in tiles_of(node, whole_reduction=True):
        tiles = propagate(graph, last, tile)
        assert tiles[last] == tile
        counts = tile.counts(node.axes)
        for place in product(*(sorted({0, count - 1}) for count in counts)):
            start = [at * extent for at, extent in zip(place, tile.extents, strict=True)]
            wanted = {last: touched(graph, node.write, node, start, tile.extents)}
            for index in range(last, -1, -1):
                reader = graph.nodes[index]
                if index not in wanted:
                    continue
                points = iterations_writing(reader, wanted[index])
                for access in reader.reads:
                    source = graph.producer(access.tensor)
                    if source is not None:
                        elements = {
                            e for p in points for e in touched(graph, access, reader, p, unit(p))
                        }
                        wanted[source] = wanted.get(source, set()) | elements
            for index, elements in wanted.items():
                writer = graph.nodes[index]
                box = region(writer.write, tiles[index], graph.tensors[writer.write.tensor].shape)
                for dim, size in enumerate(box):
                    values = [element[dim] for element in elements]
                    assert max(values) - min(values) < size, (show_graph(graph), tile, index)


def unit(point: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * len(point)


def iterations_writing(node: TileNode, elements: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Iterations of a node that write one of the elements; the nodes here write y[space axes]."""
    ranges = [range(axis.extent) for axis in node.axes]
    return [p for p in product(*ranges) if tuple(p[axis] for axis in node.space) in elements]


@st.composite
def growing_tiles(draw: st.DrawFn) -> tuple[TileGraph, TileNode, Tile, Tile]:
    """A node with a tile and one at least as large along every axis."""
    graph = draw(st.sampled_from([*SLIDING.values(), *GRAPHS.values()]))
    node = draw(st.sampled_from(graph.nodes))
    inner = [draw(st.integers(1, axis.extent)) for axis in node.axes]
    outer = [draw(st.integers(t, a.extent)) for t, a in zip(inner, node.axes, strict=True)]
    return graph, node, Tile(tuple(inner)), Tile(tuple(outer))


@given(growing_tiles())
def test_footprint_grows_with_the_tile(given: tuple[TileGraph, TileNode, Tile, Tile]) -> None:
    graph, node, inner, outer = given
    assert 0 < footprint_bytes(graph, node, inner) <= footprint_bytes(graph, node, outer)


@given(growing_tiles(), st.sampled_from([1, 32, 64, 128]))
def test_whole_lines_are_at_least_their_bytes(
    given: tuple[TileGraph, TileNode, Tile, Tile], line_bytes: int
) -> None:
    graph, node, tile, _ = given
    for access in (*node.reads, node.write):
        exact = access_bytes(graph, access, tile)
        rounded = access_bytes(graph, access, tile, line_bytes)
        assert exact <= rounded <= exact * line_bytes
        assert rounded % line_bytes == 0


@st.composite
def ordered_tiles(draw: st.DrawFn) -> tuple[TileGraph, TileNode, Tile, tuple[int, ...]]:
    graph, node, tile, _ = draw(growing_tiles())
    return graph, node, tile, tuple(draw(st.permutations(range(len(node.axes)))))


@given(ordered_tiles(), st.sampled_from([1, 64]))
def test_traffic_is_never_below_what_must_move(
    given: tuple[TileGraph, TileNode, Tile, tuple[int, ...]], line_bytes: int
) -> None:
    graph, node, tile, order = given
    whole = Tile(node.extents)
    compulsory = sum(read_bytes(graph, node, access) for access in (*node.reads, node.write))
    assert traffic_bytes(graph, node, tile, order, line_bytes) >= compulsory
    assert traffic_bytes(graph, node, whole, order, 1) == footprint_bytes(graph, node, whole)


def read_bytes(graph: TileGraph, node: TileNode, access: Access) -> int:
    """What all points of a node touch, without what fills the last block of a packed tensor up."""
    dims = [dim for dim in access.dims if dim is not None]
    axes = {axis for dim in dims for axis, factor in enumerate(dim.coeffs) if factor}
    hull = access_bytes(graph, access, Tile(node.extents))
    if len(dims) < len(access.dims):
        return hull
    points = prod(node.axes[axis].extent for axis in axes)
    return min(hull, points * graph.tensors[access.tensor].dtype_bytes)


def test_what_fills_a_block_up_need_not_move() -> None:
    graph = matmul(1, 1000, 512, block=32)
    (node,) = graph.nodes
    traffic = traffic_bytes(graph, node, Tile((1, 1, 512)), (0, 1, 2), 1)
    assert traffic == (512 + 1000 * 512 + 1000) * 4


@st.composite
def divisor_growth(draw: st.DrawFn) -> tuple[TileGraph, TileNode, Tile, Tile, tuple[int, ...]]:
    """A tile of divisors, and the same grown along one axis to a multiple that divides it too."""
    graph = draw(st.sampled_from([*SLIDING.values(), *GRAPHS.values()]))
    node = draw(st.sampled_from([linear_reads(node) for node in graph.nodes]))
    extents = [draw(st.sampled_from(divisors(axis.extent))) for axis in node.axes]
    axis = draw(st.integers(0, len(extents) - 1))
    grown = list(extents)
    factors = divisors(node.axes[axis].extent // extents[axis])
    grown[axis] *= draw(st.sampled_from(factors))
    order = tuple(draw(st.permutations(range(len(extents)))))
    return graph, node, Tile(tuple(extents)), Tile(tuple(grown)), order


def linear_reads(node: TileNode) -> TileNode:
    """The node without its reads of packed tensors."""
    reads = tuple(
        r for r in node.reads if all(d is None or (d.div, d.mod) == (1, 0) for d in r.dims)
    )
    return msgspec.structs.replace(node, reads=reads)


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


@given(divisor_growth())
def test_traffic_never_grows_with_a_tile_that_divides(
    given: tuple[TileGraph, TileNode, Tile, Tile, tuple[int, ...]],
) -> None:
    """Bytes, not lines; and both tiles divide the axis, because a tail is charged as a whole tile.

    Nor does it hold for packed tensors: a tile of 40 touches two blocks of 32, one of 8 just one.
    """
    graph, node, tile, grown, order = given
    before = traffic_bytes(graph, node, tile, order, 1)
    assert traffic_bytes(graph, node, grown, order, 1) <= before


def gather(rows: int, columns: int, taken: int) -> TileGraph:
    """y[i, c] = table[index[i], c]."""
    axes = (Axis("i", taken), Axis("c", columns))
    i, c = AffineDim((1, 0)), AffineDim((0, 1))
    reads = (Access(0, (None, c)), Access(1, (i,)))
    node = TileNode("take", "map", axes, reads, Access(2, (i, c)), 0.0)
    tensors = (
        Tensor("table", (rows, columns), "float32", 4, "input"),
        Tensor("index", (taken,), "int64", 8, "input"),
        Tensor("y", (taken, columns), "float32", 4, "output"),
    )
    return TileGraph("take", tensors, (node,))


def test_a_gather_touches_the_rows_it_takes() -> None:
    """Not the table (BERT's of 94 MB: 184 us were predicted, 30 measured)."""
    graph = gather(rows=30_000, columns=768, taken=128)
    (node,) = graph.nodes
    table = node.reads[0]
    assert access_bytes(graph, table, Tile((128, 768)), 64) == 128 * 768 * 4
    assert access_bytes(graph, table, Tile((1, 8)), 64) == 64
    assert graph.io_bytes == 2 * 128 * 768 * 4 + 128 * 8


def test_a_small_table_is_touched_once() -> None:
    graph = gather(rows=3, columns=16, taken=100)
    assert access_bytes(graph, graph.nodes[0].reads[0], Tile((100, 16))) == 3 * 16 * 4


def test_a_line_of_which_each_step_of_a_reduction_takes_a_part_is_fetched_once() -> None:
    """16 steps of 4 elements along rows of 64 take the lines that 4 steps of 16 take."""
    graph = matmul(8, 32, 64, block=32)
    node = graph.nodes[0]
    order = (1, 0, 2)
    short, long = (
        traffic_bytes(graph, node, Tile((4, 32, step)), order, line_bytes=64) for step in (4, 16)
    )
    assert short == long


def test_a_line_of_which_each_tile_of_a_map_takes_a_part_is_fetched_for_each() -> None:
    graph = elementwise(1, 8, 8, 64)
    node = graph.nodes[0]
    half, whole = (
        traffic_bytes(graph, node, Tile((1, 1, 4, width)), (0, 1, 2, 3), line_bytes=64)
        for width in (8, 16)
    )
    assert half == 2 * whole


@pytest.mark.parametrize(
    ("channels", "stride", "rows", "columns", "expected"),
    [
        (512, 1, 1, 13, 32),  # pixels lie 2 KiB apart, of each a line is read
        (512, 2, 1, 13, 64),  # every second one: all in one set of the first cache
        (256, 2, 1, 13, 32),
        (96, 1, 1, 13, 2),
        (64, 1, 7, 1, 8),  # one pixel of each row of 18: 4.5 KiB apart
        (512, 2, 1, 1, 1),
        (4, 2, 1, 13, 1),  # of each pixel all channels: 13 lines that lie side by side
    ],
)
def test_rows_a_power_of_two_apart_crowd(
    channels: int, stride: int, rows: int, columns: int, expected: int
) -> None:
    """13 x 2 vectors of a convolution with stride 2 over 512 channels took 1.26 times as long as 8
    x 2, which the model did not see."""
    graph = conv(14, 16, channels, 64, stride=stride)
    node = graph.nodes[0]
    x = graph.tensors[node.reads[0].tensor]
    tile = Tile((1, rows, columns, 32, 1, 1, 4))
    assert crowding(node.reads[0], tile, x, x.shape, 64) == expected


def test_rows_crowd_by_parts_too() -> None:
    """Of every 1 KiB 576 bytes take as much room as all of it."""
    node = (graph := conv(14, 16, 256, 64)).nodes[0]
    x = graph.tensors[node.reads[0].tensor]
    tile = Tile((1, 1, 13, 32, 1, 1, 144))
    assert crowding(node.reads[0], tile, x, x.shape, 64) == 1024 / 576
