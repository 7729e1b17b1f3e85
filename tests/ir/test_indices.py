"""Places in memory: linear where they are, and in 64 bits."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest

from tvm_ext.tvm_api import (
    Analyzer,
    Target,
    TensorLoad,
    structural_equal,
    structural_walk,
    substitute,
    te,
    tirx,
    tvm,
    variables,
)
from tvm_ext.tvm_indices import Axes, _extents, linear, plain_indices, wide
from tvm_ext.tvm_lowering import PASS_CONFIG, TIR_PIPELINE

TILE, TASK, K = (tirx.Var(name, "int32") for name in ("tile", "task", "k"))
EXTENTS = {TILE: 14, TASK: 20, K: 240}


def value(expr: Any, **at: int) -> int:
    """An index at one place."""
    names = {"tile": TILE, "task": TASK, "k": K}
    known = {names[name]: tirx.const(number, "int32") for name, number in at.items()}
    return int(Analyzer().simplify(substitute(expr, known)))


def divisions(expr: Any) -> int:
    """Quotients and remainders in an index."""
    found: list[Any] = []
    structural_walk(expr, [(tirx.FloorDiv, found.append), (tirx.FloorMod, found.append)])
    return len(found)


ROW = (TILE * 14 + 11) // 49 * 47040 + (TILE * 2 + 1) % 7 * 6720 + K * 4 + 3840
CASES = {
    # name: (index, quotients and remainders that stay)
    "rows of 8 images": (ROW, 0),
    "beside a task's own": (TASK // 10 * 188160 + ROW, 1),
    "taken away": (K * 4 - (TILE // 3 * 30 + TILE % 3 * 10), 0),
    "of two axes": ((TASK * 14 + TILE) // 7 * 70 + (TASK * 14 + TILE) % 7 * 10 + K, 0),
    "another step in each row": ((TILE * 14 + 11) // 49 * 47041 + (TILE * 2 + 1) % 7 * 6720, 2),
    "the last one moved back": (tirx.min(TILE * 14, 178) // 7 * 70 + K, 1),
    "no quotient": (TILE * 960 + K, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_an_index_is_linear_where_it_can_be_and_the_same_everywhere(name: str) -> None:
    index, stay = CASES[name]
    found = linear(index, Axes(EXTENTS))
    assert divisions(found) == stay
    used = {str(axis.name): axis for axis in variables(index)}
    for numbers in product(*([0, 1, 6, EXTENTS[axis] - 1] for axis in used.values())):
        at = dict(zip(used, numbers, strict=True))
        assert value(found, **at) == value(index, **at)


def test_axes_of_unknown_or_too_many_values_stay() -> None:
    assert divisions(linear(ROW, Axes({K: 240}))) == 2
    assert divisions(linear(ROW, Axes(EXTENTS | {TILE: 1 << 20}))) == 2


def test_kernels_have_64_bit_places() -> None:
    x = te.placeholder((4, 7, 7, 5), "float32", "x")
    y = te.compute((196, 5), lambda r, c: x[r // 49, r % 49 // 7, r % 7, c] * 2.0, "y")
    lower, *_ = tirx.get_tir_pipeline(TIR_PIPELINE)
    bound = tirx.transform.BindTarget(Target("llvm", host="llvm"))
    with tvm.transform.PassContext(config=PASS_CONFIG):
        mod = plain_indices(lower(bound(tvm.IRModule({"main": te.create_prim_func([x, y])}))))
    loads: list[Any] = []
    structural_walk(mod["main"].body, (TensorLoad, loads.append))
    places = [index for load in loads for index in load.indices]
    assert places
    assert {str(index.ty.dtype) for index in places} == {"int64"}
    assert sum(map(divisions, places)) == 0


def test_loops_of_one_variable_count_as_the_longest() -> None:
    """As parts of a loop that was cut do; one that does not begin at zero is not known at all."""
    x = tirx.decl_buffer((64,), "float32", "x")

    def loop(extent: int, first: int = 0) -> Any:
        store = tirx.BufferStore(x, tirx.const(0.0, "float32"), [TILE])
        return tirx.For(TILE, first, extent, tirx.ForKind.SERIAL, store)

    assert _extents(tirx.SeqStmt([loop(9), loop(4)])) == {TILE: 9}
    assert _extents(tirx.SeqStmt([loop(9), loop(4, 9)])) == {TILE: 0}
    assert _extents(tirx.SeqStmt([loop(4, 9), loop(9)])) == {TILE: 0}


def test_equal_terms_are_looked_at_once() -> None:
    """What differs by a number that is added has the same quotients."""
    axes = Axes(EXTENTS)
    first = linear(ROW, axes)
    looked_at = len(axes.known)
    assert looked_at
    second = linear(ROW + 5, axes)
    assert len(axes.known) == looked_at
    assert divisions(first) == divisions(second)


def test_no_index_is_taken_for_another() -> None:
    """TVM's hash of a * 7 + b may be that of a * 14 + e, by where the variables lie in memory."""
    for _ in range(20):
        axes_here = [tirx.Var(name, "int32") for name in "abcdef"]
        axes = Axes(dict.fromkeys(axes_here, 5))
        for (one, other), step in product(permutations(axes_here, 2), (2, 7, 14)):
            index = one * step + other
            assert structural_equal(axes.plain(index), wide(index)), index
