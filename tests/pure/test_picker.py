"""The picker keeps to the machine it plans for, and its predictions to the machine's roofs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import msgspec
import pytest
from graphs import GRAPHS, conv, depthwise, elementwise, matmul, pool, softmax, total, transpose
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tvm_ext.hardware import get
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import Candidate, exchange_us, pick
from tvm_ext.picker.align import lanes_for, tile_lanes
from tvm_ext.picker.perf import estimate, register_cycles
from tvm_ext.picker.traffic import staging_us
from tvm_ext.tile import LevelTile, Tile, TileGraph, TilePlan, encode_plan
from tvm_ext.tile.classify import is_square, vector_axis
from tvm_ext.tile.shift import plan_shifts

MACHINES = ("cpu/x86-avx512", "cpu/x86-avx2", "cpu/x86-sse", "arm/neoverse-n1")
TOP = 5
BETWEEN_OTHERS = 1.4
"""A first plan may be so much slower alone for what it spares the kernels before and after."""

everywhere = pytest.mark.parametrize("machine", MACHINES)
every_graph = pytest.mark.parametrize("name", GRAPHS)


def assert_plan_fits(graph: TileGraph, candidate: Candidate, hw: HardwareModel) -> None:
    """The rules every plan obeys, whatever its rule."""
    plan = candidate.plan
    node = graph.nodes[plan.anchor]
    assert sorted(plan.order) == list(range(len(node.axes)))
    assert 1 <= plan.lanes <= hw.lanes(graph.tensors[node.write.tensor].dtype_bytes)
    vector = vector_axis(node)
    short = plan.rule == "tile" and vector is not None and plan.lanes == node.extents[vector]
    assert short or plan.lanes & (plan.lanes - 1) == 0, "vectors are powers of two"
    assert 0 <= plan.parallel <= (1 if plan.rule == "split" else len(node.space))
    assert plan.at("core").fits(node.axes)
    if plan.rule == "tile":
        assert_tiles_fit(graph, candidate, hw)


def assert_tiles_fit(graph: TileGraph, candidate: Candidate, hw: HardwareModel) -> None:
    """Register tiles fit the register file and divide core tiles; one tail at most that is not
    moved back."""
    plan = candidate.plan
    node = graph.nodes[plan.anchor]
    core, register = plan.at("core"), plan.at("register")
    assert register.fits(node.axes)
    vectors = prod(register.extents[axis] for axis in node.space) / plan.lanes
    if node.kind == "reduce":
        assert vectors < hw.vector_registers, "accumulators and what they are fed from"
    assert plan.unroll == prod(register.extents[axis] for axis in node.reduce)
    for axis, c, r in zip(node.axes, core.extents, register.extents, strict=True):
        assert c == axis.extent or c % r == 0
        if axis.kind == "reduce":
            assert c == axis.extent, "no reduction is shared out"
            assert axis.extent % r == 0
    cut = [axis for axis in node.space if core.extents[axis] < node.axes[axis].extent]
    tails = [axis for axis in cut if node.axes[axis].extent % core.extents[axis]]
    assert not tails or len(cut) == 1 or plan_shifts(graph, plan) is not None
    grid = [axis for axis in plan.order if axis in node.space]
    assert set(cut) <= set(grid[: plan.parallel]), "a cut axis outside the parallel loops"
    assert cut or not plan.parallel


@everywhere
@every_graph
def test_every_plan_keeps_to_the_machine(name: str, machine: str) -> None:
    graph, hw = GRAPHS[name], get(machine)
    found = pick(graph, hw, TOP)
    assert found
    for candidate in found:
        assert_plan_fits(graph, candidate, hw)


extents = st.integers(1, 70)
graphs = st.one_of(
    st.builds(
        conv,
        st.integers(1, 17),
        st.integers(1, 17),
        extents,
        extents,
        kernel=st.integers(1, 4),
        stride=st.integers(1, 2),
        block=st.sampled_from([1, 4, 8, 16, 32]),
        batch=st.integers(1, 2),
        epilogue=st.booleans(),
    ),
    st.builds(matmul, extents, extents, extents, block=st.sampled_from([0, 16, 48])),
    st.builds(depthwise, st.integers(1, 17), st.integers(1, 17), extents),
    st.builds(pool, st.integers(1, 17), st.integers(1, 17), extents),
    st.builds(softmax, extents, extents),
    st.builds(elementwise, extents, extents),
    st.builds(transpose, extents, extents),
    st.builds(total, extents, extents, kept=st.integers(0, 1)),
)


@settings(deadline=None, max_examples=150)
@given(graphs, st.sampled_from(MACHINES))
@example(conv(1, 1, 1, 1, kernel=4, block=32), "arm/neoverse-n1")
def test_every_plan_of_an_odd_shape_keeps_to_the_machine(graph: TileGraph, machine: str) -> None:
    hw = get(machine)
    found = pick(graph, hw, 3)
    assert found
    for candidate in found:
        assert_plan_fits(graph, candidate, hw)
        assert candidate.estimate.latency_us > 0


@everywhere
@every_graph
def test_candidates_are_ranked_and_distinct(name: str, machine: str) -> None:
    graph, hw = GRAPHS[name], get(machine)
    found = pick(graph, hw, TOP)
    first, *rest = [candidate.estimate.latency_us for candidate in found]
    assert rest == sorted(rest)
    times_us = [
        us if one.plan.parallel else us + exchange_us(graph, one.plan, hw)
        for us, one in zip([first, *rest], found, strict=True)
    ]
    assert first <= min(times_us) * BETWEEN_OTHERS  # one core alone fetches it all
    assert len({candidate.plan for candidate in found}) == len(found) <= TOP
    assert pick(GRAPHS[name], get(machine), 1)[0].plan in {candidate.plan for candidate in found}


@everywhere
def test_asking_for_more_never_makes_the_best_worse(machine: str) -> None:
    for graph in GRAPHS.values():
        one, many = (pick(graph, get(machine), count)[0].estimate for count in (1, 20))
        assert many.latency_us <= one.latency_us * BETWEEN_OTHERS


@everywhere
@every_graph
def test_an_estimate_is_never_below_the_roof(name: str, machine: str) -> None:
    """All cores at their peak cannot do the arithmetic sooner, nor one core for a serial plan."""
    graph, hw = GRAPHS[name], get(machine)
    for candidate in pick(graph, hw, TOP):
        plan, estimate = candidate.plan, candidate.estimate
        cores = hw.cores if plan.parallel else 1
        flops = graph.nodes[plan.anchor].flops if plan.rule == "tile" else graph.flops
        roof_us = flops / (hw.peak_gflops["float32"] * cores * 1e3)
        assert estimate.compute_us >= roof_us * (1 - 1e-9)
        assert estimate.latency_us >= max(estimate.compute_us, estimate.memory_us) > 0
        assert estimate.bound in {"compute", *(level.name for level in hw.levels)}
        if plan.parallel:
            assert estimate.latency_us >= hw.launch_us


def test_the_same_question_has_the_same_answer_in_every_process() -> None:
    """Sets and hashes must not leak into the order of candidates."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from graphs import GRAPHS; from tvm_ext.hardware import get\n"
        "from tvm_ext.picker import pick; from tvm_ext.tile import encode_plan\n"
        "plans = {n: [encode_plan(c.plan) for c in pick(g, get('cpu/x86-avx2'), 5)]\n"
        "         for n, g in GRAPHS.items()}\n"
        "print(json.dumps(plans))"
    )
    here = {
        name: [encode_plan(found.plan) for found in pick(graph, get("cpu/x86-avx2"), 5)]
        for name, graph in GRAPHS.items()
    }
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "TVM_EXT_PROBE": "0"},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert json.loads(done.stdout) == here


