"""Turns of a loop are found in a list of calls, by where their tensors lie alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tvm_ext.graph.turns import Apart, Called, Given, Going, Loop, Room, find_loop

BYTES = 256
WRITES = {"product": {2}, "cell": {2, 3}, "map": {1}}


@dataclass(frozen=True)
class Named:
    """A tensor or a kernel; equal names are the same."""

    name: str

    def same_as(self, other: Any) -> bool:
        return bool(self == other)


@dataclass(frozen=True)
class Constant(Named):
    value: int = 0


def given(name: str, offset: int = 0, size: int = BYTES) -> Given:
    return Given(Named(name), offset, size, "float32")


def calls_of(*made: tuple[str, list[Given]]) -> list[Called]:
    return [Called(n, Named(kernel), tuple(each)) for n, (kernel, each) in enumerate(made)]


def found(calls: list[Called], start: int = 0, least: int = 3) -> Loop | None:
    written = {Named(name): frozenset(places) for name, places in WRITES.items()}
    names = {one.base for call in calls for one in call.given}
    rooms = {base: BYTES for base in names if base.name[0] in "sc" and base.name != "share"}
    return find_loop(calls, start, written, rooms, least)


def layer(steps: int, *, alone: bool = False) -> list[Called]:
    """A recurrent layer: each step's product goes into its cell, whose state the next one takes."""
    made: list[tuple[str, list[Given]]] = []
    for t in range(steps):
        state = given("y", (t - 1) * BYTES) if t else given("h")
        made.append(("product", [state, given("w", size=4096), given(f"s{t}")]))
        kept = given("c") if alone else given(f"c{t}")
        made.append(("cell", [given(f"s{t}"), kept, given(f"c{t + 1}"), given("y", t * BYTES)]))
    return calls_of(*made)


def test_what_goes_on_and_what_is_handed_on() -> None:
    loop = found(layer(8), start=2)
    assert loop is not None
    assert (loop.start, loop.period, loop.turns) == (2, 2, 7)
    product, cell = loop.forms
    assert product == (
        Going(given("y"), BYTES),
        Going(given("w", size=4096), 0),
        Room(0, 0),
    )
    assert cell == (Room(0, 0), Room(1, 1), Room(1, 0), Going(given("y", BYTES), BYTES))
    assert [room[0] for room in loop.rooms] == [None, Named("c1")]
    assert loop.rooms[1][1:] == tuple(Named(f"c{t}") for t in range(2, 9))


def test_a_first_turn_that_differs_is_none() -> None:
    assert found(layer(8)) is None
    assert found(layer(8), start=1) is not None


def test_turns_that_are_too_few() -> None:
    assert found(layer(4), start=2, least=3) is not None
    assert found(layer(4), start=2, least=4) is None


def test_turns_end_where_the_step_changes() -> None:
    calls = layer(8)
    jumped = calls[11]._replace(given=(*calls[11].given[:3], given("y", 99 * BYTES)))
    loop = found([*calls[:11], jumped, *calls[12:]], start=2)
    assert loop is not None
    assert loop.turns == 4


def test_turns_end_where_the_kernels_change() -> None:
    other = calls_of(("map", [given("x"), given("s")]))
    loop = found([*layer(6), *other, *layer(6)], start=2)
    assert loop is not None
    assert loop.turns == 5


def test_a_tensor_of_the_loop_that_all_turns_read_is_refused() -> None:
    """It would be written by one name and read by another."""
    calls = layer(8)
    seen = [
        call
        if call.kernel.name == "product"
        else call._replace(given=(*call.given[:1], given("c3"), *call.given[2:]))
        for call in calls
    ]
    assert found(seen, start=2) is None


@pytest.mark.parametrize(("size", "apart"), [(8, True), (4096, False)])
def test_small_constants_of_each_turn_are_put_side_by_side(size: int, apart: bool) -> None:
    each = [Given(Constant(f"k{t}"), 0, size, "int64") for t in range(5)]
    calls = calls_of(*(("product", [each[t], given("w"), given(f"s{t}")]) for t in range(5)))
    loop = found(calls)
    assert (loop is not None) == apart
    if loop is not None:
        assert loop.forms[0][0] == Apart(tuple(one.base for one in each))


def test_of_all_periods_the_one_with_most_calls() -> None:
    calls = calls_of(*(("map", [given("x", t * BYTES), given("y", t * BYTES)]) for t in range(7)))
    loop = found(calls)
    assert loop is not None
    assert (loop.period, loop.turns) == (1, 7)


def test_parts_of_other_sizes_are_no_turns() -> None:
    sizes = (BYTES, BYTES, BYTES, 2 * BYTES, BYTES)
    calls = calls_of(
        *(
            ("map", [given("x", t * BYTES, size), given("y", t * BYTES)])
            for t, size in enumerate(sizes)
        )
    )
    assert found(calls) is None
