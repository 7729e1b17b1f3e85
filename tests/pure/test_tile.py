"""Laws of tiles: what covers what, how indices step, and plans as text."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from graphs import conv, depthwise, elementwise, matmul, pool, softmax, touched, transpose
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import PlanError
from tvm_ext.tile import (
    Access,
    AffineDim,
    Attach,
    Axis,
    LevelTile,
    Tile,
    TileGraph,
    TileNode,
    TilePlan,
    decode_plan,
    encode_plan,
    show_graph,
    show_plan,
)
from tvm_ext.tile.axis import divisors
from tvm_ext.tile.classify import (
    has_no_gaps,
    has_reuse,
    is_flat,
    overlaps,
    vector_axis,
    vectorisable,
)

small = st.integers(1, 6)


@given(st.integers(1, 400), st.none() | st.integers(1, 30))
def test_divisors(extent: int, limit: int | None) -> None:
    numbers = range(1, (limit or extent) + 1)
    assert divisors(extent, limit) == [size for size in numbers if extent % size == 0]


def test_divisors_of_a_large_extent() -> None:
    assert divisors(1 << 40) == [1 << power for power in range(41)]


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
    divides = all(
        axis.extent % extent == 0 for axis, extent in zip(axes, tile.extents, strict=True)
    )
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
    st.tuples(*(st.integers(0, 5),) * 3),
    extents3,
    st.integers(1, 4),
    st.sampled_from([0, 1, 2, 3, 8]),
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


@st.composite
def affine_accesses(draw: st.DrawFn) -> tuple[Access, tuple[int, ...], tuple[int, ...]]:
    """An access with linear indices inside a tensor; the tensor's shape; the axis extents."""
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


def test_a_tile_of_two_axes_in_one_index_must_be_a_box() -> None:
    """y[4 * g + c]: part of c for several g would leave gaps between them."""
    axes = (Axis("g", 3, "space"), Axis("c", 4, "space"))
    write = Access(0, (AffineDim((4, 1)),))
    node = TileNode("y", "map", axes, (), write, 1.0)
    boxes = {(g, c): has_no_gaps(node, Tile((g, c))) for g in (1, 2, 3) for c in (1, 2, 4)}
    assert boxes == {(g, c): g == 1 or c == 4 for g, c in boxes}
