"""Blocks of memory that tensors share: one at a time, and what leaves the function stays out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.graph.plan_memory import (
    ALIGNED,
    PAGE,
    Life,
    PlanMemory,
    apart,
    lifetimes,
    middle,
    share,
    unit_bytes,
)
from tvm_ext.tvm_api import IRModule, relax, te, tirx, topi, tvm


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 10))
        symbols = frozenset(draw(st.sampled_from(("", "n", "nm", "m"))))
        last = draw(st.integers(first, 10))
        found.append(Life(draw(st.integers(1, 500)), first, last, symbols))
    return found


@given(lives())
def test_tensors_of_a_block_fit_and_are_never_alive_together(tensors: list[Life]) -> None:
    blocks, owners = share(tensors)
    for index, own in enumerate(tensors):
        assert own.bytes <= owners[blocks[index]].bytes
        assert own.symbols == owners[blocks[index]].symbols
        for other in range(index):
            if blocks[other] == blocks[index]:
                assert own.last < tensors[other].first or tensors[other].last < own.first


@given(lives())
def test_the_blocks_take_no_more_than_all_tensors_and_no_less_than_the_peak(
    tensors: list[Life],
) -> None:
    _, owners = share(tensors)
    sizes = [owner.bytes for owner in owners]
    assert sum(sizes) <= sum(-(-own.bytes // ALIGNED) * ALIGNED for own in tensors)
    for moment in range(11):
        alive = [own.bytes for own in tensors if own.first <= moment <= own.last]
        assert sum(sizes) >= sum(alive)


@given(lives())
def test_tensors_lie_in_the_middle_of_their_blocks(tensors: list[Life]) -> None:
    blocks, owners = share(tensors)
    for own, block in zip(tensors, blocks, strict=True):
        before = middle(own.bytes, owners[block].bytes)
        after = owners[block].bytes - own.bytes - before
        assert before % ALIGNED == 0
        assert 0 <= after - before < 2 * ALIGNED


@given(lives())
def test_no_two_blocks_take_as_many_pages(tensors: list[Life]) -> None:
    """Nor as many as a tensor with memory of its own, while that is less than twice the memory."""
    large = [one._replace(bytes=40 * PAGE + one.bytes) for one in tensors]
    _, owners = share(large)
    found = apart(owners, [40 * PAGE + 1])
    pages = [
        -(-new.bytes // PAGE) for new, old in zip(found, owners, strict=True) if not old.symbols
    ]
    assert len({41, *pages}) == 1 + len(pages)
    for new, old in zip(found, owners, strict=True):
        assert old.bytes <= new.bytes < 2 * old.bytes + PAGE
        assert new.bytes == old.bytes or not old.symbols
        assert new.bytes % ALIGNED == 0


def steps(step: Callable[[te.Tensor], te.Tensor], count: int, x: Any, *returned: int) -> IRModule:
    """`step` after `step`, beginning with x; the results of some are returned beside the last."""
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for _ in range(count):
                values.append(builder.emit_te(step, values[-1]))
            outputs = relax.Tuple([values[-1], *(values[place] for place in returned)])
            output = builder.emit_output(outputs)
        builder.emit_func_output(output)
    transform = relax.transform
    return tvm.transform.Sequential(
        [transform.ToNonDataflow(), transform.RemovePurityChecking(), transform.CallTIRRewrite()]
    )(builder.finalize())


def chain(length: int, returned: int, rows: Any = 64) -> IRModule:
    """x + 1 + 1 ..., `length` times; the result of one step is returned beside the last one."""

    def plus_one(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda i, j: data[i, j] + 1.0, name="plus")

    x = relax.Var("x", relax.TensorType((rows, 16), "float32"))
    return steps(plus_one, length, x, returned)


def test_a_chain_needs_two_places_and_results_keep_their_own_memory() -> None:
    lowered = chain(6, returned=3)
    found = lifetimes(lowered["main"])
    assert len(found) == 4, "six steps, two of them returned"
    assert [owner.bytes for owner in share(list(found.values()))[1]] == [64 * 16 * 4] * 2
    script = PlanMemory()(lowered).script()
    assert script.count("R.memory.alloc_storage") == 2
    assert script.count("R.memory.alloc_tensor") == 4
    assert script.count("R.builtin.alloc_tensor") == 2


def test_results_have_blocks_of_no_other_tensor() -> None:
    """Two results of 16 pages, and two blocks of more."""
    script = PlanMemory()(chain(6, returned=3, rows=16 * 64)).script()
    sizes = re.findall(r"alloc_storage\(R.shape\(\[(\d+)\]\)", script)
    assert [-(-int(size) // PAGE) for size in sizes] == [17, 18]


def shrinking(rows: Any) -> IRModule:
    """Four tensors, each of half as many columns as the one before, and a result."""

    def halved(data: te.Tensor) -> te.Tensor:
        shape = (data.shape[0], int(data.shape[1]) // 2)
        return te.compute(shape, lambda i, j: data[i, j] + 1.0, name="halved")

    return steps(halved, 5, relax.Var("x", relax.TensorType((rows, 1024), "float32")))


def test_smaller_tensors_have_as_much_of_their_block_before_them_as_behind() -> None:
    script = PlanMemory()(shrinking(rows=4)).script()
    assert script.count("R.memory.alloc_storage") == 2
    offsets = re.findall(r"alloc_tensor\(\w+, (?:R.prim_value\()?(\d+)", script)
    assert [int(offset) for offset in offsets] == [0, 0, (8192 - 2048) // 2, (4096 - 1024) // 2]
    plain = PlanMemory(offsets=False)(shrinking(rows=4)).script()
    assert len(re.findall(r"alloc_tensor\(\w+, (?:R.prim_value\()?0\b", plain)) == 4


def test_the_place_in_a_block_grows_as_the_block_does() -> None:
    script = PlanMemory()(shrinking(rows=tirx.Var("n", "int64"))).script()
    assert "(storage, 768 * n," in script
    assert "(storage1, 384 * n," in script


def test_what_is_not_known_multiplies_blocks_for_one() -> None:
    n = tirx.Var("n", "int64")
    lowered = chain(6, returned=3, rows=n)
    assert [life.bytes for life in lifetimes(lowered["main"]).values()] == [16 * 4] * 4
    script = PlanMemory()(lowered).script()
    assert script.count("R.memory.alloc_storage(R.shape([64 * n])") == 2
    assert script.count("R.memory.alloc_tensor") == 4
    assert script.count(" = R.shape([n, 16])") == 1, "worked out once"


def test_bytes_for_one_of_each() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")

    def of(*shape: Any) -> tuple[int, frozenset[Any]] | None:
        return unit_bytes(relax.TensorType(shape, "float32"), (n, m))

    assert of(3, 5) == (60, frozenset())
    assert of(n, 5) == of(5, n) == (20, frozenset({n}))
    assert of(n * 6, m, 5) == (120, frozenset({n, m}))
    assert of(n, m, n) is None, "twice as much of one is four times as much"
    assert of(n * m, 5) == of(n, m * 5) == (20, frozenset({n, m}))
    assert of(n * m, m) is None, "as much again"
    assert of(n + 1, 5) is None
    assert of(n, 0) is None


def test_memory_grows_with_what_its_tensors_grow_with() -> None:
    """Images and texts of two towers do not multiply."""
    builder = relax.BlockBuilder()
    extents = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    towers = [
        relax.Var(name, relax.TensorType((e, 16), "float32"))
        for name, e in zip("xy", extents, strict=True)
    ]
    with builder.function("main", towers):
        with builder.dataflow():
            ends = []
            for value in towers:
                for _ in range(3):
                    value = builder.emit_te(topi.exp, value)
                ends.append(value)
            output = builder.emit_output(relax.Tuple(ends))
        builder.emit_func_output(output)
    transform = relax.transform
    lowered = tvm.transform.Sequential(
        [transform.ToNonDataflow(), transform.RemovePurityChecking(), transform.CallTIRRewrite()]
    )(builder.finalize())
    script = PlanMemory()(lowered).script()
    sizes = re.findall(r"alloc_storage\(R.shape\(\[(.*?)\]\)", script)
    assert sorted(sizes) == ["64 * m"] * 2 + ["64 * n"] * 2


def test_a_function_with_a_branch_is_left_alone() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    flag = relax.Var("flag", relax.TensorType((), "bool"))
    with builder.function("main", [x, flag]):
        value = builder.emit(
            relax.op.builtin.alloc_tensor(relax.ShapeExpr([4]), "float32", 0, "global")
        )
        chosen = builder.emit(relax.If(flag, value, x))
        builder.emit_func_output(chosen)
    assert lifetimes(builder.finalize()["main"]) == {}
