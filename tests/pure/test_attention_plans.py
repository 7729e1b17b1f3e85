"""Plans of attention: tiles that are multiples and fit, copies where keys lie apart, the search."""

from __future__ import annotations

import random
from math import prod

import pytest
from graphs import GRAPHS, fused_attention
from msgspec.structs import replace

from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.picker import pick, predict
from tvm_ext.planner import multiply_flops
from tvm_ext.search.mutate import mutated
from tvm_ext.search.neighbours import neighbours
from tvm_ext.tile.attention import COLUMN, ROW, attention_stages
from tvm_ext.tile.legal import check_plan, is_legal
from tvm_ext.tile.plan import with_extent

HARDWARE = get("cpu/x86-avx512")
LARGE = GRAPHS["fused_attention_large"]


def test_the_stages_are_read_from_their_structure() -> None:
    found = attention_stages(LARGE)
    assert found is not None
    assert [LARGE.nodes[stage].name for stage in found if stage is not None] == [
        *("turned", "scores", "biased", "top", "power", "total", "mixed", "divided")
    ]
    for name, graph in GRAPHS.items():
        assert (attention_stages(graph) is not None) == name.startswith("fused_attention")


def test_a_result_read_elsewhere_too_is_no_attention() -> None:
    node = LARGE.nodes[-1]
    reads_scores = replace(
        node.reads[1], tensor=LARGE.nodes[1].write.tensor, dims=node.reads[0].dims
    )
    other = replace(node, reads=(*node.reads, reads_scores))
    assert attention_stages(replace(LARGE, nodes=(*LARGE.nodes[:-1], other))) is None


@pytest.mark.parametrize("machine", ["cpu/x86-avx512", "cpu/x86-avx2", "arm/neoverse-n1"])
def test_tiles_are_multiples_that_fit(machine: str) -> None:
    hw = get(machine)
    for candidate in pick(LARGE, hw, 10):
        plan = candidate.plan
        check_plan(LARGE, plan)
        task, block, first, second = (
            plan.at(level).extents for level in ("core", "l2", "register", "second")
        )
        assert (
            384 % task[COLUMN] == task[COLUMN] % block[COLUMN] == block[COLUMN] % hw.lanes(4) == 0
        )
        assert 2 * 4 * block[ROW] * block[COLUMN] <= hw.own_cache_bytes
        for tile in (first, second):
            assert prod(tile[:-1]) / plan.lanes < hw.vector_registers


def test_tasks_are_shared_out_evenly() -> None:
    one_head = fused_attention(1, 2048, 2048, 64, 32)
    plan = pick(one_head, HARDWARE)[0].plan
    assert (2048 // plan.at("core").extents[COLUMN]) % HARDWARE.cores == 0


def test_keys_that_lie_a_power_of_two_apart_are_copied() -> None:
    apart = fused_attention(16, 2048, 2048, 2048, 64)
    assert pick(apart, HARDWARE)[0].plan.staged == (0, 1)
    together = fused_attention(1, 2048, 2048, 64, 64)
    assert pick(together, HARDWARE)[0].plan.staged == ()


def test_keys_in_more_pages_than_a_core_has_at_hand_are_copied() -> None:
    room = {"l2": 2 << 20, "l3": 128 << 20}  # enough for keys wherever they lie
    levels = (
        replace(one, size_bytes=room.get(one.name, one.size_bytes)) for one in HARDWARE.levels
    )
    roomy = replace(HARDWARE, cores=2, levels=tuple(levels))
    assert pick(fused_attention(36, 512, 512, 512, 64), roomy)[0].plan.staged == (0, 1)
    assert pick(fused_attention(36, 512, 512, 96, 64), roomy)[0].plan.staged == ()


def test_queries_that_are_no_whole_vectors_get_another_plan() -> None:
    odd = fused_attention(2, 37, 37, 64, 32)
    assert {candidate.plan.rule for candidate in pick(odd, HARDWARE, 5)} == {"tile"}


def test_more_keys_take_longer() -> None:
    times = []
    for keys in (64, 128, 512, 2048):
        graph = fused_attention(8, 256, 256, keys, 64)
        candidate = pick(graph, HARDWARE)[0]
        assert predict(graph, candidate.plan, HARDWARE) == candidate.estimate
        times.append(candidate.estimate.latency_us)
    assert times == sorted(times)
    assert times[-1] > 16 * times[0]


@pytest.mark.parametrize(
    ("level", "axis", "size", "reason"),
    [
        ("core", COLUMN, 80, "divide"),
        ("l2", COLUMN, 40, "divide"),
        ("register", COLUMN, 24, "divide"),
        ("second", 4, 5, "divide"),
        ("second", ROW, 65, "level"),
        ("register", ROW, 384, "unroll"),
    ],
)
def test_what_no_kernel_can_follow_is_refused(
    level: str, axis: int, size: int, reason: str
) -> None:
    plan = pick(LARGE, HARDWARE)[0].plan
    with pytest.raises(PlanError) as refused:
        check_plan(LARGE, with_extent(plan, level, axis, size))
    assert refused.value.reason == reason


def test_other_groups_and_operands_are_refused() -> None:
    plan = pick(LARGE, HARDWARE)[0].plan
    with pytest.raises(PlanError) as refused:
        check_plan(LARGE, replace(plan, staged=(2,)))
    assert refused.value.reason == "staged"
    with pytest.raises(PlanError) as refused:
        check_plan(LARGE, replace(plan, anchor=0))
    assert refused.value.reason in ("extent", "structure")


def test_both_products_count_as_multiplications() -> None:
    plan = pick(LARGE, HARDWARE)[0].plan
    assert multiply_flops(LARGE, plan) == 2 * 2 * 12 * 384 * 384 * 64


def test_the_search_moves_every_number() -> None:
    source = random.Random(0)
    plan = pick(LARGE, HARDWARE)[0].plan
    found = {mutated(LARGE, plan, source) for _ in range(600)} | set(neighbours(LARGE, plan))
    legal = [p for p in found if is_legal(LARGE, p, HARDWARE.lanes(4))]
    for level, axis in (("core", 3), ("l2", 3), ("register", 2), ("register", 4), ("second", 2)):
        assert len({p.at(level).extents[axis] for p in legal}) > 1, (level, axis)
    assert len({p.staged for p in legal}) == 4
