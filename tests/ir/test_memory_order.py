"""Orders of calls: each a topological order, none with a higher peak, results unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.graph.memory_order import (
    MemoryOrder,
    Step,
    depth_first_order,
    fresh_bytes,
    greedy_order,
    peak_bytes,
)
from tvm_ext.tvm_api import IRModule, relax

ORDERS = [greedy_order, depth_first_order]


@st.composite
def graphs(draw: st.DrawFn) -> list[Step]:
    """Up to twelve steps that read earlier ones; some are views, some are kept."""
    steps = []
    for number in range(draw(st.integers(1, 12))):
        earlier = st.sets(st.integers(0, number - 1), max_size=3) if number else st.just(set())
        size = draw(st.sampled_from([0, 1, 4, 64, 1000]))
        steps.append(Step(size, frozenset(draw(earlier)), draw(st.booleans())))
    return steps


@given(graphs())
@pytest.mark.parametrize("order", ORDERS)
def test_every_step_comes_once_and_after_what_it_reads(order, steps: list[Step]) -> None:
    found = order(steps)
    assert sorted(found) == list(range(len(steps)))
    place = {number: at for at, number in enumerate(found)}
    for number, step in enumerate(steps):
        assert all(place[source] < place[number] for source in step.reads)


def live_bytes(steps: list[Step], done: list[int]) -> int:
    """What must be alive after some steps, told from the definition alone."""
    total = 0
    for number in done:
        reached, front = {number}, [number]
        while front:  # the step and all views of it
            one = front.pop()
            views = [i for i in done if one in steps[i].reads and not steps[i].size_bytes]
            front += [view for view in views if view not in reached]
            reached |= set(views)
        waiting = any(reached & s.reads for i, s in enumerate(steps) if i not in done)
        total += steps[number].size_bytes if waiting or any(steps[i].kept for i in reached) else 0
    return total


@given(graphs())
def test_the_peak_is_the_most_that_must_be_alive(steps: list[Step]) -> None:
    peak = 0
    for count, step in enumerate(steps):
        alive = live_bytes(steps, list(range(count)))
        peak = max(peak, alive + step.size_bytes)
    views_pending = any(not step.size_bytes for step in steps)
    found = peak_bytes(steps, range(len(steps)))
    assert found == peak if not views_pending else found >= peak


def test_a_branch_that_shrinks_is_finished_before_the_next_begins() -> None:
    """Two branches: 1000 bytes each, then 10; side by side both large ones are alive."""
    large, small = 1000, 10
    steps = [
        Step(large, frozenset()),
        Step(large, frozenset()),
        Step(small, frozenset({0})),
        Step(small, frozenset({1})),
        Step(small, frozenset({2, 3}), kept=True),
    ]
    assert peak_bytes(steps, range(5)) == 2 * large + small
    assert peak_bytes(steps, greedy_order(steps)) == large + 2 * small
    assert peak_bytes(steps, depth_first_order(steps)) == large + 2 * small


def two_branches() -> IRModule:
    """y = sum(x + x) + sum(x * x), the large results made first."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.add(x, x))
            second = builder.emit(relax.op.multiply(x, x))
            one = builder.emit(relax.op.sum(first))
            two = builder.emit(relax.op.sum(second))
            result = builder.emit_output(relax.op.add(one, two))
        builder.emit_func_output(result)
    return builder.finalize()


def names(mod: IRModule) -> list[str]:
    (block,) = mod["main"].body.blocks
    return [binding.value.op.name.removeprefix("relax.") for binding in block.bindings]


def test_the_pass_reorders_calls_and_leaves_a_good_order_alone() -> None:
    before = two_branches()
    assert names(before) == ["add", "multiply", "sum", "sum", "add"]
    after = MemoryOrder()(before)
    assert names(after) in (
        ["add", "sum", "multiply", "sum", "add"],
        ["multiply", "sum", "add", "sum", "add"],
    )
    relax.analysis.well_formed(after)  # raises if it is not
    assert names(MemoryOrder()(after)) == names(after)


def test_what_is_written_where_nothing_has_been() -> None:
    """Of a chain two tensors are alive at once: the largest two that follow one another, but for
    what the result takes, are all that a run touches."""
    sizes = [100, 400, 300, 200, 600]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.broadcast_to(x, (sizes[0],)))
            for size in sizes[1:]:
                first = builder.emit(relax.op.sum(y, keepdims=True))
                y = builder.emit(relax.op.broadcast_to(first, (size,)))
            out = builder.emit_output(relax.op.negative(y))
        builder.emit_func_output(out)
    (block,) = builder.finalize()["main"].body.blocks
    fresh = dict(zip(block.bindings, fresh_bytes(block), strict=True))
    large = [fresh[b] for b in block.bindings if b.var.ty.shape[0] > 1]
    assert large == [400, 1600 + 4 - 400 - 4, 0, 0, 2400 + 4 - 1600 - 4, 2400 - 4]