@everywhere
def test_picking_takes_less_than_a_second(machine: str) -> None:
    for name, graph in GRAPHS.items():
        start = time.process_time()
        pick(graph, get(machine), 3)
        assert time.process_time() - start < 1.0, name


@everywhere
@pytest.mark.parametrize(
    "name", ["conv_small", "matmul_tiny", "softmax_one", "elementwise_one", "elementwise_prime"]
)
def test_small_operators_run_on_one_core(name: str, machine: str) -> None:
    assert pick(GRAPHS[name], get(machine))[0].plan.parallel == 0


LARGE = [
    "conv_large",
    "grouped_large",
    "grouped_narrow",
    "conv_1x1",
    "matmul_packed",
    "softmax_large",
    "elementwise_large",
    "gelu_large",
    "pool_large",
    "depthwise_large",
    "transpose_large",
]


@everywhere
@pytest.mark.parametrize("name", LARGE)
def test_large_operators_run_on_all_cores(name: str, machine: str) -> None:
    graph, hw = GRAPHS[name], get(machine)
    plan = pick(graph, hw)[0].plan
    assert plan.parallel
    node = graph.nodes[plan.anchor]
    counts = plan.at("core").counts(node.axes)
    tasks = prod(counts[axis] for axis in node.space)
    assert tasks >= hw.cores / 3


