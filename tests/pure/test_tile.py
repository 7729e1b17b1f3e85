"""Laws of tiles: what covers what, what a tile touches, what it costs to move."""

from __future__ import annotations

from itertools import product
from math import prod

import msgspec
import pytest
from graphs import GRAPHS, conv, depthwise, elementwise, matmul, pool, softmax, touched, transpose
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import PlanError
from tvm_ext.tile import (
    Access,
    AffineDim,
    Attach,
    Axis,
    LevelTile,
    Tensor,
    Tile,
    TileGraph,
    TileNode,
    TilePlan,
    decode_plan,
    encode_plan,
    show_graph,
    show_plan,
)
from tvm_ext.tile.classify import has_reuse, is_flat, overlaps, vector_axis, vectorisable
from tvm_ext.tile.footprint import access_bytes, footprint_bytes, traffic_bytes
from tvm_ext.tile.infer import propagate, region

small = st.integers(1, 6)


@st.composite
def axes_and_tiles(draw: st.DrawFn, max_rank: int = 4) -> tuple[tuple[Axis, ...], Tile]:
    """Axes with a tile that fits them."""
    extents = draw(st.lists(st.integers(1, 9), min_size=1, max_size=max_rank))
    axes = tuple(Axis(f"i{place}", extent) for place, extent in enumerate(extents))
    return axes, Tile(tuple(draw(st.integers(1, extent)) for extent in extents))


@given(axes_and_tiles(max_rank=3))
def test_tiles_cover_every_iteration_exactly_once(given: tuple[tuple[Axis, ...], Tile]) -> None:
    axes, tile = given
    assert tile.fits(axes)
    visits: dict[tuple[int, ...], int] = {}
    for place in product(*(range(count) for count in tile.counts(axes))):
        starts = [at * extent for at, extent in zip(place, tile.extents, strict=True)]
        inside = [
            range(start, min(start + extent, axis.extent))
            for start, extent, axis in zip(starts, tile.extents, axes, strict=True)
        ]
        assert all(inside), "no tile is empty"
        for point in product(*inside):
            visits[point] = visits.get(point, 0) + 1
    assert len(visits) == prod(axis.extent for axis in axes)
    assert set(visits.values()) == {1}


@given(axes_and_tiles())
def test_waste_is_a_fraction_and_zero_only_for_divisors(
    given: tuple[tuple[Axis, ...], Tile],
) -> None:
    axes, tile = given
    waste = tile.waste(axes)
    assert 0.0 <= waste < 1.0
    divides = all(axis.extent % extent == 0 for axis, extent in zip(axes, tile.extents, strict=True))
    assert (waste == 0.0) == divides


@pytest.mark.parametrize("extents", [(3,), (3, 0), (3, 8), (4, 7), (-1, 7)])
def test_a_tile_that_does_not_fit(extents: tuple[int, ...]) -> None:
    assert Tile((3, 7)).fits((Axis("i", 3), Axis("j", 7)))
    assert not Tile(extents).fits((Axis("i", 3), Axis("j", 7)))


def distinct(dim: AffineDim, extents: tuple[int, ...]) -> int:
    """How many values the index takes, by trying all iterations."""
    access = Access(0, (dim,))
    node = TileNode("n", "map", tuple(Axis("i", extent) for extent in extents), (), access, 0.0)
    graph = TileGraph("g", (), (node,))
    return len(touched(graph, access, node, [0] * len(extents), extents))


extents3 = st.tuples(small, small, small)


@given(st.tuples(*(st.sampled_from([-1, 0, 1]),) * 3), extents3, st.integers(0, 5))
def test_span_is_exact_for_unit_strides(
    coeffs: tuple[int, ...], extents: tuple[int, ...], offset: int
) -> None:
    dim = AffineDim(coeffs, offset)
    assert dim.span(extents) == distinct(dim, extents)


