"""What lies in one piece becomes a view; what does not stays, and so do few slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_ext.graph.slice_in_place import SliceInPlace
from tvm_ext.tvm_api import op_name, relax, structural_walk

op = relax.op
STEPS = 6
PLACES = [np.array([place], np.int64) for place in range(STEPS)]


def taken_apart(shape: tuple[int, ...], part: Callable[..., Any], count: int) -> dict[str, int]:
    """How often each operator that takes something apart occurs in a sum of parts of a tensor."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            whole = builder.emit(op.tanh(x))
            parts = [builder.emit(part(builder.emit, whole, place)) for place in range(count)]
            total = parts[0]
            for one in parts[1:]:
                total = builder.emit(op.add(total, one))
            result = builder.emit_output(op.exp(total))
        builder.emit_func_output(result)
    found: dict[str, int] = {}

    def count_one(call: Any) -> None:
        name = op_name(call).removeprefix("relax.")
        found[name] = found.get(name, 0) + 1

    mod = SliceInPlace()(builder.finalize())
    structural_walk(mod["main"].body, (relax.Call, count_one))
    return {name: n for name, n in found.items() if name not in ("tanh", "add", "exp")}


def gathered(_: Any, x: Any, place: int) -> Any:
    return op.take(x, relax.const(PLACES[place]), 0)


def indexed(_: Any, x: Any, place: int) -> Any:
    return op.take(x, relax.const(place - STEPS, "int64"), 1)


def sliced(_: Any, x: Any, place: int) -> Any:
    return op.strided_slice(x, [0], [place], [place + 1])


def split(emit: Any, x: Any, place: int) -> Any:
    return emit(op.split(x, STEPS, 0))[place]


def reshaped(emit: Any, x: Any, place: int) -> Any:
    return op.reshape(emit(gathered(emit, x, place)), (2, 16))


@pytest.mark.parametrize("part", [gathered, sliced, split, reshaped])
def test_steps_are_views(part: Callable[..., Any]) -> None:
    assert taken_apart((STEPS, 2, 16), part, STEPS) == {"memory.view": STEPS}


def test_an_index_counts_from_the_end_behind_axes_of_one() -> None:
    assert taken_apart((1, STEPS, 32), indexed, STEPS) == {"memory.view": STEPS}


def test_steps_need_not_begin_with_a_cache_line() -> None:
    assert taken_apart((STEPS, 13), gathered, STEPS) == {"memory.view": STEPS}


def test_what_lies_apart_is_copied() -> None:
    assert taken_apart((2, STEPS, 16), indexed, STEPS) == {"take": STEPS}


@pytest.mark.parametrize(("part", "name"), [(gathered, "take"), (sliced, "strided_slice")])
def test_a_few_are_left_to_their_readers(part: Callable[..., Any], name: str) -> None:
    assert taken_apart((STEPS, 2, 16), part, 4) == {name: 4}