@everywhere
@pytest.mark.parametrize("name", LARGE)
def test_more_cores_are_never_predicted_slower(name: str, machine: str) -> None:
    """Up to what a launch costs, and to as many cores as the memory of the machine is made for."""
    previous = float("inf")
    for cores in (1, 2, 4, 8, 16, 32, 64):
        if cores > get(machine).cores:
            break
        hw = msgspec.structs.replace(get(machine), cores=cores)
        latency_us = pick(GRAPHS[name], hw)[0].estimate.latency_us
        assert latency_us <= previous + hw.launch_us, cores
        previous = latency_us


@everywhere
def test_more_arithmetic_is_never_predicted_faster(machine: str) -> None:
    hw = get(machine)
    for small, large in (
        (matmul(64, 64, 64), matmul(128, 128, 128)),
        (conv(14, 14, 32, 32), conv(28, 28, 32, 64)),
        (elementwise(1000), elementwise(100_000)),
        (softmax(64, 64), softmax(512, 512)),
        (pool(14, 14, 32), pool(28, 28, 32)),
    ):
        assert pick(small, hw)[0].estimate.latency_us < pick(large, hw)[0].estimate.latency_us


def test_a_graph_with_nothing_to_tile_has_no_plans() -> None:
    opaque = msgspec.structs.replace(
        elementwise(8, 8),
        nodes=tuple(
            msgspec.structs.replace(node, kind="opaque") for node in elementwise(8, 8).nodes
        ),
    )
    assert pick(opaque, get("cpu/x86-avx2"), 3) == []


@everywhere
def test_the_reduction_with_most_work_is_tiled(machine: str) -> None:
    graph = conv(14, 14, 32, 64)
    plan = pick(graph, get(machine))[0].plan
    assert graph.nodes[plan.anchor].name == "conv"
    assert [(entry.stage, entry.level) for entry in plan.attach] == [(1, "register")]


@everywhere
def test_rows_of_a_softmax_stay_together(machine: str) -> None:
    plan = pick(softmax(1024, 512), get(machine))[0].plan
    assert plan.rule == "rows"
    assert plan.at("core").extents == (1, 512)
    assert [entry.stage for entry in plan.attach] == [0, 1, 2]


@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "cpu/x86-sse"])
def test_peak_is_within_reach_of_a_large_product(machine: str) -> None:
    """A square product on one core is predicted at 70 % of the peak or more.

    Not on the SSE machine: its L2 feeds a 6 x 8 register tile too slowly, and plans do not cut the
    reduction into pieces that stay in L1.
    """
    hw = msgspec.structs.replace(get(machine), cores=1)
    graph = matmul(512, 512, 512, block=2 * hw.lanes(4))
    roof_us = graph.flops / (hw.peak_gflops["float32"] * 1e3)
    assert pick(graph, hw)[0].estimate.latency_us <= roof_us / 0.7


@everywhere
@pytest.mark.parametrize("kernel", [11, 13, 31])
def test_a_long_row_of_taps_is_taken_whole(machine: str, kernel: int) -> None:
    """Its taps share what they read; one at a time each output loads anew."""
    plan = pick(depthwise(32, 32, 64, kernel), get(machine))[0].plan
    assert plan.at("register").extents[-1] == kernel


@everywhere
def test_a_large_transposition_goes_by_squares(machine: str) -> None:
    """Elements that are loaded one by one have to be put into their lanes as well."""
    hw = get(machine)
    graph = transpose(1024, 768)
    plan = pick(graph, hw)[0].plan
    assert is_square(graph.nodes[0], plan.at("register"), plan.lanes)


