"""Splits as slices, and concatenations that take back together what lies together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tvm_ext.graph.lower_split import LowerSplit, Part, part_of
from tvm_ext.graph.normalise import Normalise
from tvm_ext.tvm_api import IRModule, op_name, relax, structural_walk

op = relax.op
SHAPE = (2, 12, 5)


def lowered(build: Callable[..., Any]) -> list[str]:
    """The operators of a function of two tensors after the pass."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in "xy"]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, *params))
        builder.emit_func_output(result)
    return operators(Normalise()(LowerSplit()(builder.finalize())))


def operators(mod: IRModule) -> list[str]:
    found: list[Any] = []
    structural_walk(mod["main"].body, (relax.Call, found.append))
    return [op_name(call).removeprefix("relax.") for call in found]


@pytest.mark.parametrize("how", [3, [5, 6]])
def test_parts_are_slices(how: Any) -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        parts = emit(op.split(x, how, 1))
        return emit(relax.Tuple([emit(parts[2]), emit(parts[0])]))

    assert lowered(build) == ["strided_slice", "strided_slice"]


def test_what_is_put_together_again_was_never_apart() -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        parts = emit(op.split(x, 3, 1))
        return emit(op.concat([emit(parts[place]) for place in range(3)], 1))

    assert lowered(build) == []


def test_neighbours_are_one_operand() -> None:
    """YOLO's blocks: both halves, and what the second becomes."""

    def build(emit: Any, x: Any, y: Any) -> Any:
        parts = emit(op.split(x, 2, 1))
        a, b = emit(parts[0]), emit(parts[1])
        return emit(op.concat([a, b, emit(op.tanh(b))], 1))

    assert sorted(lowered(build)) == ["concat", "strided_slice", "tanh"]


@pytest.mark.parametrize("order", [(1, 0), (0, 2), (0, 0)])
def test_others_stay_apart(order: tuple[int, int]) -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        parts = emit(op.split(x, 3, 1))
        return emit(op.concat([emit(parts[place]) for place in order], 1))

    assert lowered(build).count("concat") == 1


def test_parts_of_another_axis_stay_apart() -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        parts = emit(op.split(x, 2, 1))
        return emit(op.concat([emit(parts[0]), emit(parts[1])], 2))

    assert lowered(build).count("concat") == 1


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [(2, 7, (2, 7)), (-5, 99, (7, 12)), (-99, 3, (0, 3))],
)
def test_ends_are_those_within_the_tensor(begin: int, end: int, found: tuple[int, int]) -> None:
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    call = relax.BlockBuilder().normalize(op.strided_slice(x, [1], [begin], [end]))
    assert part_of(call) == Part(x, 1, *found)


def test_a_stride_is_no_part() -> None:
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    call = relax.BlockBuilder().normalize(op.strided_slice(x, [1], [0], [8], [2]))
    assert part_of(call) is None


@pytest.mark.parametrize(
    ("indices", "found"),
    [
        ([3, 4, 5], ["strided_slice"]),
        (3, ["strided_slice", "reshape"]),
        ([[2, 3]], ["strided_slice", "reshape"]),
        (list(range(12)), []),
        ([3, 5], ["take"]),
        ([4, 3], ["take"]),
        ([11, 12], ["take"]),
    ],
)
def test_a_gather_of_neighbours_is_a_slice(indices: Any, found: list[str]) -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        return emit(op.take(x, relax.const(indices, "int64"), 1))

    assert lowered(build) == found


@pytest.mark.parametrize(("count", "found"), [(4, "strided_slice"), (6, "take")])
def test_many_gathers_of_one_tensor_stay(count: int, found: str) -> None:
    """The steps of a sequence: each slice would be a kernel of its own."""

    def build(emit: Any, x: Any, y: Any) -> Any:
        taken = [
            emit(op.take(x, relax.const(place, "int64"), 1)) for place in range(0, count * 2, 2)
        ]
        return emit(relax.Tuple(taken))

    assert lowered(build).count(found) == count


@pytest.mark.parametrize(("count", "found"), [(4, "strided_slice"), (6, "split")])
def test_a_split_of_many_parts_stays(count: int, found: str) -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        parts = emit(op.split(x, count, 1))
        return emit(relax.Tuple([emit(parts[place]) for place in range(count)]))

    assert found in lowered(build)
