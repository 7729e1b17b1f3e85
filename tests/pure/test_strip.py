"""Groups cut into strips: what a strip is of, which tiles are strips, plans and their limits."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from graphs import GRAPHS, GraphBuilder, attention, axis_dim, matmul, softmax
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.picker import pick, pick_strips, predict
from tvm_ext.picker.perf import EVEN_TASKS
from tvm_ext.picker.strip import _estimate
from tvm_ext.tile import TileGraph, decode_plan, encode_plan
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.cut import handed_on_bytes
from tvm_ext.tile.infer import propagate
from tvm_ext.tile.legal import check_plan
from tvm_ext.tile.strip import repeats, row_axes, strip, strip_tiles

HARDWARE = get("cpu/x86-avx512")


def products(rows: int, *widths: int) -> TileGraph:
    """One product after another, each with an activation."""
    build = GraphBuilder("products")
    x = build.tensor("x", (rows, widths[0]), "input")
    i, j, k = ({axis: 1} for axis in "ijk")
    for place, (depth, width) in enumerate(pairwise(widths)):
        role = "output" if place == len(widths) - 2 else "inner"
        w = build.tensor(f"w{place}", (depth, width), "input")
        h = build.tensor(f"h{place}", (rows, width))
        y = build.tensor(f"y{place}", (rows, width), role)
        axes = {"i": rows, "j": width, "k*": depth}
        build.node(f"product{place}", axes, [(x, [i, k]), (w, [k, j])], (h, [i, j]), 2.0)
        build.node(f"relu{place}", {"i": rows, "j": width}, [(h, [i, j])], (y, [i, j]))
        x = y
    return build.graph()


def neighbours(rows: int) -> TileGraph:
    """What each row makes of the rows beside it."""
    build = GraphBuilder("neighbours")
    x = build.tensor("x", (rows + 2, 8), "input")
    h = build.tensor("h", (rows + 2, 8))
    y = build.tensor("y", (rows, 8), "output")
    i, j = {"i": 1}, {"j": 1}
    build.node("scale", {"i": rows + 2, "j": 8}, [(x, [i, j])], (h, [i, j]))
    build.node("sum", {"i": rows, "j": 8}, [(h, [i, j]), (h, [i, j])], (y, [i, j]))
    graph = build.graph()
    last = graph.nodes[-1]
    here, there = last.reads
    beside = structs.replace(there.dims[0], offset=2)
    moved = structs.replace(there, dims=(beside, *there.dims[1:]))
    return structs.replace(
        graph, nodes=(*graph.nodes[:-1], structs.replace(last, reads=(here, moved)))
    )


@given(
    rows=st.integers(1, 60),
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
)
def test_strips_cover_every_stage_exactly_once(rows: int, widths: list[int]) -> None:
    graph = products(rows, *widths)
    assert row_axes(graph) >= 1
    for tile in strip_tiles(graph):
        part = strip(graph, tile)
        assert part is not None
        assert part.tasks * tile.points == rows * widths[-1]
        for own, whole in zip(part.graph.nodes, graph.nodes, strict=True):
            assert prod(own.extents) * part.tasks == prod(whole.extents)
        assert part.graph.flops * part.tasks == pytest.approx(graph.flops)
        stages = sorted(stage for piece in part.pieces for stage in piece.stages)
        assert stages == list(range(len(graph.nodes)))
        between = [t.size_bytes for t in part.graph.tensors if t.role == "inner"]
        whole = [t.size_bytes for t in graph.tensors if t.role == "inner"]
        assert sum(between) * part.tasks == sum(whole)


def test_pieces_are_products_with_their_epilogues_and_the_rows_between() -> None:
    graph = attention(384, 384, 64)
    part = strip(graph, Tile((8, 64, 384)))
    assert part is not None
    assert [piece.stages for piece in part.pieces] == [(0, 1), (2, 3, 4, 5), (6,)]
    assert {t.name: t.shape for t in part.graph.tensors if t.role == "input"} == {
        "q": (8, 64),
        "k": (384, 64),
        "v": (384, 64),
    }


def test_what_is_made_inside_is_no_weight() -> None:
    """It is read in blocks, as weights are; of memory's time nothing is taken off for it."""
    build = GraphBuilder("blocks")
    b, i, j, k, q = ({axis: 1} for axis in "bijkq")
    x = build.tensor("x", (8, 64, 64, 4), "input")
    w = build.tensor("w", (4, 64), "input")
    y = build.tensor("y", (8, 64, 64, 64))
    v = build.tensor("v", (64, 4), "input")
    z = build.tensor("z", (8, 4096, 4), "output")
    axes = {"b": 8, "i": 64, "q": 64, "j": 64, "k*": 4}
    build.node("first", axes, [(x, [b, i, q, k]), (w, [k, j])], (y, [b, i, q, j]), 2.0)
    rows = [b, axis_dim(1, 4, div=64), axis_dim(1, 4, mod=64), k]
    axes = {"b": 8, "i": 4096, "j": 4, "k*": 64}
    build.node("second", axes, [(y, rows), (v, [k, j])], (z, [b, i, j]), 2.0)
    found = pick_strips(build.graph(), structs.replace(HARDWARE, cores=2))
    assert found
    assert all(candidate.estimate.memory_us > 0 for candidate in found)


