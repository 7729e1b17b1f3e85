"""Plans for GPUs keep to what one thread block may use, and fill warps and the chip."""

from __future__ import annotations

from math import prod

import msgspec
import pytest
from graphs import GRAPHS, conv, elementwise, matmul, pool, softmax, total, transpose
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.hardware import get
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import roof
from tvm_ext.picker import pick, predict
from tvm_ext.picker.gpu_perf import limits, register_count, resident_blocks, shared_bytes
from tvm_ext.tile import TileGraph, TilePlan, decode_plan, encode_plan

MACHINES = ("cuda/sm_70", "cuda/sm_80", "cuda/sm_86", "cuda/sm_90")

everywhere = pytest.mark.parametrize("machine", MACHINES)
every_graph = pytest.mark.parametrize("name", GRAPHS)


def threads_of(graph: TileGraph, plan: TilePlan) -> int:
    if plan.rule != "block":
        return plan.lanes
    core, register = plan.at("core").extents, plan.at("register").extents
    return prod(core[axis] // register[axis] for axis in graph.nodes[plan.anchor].space)


def blocks_of(graph: TileGraph, plan: TilePlan) -> int:
    node = graph.nodes[plan.anchor]
    counts = plan.at("core").counts(node.axes)
    return prod(counts[axis] for axis in node.space)


def assert_plan_fits(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> None:
    """Threads, shared memory and registers of a block are within the model's limits."""
    limit, node = limits(hw), graph.nodes[plan.anchor]
    assert 1 <= threads_of(graph, plan) <= limit.threads
    assert sorted(plan.order) == list(range(len(node.axes)))
    assert all(entry.tile.fits(node.axes) for entry in plan.tiles)
    assert decode_plan(encode_plan(plan)) == plan
    if plan.rule == "block":
        assert_block_fits(graph, plan, hw)
    elif plan.rule == "block_rows":
        assert plan.lanes % limit.warp == 0
        assert {entry.stage for entry in plan.attach} == set(range(plan.anchor))
        row = sum(
            prod(graph.tensors[graph.nodes[s].write.tensor].shape) * 4 // blocks_of(graph, plan)
            for s in range(plan.anchor)
        )
        assert row <= limit.shared_bytes
    else:
        assert plan.rule in {"block_flat", "block_loose"}
        assert plan.lanes % limit.warp == 0
        assert plan.unroll * 4 <= 16, "no load is wider than 16 bytes"
        if plan.rule == "block_flat":
            assert plan.at("core").points % plan.unroll == 0, "a load that two blocks share"


def assert_block_fits(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> None:
    limit, node = limits(hw), graph.nodes[plan.anchor]
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    registers = register_count(graph, node, plan)
    assert prod(register.extents[axis] for axis in node.space) < registers
    assert registers <= limit.registers_per_thread
    rounded = -(-threads_of(graph, plan) // limit.warp) * limit.warp
    assert rounded * registers <= limit.registers
    assert shared_bytes(graph, plan) <= limit.shared_bytes
    assert limit.shared_bytes <= hw.level("shared").size_bytes
    assert resident_blocks(graph, node, plan, hw) >= 1
    for axis, c, s, r in zip(node.axes, core.extents, step.extents, register.extents, strict=True):
        if axis.kind == "space":
            assert c == s
            assert c % r == 0, "threads share a block tile evenly"
        else:
            assert (c, r) == (axis.extent, 1), "no reduction is shared out"


@everywhere
@every_graph
def test_every_plan_keeps_to_the_machine(name: str, machine: str) -> None:
    graph, hw = GRAPHS[name], get(machine)
    found = pick(graph, hw, 5)
    assert found
    assert [c.estimate.latency_us for c in found] == sorted(c.estimate.latency_us for c in found)
    assert len({candidate.plan for candidate in found}) == len(found)
    for candidate in found:
        assert_plan_fits(graph, candidate.plan, hw)
        assert candidate.estimate == predict(graph, candidate.plan, hw)
        limit = roof(graph.flops, graph.io_bytes, hw)
        assert candidate.estimate.latency_us >= limit.compute_us + hw.launch_us * 0.99


extents = st.integers(1, 200)
graphs = st.one_of(
    st.builds(
        conv,
        st.integers(1, 30),
        st.integers(1, 30),
        extents,
        extents,
        kernel=st.integers(1, 5),
        stride=st.integers(1, 3),
        block=st.sampled_from([1, 8, 32]),
        epilogue=st.booleans(),
    ),
    st.builds(matmul, extents, extents, extents, block=st.sampled_from([0, 16, 48])),
    st.builds(pool, st.integers(1, 30), st.integers(1, 30), extents, stride=st.integers(1, 3)),
    st.builds(softmax, extents, st.integers(1, 20000)),
    st.builds(elementwise, extents, extents),
    st.builds(transpose, extents, extents),
    st.builds(total, extents, extents, kept=st.integers(0, 1)),
)


@settings(deadline=None, max_examples=60)
@given(graphs, st.sampled_from(MACHINES))
def test_every_plan_of_an_odd_shape_keeps_to_the_machine(graph: TileGraph, machine: str) -> None:
    found = pick(graph, get(machine), 3)
    assert found
    for candidate in found:
        assert_plan_fits(graph, candidate.plan, get(machine))


@everywhere
def test_a_large_product_is_aligned_to_the_machine(machine: str) -> None:
    """Whole warps, whole transactions, no padding, and predicted at 40 % of the peak or more."""
    hw, graph = get(machine), matmul(4096, 4096, 4096)
    best = pick(graph, hw)[0]
    node = graph.nodes[0]
    core, step = best.plan.at("core"), best.plan.at("shared")
    assert threads_of(graph, best.plan) % limits(hw).warp == 0
    assert core.waste(node.axes) == 0
    assert step.extents[2] * 4 % 32 == 0, "rows of a in whole transactions"
    assert core.extents[1] * 4 % 32 == 0, "rows of b in whole transactions"
    assert blocks_of(graph, best.plan) >= hw.cores
    assert roof(graph.flops, graph.io_bytes, hw).latency_us >= 0.4 * best.estimate.latency_us


@everywhere
def test_small_operators_get_smaller_blocks(machine: str) -> None:
    """Scale-out: tiles shrink until most multiprocessors have one, where the work allows it."""
    hw = get(machine)
    large, small = matmul(4096, 4096, 512), matmul(512, 512, 512)
    tiles = [pick(graph, hw)[0].plan.at("core") for graph in (large, small)]
    areas = [tile.extents[0] * tile.extents[1] for tile in tiles]
    assert areas[1] < areas[0]
    assert blocks_of(small, pick(small, hw)[0].plan) >= 0.75 * hw.cores
    flat = elementwise(64, 1024)
    assert blocks_of(flat, pick(flat, hw)[0].plan) >= hw.cores


def test_less_shared_memory_means_smaller_steps() -> None:
    hw = get("cuda/sm_80")
    graph = GRAPHS["conv_large"]
    tight = msgspec.structs.replace(
        hw, target={**hw.target, "max_shared_memory_per_block": 4 << 10}
    )
    for candidate in pick(graph, tight, 5):
        assert candidate.plan.rule == "block"
        assert shared_bytes(graph, candidate.plan) <= 4 << 10


def test_rows_that_do_not_fit_get_a_kernel_for_every_stage() -> None:
    """100 000 elements of softmax are 400 kB: no block can keep them."""
    assert pick(softmax(8, 1000), get("cuda/sm_90"))[0].plan.rule == "block_rows"
    assert pick(softmax(8, 100_000), get("cuda/sm_90"))[0].plan.rule == "block_loose"


def test_a_target_that_names_no_architecture_is_its_presets() -> None:
    """A TVM target may be given as its kind alone."""
    for name, ahead in (("cuda/sm_75", False), ("cuda/sm_80", True)):
        hw = msgspec.structs.replace(get(name), target={"kind": "cuda"})
        assert limits(hw).ahead == ahead
        assert pick(matmul(64, 64, 64), hw)
