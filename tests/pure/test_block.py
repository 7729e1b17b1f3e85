"""How the threads of a GPU block share its tile."""

from __future__ import annotations

import msgspec
import pytest
from block_plans import block_plan
from graphs import conv, matmul
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import PlanError
from tvm_ext.tile import Tile, TilePlan
from tvm_ext.tile.block import (
    STATIC_BYTES,
    can_fetch_ahead,
    copied,
    copy_box,
    copy_bytes,
    fetch_width,
    is_skewed,
    skewed,
    step_counts,
    stepped,
    strip,
    unrolled,
)
from tvm_ext.tile.legal import check_plan

PRODUCT = matmul(256, 256, 128)
PLAN = block_plan((64, 64, 128), (64, 64, 32), (8, 8, 1))


@given(st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_rows_of_a_skewed_copy_begin_in_different_banks(length: int, dtype_bytes: int) -> None:
    """Eight rows that follow one another begin in eight different groups of four banks."""
    row = skewed(length, dtype_bytes)
    assert length <= row < length + 2 * 16 // dtype_bytes
    begins = {index * row * dtype_bytes // 16 % 8 for index in range(8)}
    assert len(begins) == 8
    assert row * dtype_bytes % 16 == 0, "vectors stay whole"


@given(st.integers(1, 64), st.integers(1, 256))
def test_unrolled_steps_leave_no_rest(extent: int, points: int) -> None:
    depth = unrolled(extent, points)
    assert extent % depth == 0
    assert depth == 1 or depth * points <= 256


def test_columns_go_by_vectors_and_rows_one_by_one() -> None:
    node, register = PRODUCT.nodes[0], PLAN.at("register")
    assert strip(PRODUCT, node, register, 1) == 4
    assert strip(PRODUCT, node, register, 0) == 1
    assert strip(PRODUCT, node, Tile((8, 6, 1)), 1) == 6, "no whole vectors"


def test_what_is_read_along_the_reduction_is_skewed() -> None:
    node = PRODUCT.nodes[0]
    a, b = (access.tensor for access in node.reads)
    assert copied(PRODUCT, PLAN) == (a, b)
    assert (is_skewed(PRODUCT, node, a), is_skewed(PRODUCT, node, b)) == (True, False)
    assert (copy_box(PRODUCT, PLAN, a), copy_box(PRODUCT, PLAN, b)) == ((64, 32), (32, 64))
    assert copy_bytes(PRODUCT, PLAN) == 4 * (64 * 36 + 32 * 64)
    assert {fetch_width(PRODUCT, PLAN, tensor) for tensor in (a, b)} == {4}


def test_odd_rows_are_fetched_one_by_one() -> None:
    odd = matmul(256, 255, 127)
    plan = block_plan((64, 64, 127), (64, 64, 32), (8, 8, 1))
    assert {fetch_width(odd, plan, access.tensor) for access in odd.nodes[0].reads} == {1}


def test_steps_are_those_of_one_axis() -> None:
    """Of a window's rows, columns and channels only the channels are counted ahead; where a step
    takes all channels, it is the innermost axis that takes several."""
    graph = conv(14, 14, 64, 64, kernel=3)
    anchor = next(i for i, node in enumerate(graph.nodes) if node.kind == "reduce")
    node = graph.nodes[anchor]
    channels, *window = sorted(node.reduce, key=lambda axis: -node.axes[axis].extent)

    def plan(**steps: int) -> TilePlan:
        core = [axis.extent if axis.kind == "reduce" else 1 for axis in node.axes]
        shared, register = list(core), [1] * len(core)
        shared[channels] = steps["channels"]
        for axis in window:
            shared[axis] = steps["window"]
        made = block_plan(tuple(core), tuple(shared), tuple(register), anchor=anchor)
        order = (*node.space, *window, channels)
        return msgspec.structs.replace(made, order=order)

    assert stepped(node, plan(channels=16, window=1)) == (channels,)
    assert step_counts(node, plan(channels=16, window=1)) == (9, 4)
    assert step_counts(node, plan(channels=16, window=3)) == (1, 4)
    assert step_counts(node, plan(channels=64, window=1)) == (3, 3)
    assert stepped(node, plan(channels=64, window=1)) == (window[-1], channels)
    assert step_counts(node, plan(channels=64, window=3)) == (1, 1)


def test_a_next_step_is_fetched_where_there_is_one_and_room() -> None:
    assert can_fetch_ahead(PRODUCT, PLAN)
    whole = block_plan((8, 8, 128), (8, 8, 128), (1, 1, 1))
    large = block_plan((128, 128, 128), (128, 128, 32), (8, 8, 1))
    assert 2 * copy_bytes(PRODUCT, large) > STATIC_BYTES
    for plan in (whole, large):
        assert not can_fetch_ahead(PRODUCT, plan)
        with pytest.raises(PlanError) as caught:
            check_plan(PRODUCT, msgspec.structs.replace(plan, ahead=True))
        assert caught.value.reason == "ahead"
    check_plan(PRODUCT, msgspec.structs.replace(PLAN, ahead=True))