@pytest.mark.parametrize("name", ["conv_large", "depthwise_large", "matmul_packed"])
def test_a_single_piece_is_no_chain(name: str) -> None:
    assert pick_strips(GRAPHS[name], HARDWARE) == []


def test_rows_beside_each_other_are_shared_where_few_are_repeated() -> None:
    graph = neighbours(16)
    assert propagate(graph, 1, Tile((1, 8)))[0] == Tile((3, 8))
    assert row_axes(graph) == 1
    part = strip(graph, Tile((4, 8)))
    assert part is not None
    assert [node.extents for node in part.graph.nodes] == [(6, 8), (4, 8)]
    assert repeats(graph, Tile((4, 8)))
    assert not repeats(graph, Tile((16, 8)))
    assert strip(graph, Tile((2, 8))) is None  # half of the work would be done again


@given(rows=st.integers(1, 60))
def test_no_strip_repeats_more_than_half_of_a_stage(rows: int) -> None:
    graph = neighbours(rows)
    for tile in strip_tiles(graph):
        part = strip(graph, tile)
        assert part is not None
        done = [prod(node.extents) * part.tasks for node in part.graph.nodes]
        assert done[-1] == rows * 8
        assert (rows + 2) * 8 <= done[0] <= 1.5 * (rows + 2) * 8


def group_means(batch: int) -> TileGraph:
    """Means of groups of four channels, written for each of them, and what takes them away."""
    build = GraphBuilder("group_means")
    x = build.tensor("x", (batch, 7, 12), "input")
    mean = build.tensor("mean", (batch, 12))
    y = build.tensor("y", (batch, 7, 12), "output")
    n, p, c = ({axis: 1} for axis in "npc")
    axes = {"n": batch, "g": 3, "i": 4, "p*": 7, "r*": 4}
    build.node("mean", axes, [(x, [n, p, {"g": 4, "r": 1}])], (mean, [n, {"g": 4, "i": 1}]))
    axes = {"n": batch, "p": 7, "c": 12}
    build.node("y", axes, [(x, [n, p, c]), (mean, [n, c])], (y, [n, p, c]))
    return build.graph()


def test_what_is_written_at_a_sum_of_axes_is_not_moved_into_strips() -> None:
    assert row_axes(group_means(2)) == 0


def test_a_tile_that_is_no_strip_is_none() -> None:
    graph = softmax(12, 40)
    assert row_axes(graph) == 1
    assert [tile.extents for tile in strip_tiles(graph)] == [(n, 40) for n in (12, 6, 4, 3, 2, 1)]
    assert strip(graph, Tile((5, 40))) is None
    assert strip(graph, Tile((4, 20))) is None


def test_plans_by_strips_are_legal_and_predicted_alike_wherever_they_come_from() -> None:
    graph = products(512, 64, 256, 64)
    candidates = pick_strips(graph, HARDWARE)
    assert candidates
    for candidate in candidates:
        plan = decode_plan(encode_plan(candidate.plan))
        assert plan == candidate.plan
        check_plan(graph, plan)
        assert predict(graph, plan, HARDWARE) == candidate.estimate
    fastest = candidates[0].estimate.latency_us
    assert fastest == min(one.estimate.latency_us for one in candidates)