@given(st.integers(-7, 7), small, st.integers(0, 2))
def test_span_is_exact_for_one_axis(coeff: int, extent: int, place: int) -> None:
    coeffs = tuple(coeff if i == place else 0 for i in range(3))
    extents = tuple(extent if i == place else 4 for i in range(3))
    dim = AffineDim(coeffs)
    assert dim.span(extents) == distinct(dim, extents)


@given(
    st.tuples(*(st.integers(0, 5),) * 3), extents3, st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 8])
)
def test_span_is_an_upper_bound(
    coeffs: tuple[int, ...], extents: tuple[int, ...], div: int, mod: int
) -> None:
    dim = AffineDim(coeffs, 0, div, mod)
    assert dim.span(extents) >= distinct(dim, extents)


@given(st.tuples(*(st.integers(0, 3),) * 2), st.tuples(small, small), st.integers(0, 9), small)
def test_span_is_an_upper_bound_wherever_the_index_starts(
    coeffs: tuple[int, ...], extents: tuple[int, ...], offset: int, div: int
) -> None:
    """x[(i + 1) // 2] over i < 2 touches two elements, not one."""
    dim = AffineDim(coeffs, offset, div)
    assert dim.span(extents) >= distinct(dim, extents)


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
            AffineDim(tuple(c * dilation if i in node.reduce else c for i, c in enumerate(d.coeffs)))
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
                        elements = {e for p in points for e in touched(graph, access, reader, p, unit(p))}
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
    compulsory = footprint_bytes(graph, node, Tile(node.extents))
    assert traffic_bytes(graph, node, tile, order, line_bytes) >= compulsory
    assert traffic_bytes(graph, node, Tile(node.extents), order, 1) == compulsory


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
    reads = tuple(r for r in node.reads if all(d is None or (d.div, d.mod) == (1, 0) for d in r.dims))
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


@st.composite
def affine_accesses(draw: st.DrawFn) -> tuple[Access, tuple[int, ...], tuple[int, ...]]:
    """An access with linear indices that stays inside a tensor; the tensor's shape; axis extents."""
    extents = draw(st.lists(small, min_size=1, max_size=3).map(tuple))
    dims, shape = [], []
    for _ in range(draw(st.integers(1, 3))):
        coeffs = tuple(draw(st.integers(0, 3)) for _ in extents)
        offset = draw(st.integers(0, 2))
        reach = sum(c * (e - 1) for c, e in zip(coeffs, extents, strict=True)) + offset + 1
        dims.append(AffineDim(coeffs, offset))
        shape.append(reach + draw(st.integers(0, 2)))
    return Access(0, tuple(dims)), tuple(shape), extents


def flat_index(access: Access, shape: tuple[int, ...], point: tuple[int, ...]) -> int:
    flat = 0
    for dim, extent in zip(access.dims, shape, strict=True):
        assert dim is not None
        value = (sum(c * v for c, v in zip(dim.coeffs, point, strict=True)) + dim.offset) // dim.div
        flat = flat * extent + (value % dim.mod if dim.mod else value)
    return flat


@given(affine_accesses())
def test_stride_is_the_distance_of_neighbours(
    given: tuple[Access, tuple[int, ...], tuple[int, ...]],
) -> None:
    access, shape, extents = given
    for axis, extent in enumerate(extents):
        for point in product(*(range(e) for e in extents)):
            if point[axis] + 1 < extent:
                after = tuple(v + (i == axis) for i, v in enumerate(point))
                step = flat_index(access, shape, after) - flat_index(access, shape, point)
                assert access.stride(axis, shape) == step


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4))
def test_stride_inside_a_block_of_a_packed_tensor(block: int, blocks: int, inner: int) -> None:
    """w[o // B, k, o % B]: neighbours of one block lie side by side."""
    shape = (blocks, inner, block)
    dims = (AffineDim((1, 0), 0, block), AffineDim((0, 1)), AffineDim((1, 0), 0, 1, block))
    access = Access(0, dims)
    assert access.stride(1, shape) == block
    for o in range(blocks * block - 1):
        if (o + 1) % block:
            step = flat_index(access, shape, (o + 1, 0)) - flat_index(access, shape, (o, 0))
            assert access.stride(0, shape) == step == 1