def test_a_copy_and_what_it_is_copied_from_share_a_cache() -> None:
    """A panel of three quarters of the second level costs more for each byte than small ones."""
    hw = msgspec.structs.replace(get("cpu/x86-avx512"), cores=1)
    size = int((hw.levels[2].size_bytes * 0.75 / 4) ** 0.5) // 64 * 64
    graph = matmul(size, size, size)

    def copying_us(columns: int) -> float:
        tiles = (
            LevelTile("core", Tile((size, columns, size))),
            LevelTile("register", Tile((4, 16, 1))),
        )
        plan = TilePlan("tile", 0, tiles, (0, 1, 2), 2, 4, staged=(1,))
        return staging_us(graph, plan, hw)

    assert copying_us(size) > 1.2 * copying_us(size // 4)


def test_stages_that_a_plan_says_nothing_of_take_time() -> None:
    """A pass over memory and a launch; an epilogue takes none."""
    hw = get("cpu/x86-avx512")
    graph = conv(56, 56, 64, 64)
    plan = pick(graph, hw)[0].plan
    loose = msgspec.structs.replace(plan, attach=())
    more = estimate(graph, loose, hw).aside_us - estimate(graph, plan, hw).aside_us
    assert more > hw.barrier_us


def test_lines_that_are_written_are_read_first_where_no_cache_holds_them() -> None:
    hw = get("cpu/x86-avx512")
    small, large = (conv(56, 56, 16, 256, kernel=1, batch=batch) for batch in (1, 64))
    inside, beyond = (estimate(graph, pick(graph, hw)[0].plan, hw) for graph in (small, large))
    written = large.tensors[large.nodes[-1].write.tensor].size_bytes
    assert small.io_bytes < hw.levels[-2].size_bytes / 2 < large.io_bytes
    rate = hw.levels[-1].total_gbps or hw.levels[-1].gbps * hw.cores
    assert beyond.memory_us >= (large.io_bytes + written) / (rate * 1e3)
    assert inside.memory_us < small.io_bytes / (rate * 1e3)


def test_a_short_axis_is_a_vector_of_its_own() -> None:
    hw = get("cpu/x86-avx512")
    assert [tile_lanes(extent, hw, 4) for extent in (1, 3, 12, 16, 21)] == [1, 3, 12, 16, 16]
    assert lanes_for(3, hw, 4) == 2
    assert tile_lanes(12, hw, 4, divisor=8) == 8, "no vector crosses the border of two blocks"


def test_a_vector_takes_several_narrow_groups() -> None:
    """Of all their channels, which are picked from the same loads; wider groups are their own."""
    hw = get("cpu/x86-avx512")
    several = pick(GRAPHS["grouped_by_lanes"], hw)[0].plan
    assert several.lanes == 16
    assert several.at("register").extents[-1] == 4
    apart = pick(GRAPHS["grouped_narrow"], hw)[0].plan
    assert apart.lanes == 8


def test_latency_is_felt_before_it_binds() -> None:
    """Few accumulators leave nothing to go on with: 4 rows of 2 vectors take more than their share
    of the time of 14, though four cycles of latency are hidden in both."""
    hw = get("cpu/x86-avx512")
    graph = matmul(56, 64, 64, block=32)
    node = graph.nodes[0]
    each = {
        rows: register_cycles(graph, node, Tile((rows, 32, 4)), 16, hw) / rows
        for rows in (4, 5, 8, 14)
    }
    assert each[4] > 1.1 * each[8]
    assert each[4] > each[5] > each[8] > 0.95 * each[14]


def test_plans_are_picked_once_whoever_asks() -> None:
    """A pass that asks for a kernel's time picks what its task is given later, under a name."""
    machine = get("cpu/x86-avx512")
    first = pick(matmul(96, 80, 64), machine)[0]
    named = msgspec.structs.replace(matmul(96, 80, 64), name="other", signature="abc")
    again = pick(named, get("cpu/x86-avx512"), 3)
    assert again[0] is first
    assert pick(named, msgspec.structs.replace(machine, cores=1))[0] is not first