def test_a_strip_holds_less_traffic_than_memory_sees() -> None:
    """Edges lowered to the caches of a core: narrow products are bound by memory apart."""
    graph = products(1 << 16, 32, 32, 32, 32)
    own = pick_strips(graph, HARDWARE)[0].estimate
    apart_bytes = sum(t.size_bytes for t in graph.tensors if t.role == "inner")
    assert own.memory_us < apart_bytes / HARDWARE.levels[-1].total_gbps / 1e3


@pytest.mark.parametrize(("depth", "again"), [(4096, True), (64, False)])
def test_weights_that_no_core_holds_make_long_strips_late(
    depth: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product, 64 rows at a time."""
    graph = matmul(1 << 14, 256, depth, block=16)
    part = strip(graph, Tile((64, *graph.nodes[-1].extents[1:])))
    assert part is not None
    assert part.tasks >= EVEN_TASKS * HARDWARE.cores
    pieces = [pick(part.graph, HARDWARE)[0]]
    plan = structs.replace(pieces[0].plan, parallel=1)
    estimates = [piece.estimate for piece in pieces]
    charged = _estimate(graph, part, plan, estimates, HARDWARE).latency_us
    monkeypatch.setattr("tvm_ext.picker.strip.LATE", 0.0)
    plain = _estimate(graph, part, plan, estimates, HARDWARE).latency_us
    assert (charged > plain) == again


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tiles": ()}, "level"),
        ({"also": ()}, "attach"),
        ({"anchor": 1}, "rows"),
    ],
)
def test_damaged_plans_are_refused(fields: dict[str, object], reason: str) -> None:
    graph = products(512, 64, 64, 64)
    plan = structs.replace(pick_strips(graph, HARDWARE)[0].plan, **fields)
    with pytest.raises(PlanError) as caught:
        check_plan(graph, plan)
    assert caught.value.reason == reason


def test_pieces_of_other_strips_are_refused() -> None:
    graph = products(512, 64, 64, 64)
    plan = pick_strips(graph, HARDWARE)[0].plan
    first, second = plan.also
    parallel = structs.replace(first, parallel=1)
    for also in (
        (second, first),
        (parallel, second),
        (structs.replace(first, rule="flat"), second),
    ):
        with pytest.raises(PlanError):
            check_plan(graph, structs.replace(plan, also=also))


def test_large_images_are_cut_as_well() -> None:
    """Of a whole image what lies between the stages leaves a core's caches; of some rows it stays,
    and those at the seams are computed twice."""
    build = GraphBuilder("images")
    n, h, w, c, o, r, s, d = ({axis: 1} for axis in "nhwcorsd")
    side, inner, outer = 112, 32, 96
    axes = {"n": 8, "h": side, "w": side}
    x = build.tensor("x", (8, side, side, inner), "input")
    w1 = build.tensor("w1", (inner, outer), "input")
    y = build.tensor("y", (8, side, side, outer))
    build.node(
        "wide",
        {**axes, "o": outer, "c*": inner},
        [(x, [n, h, w, c]), (w1, [c, o])],
        (y, [n, h, w, o]),
        2.0,
    )
    taps = build.tensor("taps", (3, 3, outer), "input")
    z = build.tensor("z", (8, side - 2, side - 2, outer))
    small = {"n": 8, "h": side - 2, "w": side - 2}
    window = [n, {"h": 1, "r": 1}, {"w": 1, "s": 1}, o]
    build.node(
        "each",
        {**small, "o": outer, "r*": 3, "s*": 3},
        [(y, window), (taps, [r, s, o])],
        (z, [n, h, w, o]),
        2.0,
    )
    w2 = build.tensor("w2", (outer, 16), "input")
    last = build.tensor("last", (8, side - 2, side - 2, 16), "output")
    build.node(
        "narrow",
        {**small, "d": 16, "o*": outer},
        [(z, [n, h, w, o]), (w2, [o, d])],
        (last, [n, h, w, d]),
        2.0,
    )
    graph = build.graph()
    machine = structs.replace(HARDWARE, cores=2)
    (candidate,) = pick_strips(graph, machine)
    core = candidate.plan.at("core")
    images, rows, *_ = core.extents
    assert images == 1
    assert 1 < rows < side - 2
    part = strip(graph, core)
    assert part is not None
    assert handed_on_bytes(part.graph, part.pieces) < machine.own_cache_bytes
    assert pick(graph, machine)[0] == candidate