def test_stride_of_what_is_not_affine_is_unknown() -> None:
    assert Access(0, (None, AffineDim((1,)))).stride(0, (4, 4)) is None
    assert Access(0, (AffineDim((1,)), None)).stride(0, (4, 4)) is None


def test_neighbours_of_one_group_read_the_same_element() -> None:
    """x[o // 4, c]: four outputs of a grouped convolution share their inputs."""
    access = Access(0, (AffineDim((1, 0), 0, 4), AffineDim((0, 1))))
    assert access.stride(0, (2, 3)) == 0
    assert access.stride(1, (2, 3)) == 1


WORK = {
    "conv": (conv(8, 8, 16, 32), 0, 3, True, True, True, False),
    "depthwise": (depthwise(8, 8, 32), 0, 3, True, True, True, False),
    "pool": (pool(8, 8, 32), 0, 3, True, False, True, False),
    "matmul": (matmul(8, 16, 4), 0, 1, True, True, False, False),
    "row_max": (softmax(8, 16), 0, 0, False, False, False, False),
    "elementwise": (elementwise(8, 16), 0, 1, True, False, False, True),
    "transpose": (transpose(8, 16), 0, 1, True, False, False, False),
}


@pytest.mark.parametrize("name", WORK)
def test_what_kind_of_work_a_node_is(name: str) -> None:
    graph, index, vector, vectors, reuse, windows, flat = WORK[name]
    node = graph.nodes[index]
    assert vector_axis(node) == vector
    assert vectorisable(graph, node) == vectors
    assert has_reuse(node) == reuse
    assert overlaps(node) == windows
    assert is_flat(graph, node) == flat


counts = st.integers(0, 2**40)
tiles = st.builds(Tile, st.lists(counts, max_size=6).map(tuple))
texts = st.text(max_size=12)
plans = st.builds(
    TilePlan,
    rule=texts,
    anchor=counts,
    tiles=st.lists(st.builds(LevelTile, texts, tiles), max_size=4).map(tuple),
    order=st.lists(counts, max_size=6).map(tuple),
    parallel=counts,
    lanes=counts,
    unroll=counts,
    attach=st.lists(st.builds(Attach, counts, texts), max_size=4).map(tuple),
    instruction=texts,
)


@given(plans)
def test_a_plan_survives_its_text(plan: TilePlan) -> None:
    text = encode_plan(plan)
    assert "\n" not in text
    back = decode_plan(text)
    assert back == plan
    assert hash(back) == hash(plan)
    assert encode_plan(back) == text


PLAN = TilePlan("tile", 0, (LevelTile("core", Tile((4, 8))),), (0, 1), 1)
BAD = {
    "empty": "",
    "not JSON": "tile core(4,8)",
    "truncated": encode_plan(PLAN)[:-2],
    "null": "null",
    "a list": "[1, 2]",
    "lacks a field": '{"rule": "tile", "anchor": 0}',
    "wrong type": encode_plan(PLAN).replace('"parallel":1', '"parallel":"one"'),
    "fraction": encode_plan(PLAN).replace('"parallel":1', '"parallel":1.5'),
}


@pytest.mark.parametrize("name", BAD)
def test_a_text_that_is_no_plan(name: str) -> None:
    with pytest.raises(PlanError) as caught:
        decode_plan(BAD[name])
    assert caught.value.reason == "decode"
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(PlanError):
        decode_plan(b'{"rule": "\xff\xfe"}')


def test_a_plan_names_its_levels() -> None:
    assert PLAN.at("core") == Tile((4, 8))
    with pytest.raises(KeyError):
        PLAN.at("register")


def test_a_plan_and_a_graph_can_be_shown() -> None:
    assert show_plan(PLAN) == "tile core(4,8) par1 x1"
    text = show_graph(matmul(8, 16, 4))
    assert "k*=4" in text
    assert "a, b -> c" in text
