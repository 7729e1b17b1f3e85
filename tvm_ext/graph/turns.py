"""Calls of kernels that are the turns of a loop: the same kernels again and again, on tensors that
go on by the same step, take turns, or are handed from each turn to the next.

    f(x, a0); g(a0, y[0:8]); f(x, a1); g(a1, y[8:16]); ...      2 calls a turn, x the same,
                                                                a0, a1, .. one room, y goes on

LLVM calls it loop rerolling. Nothing is computed in another order, so where tensors lie is all
that has to be found out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LONGEST = 16
"""Calls of a turn at most."""
FEW_BYTES = 64
"""Constants of a turn that are put side by side are this large at most."""


class Given(NamedTuple):
    """What a kernel is given: a part of a tensor."""

    base: Any
    """The tensor: a variable or a constant."""
    offset: int
    """Bytes of it that come before."""
    size: int
    """Bytes."""
    dtype: str


class Called(NamedTuple):
    """One call of a kernel."""

    binding: int
    """Its place among the function's bindings."""
    kernel: Any
    given: tuple[Given, ...]


class Going(NamedTuple):
    """A part of one tensor, in each turn so many bytes on; the same with a step of 0."""

    first: Given
    step: int


class Room(NamedTuple):
    """A tensor that each turn allocates anew: number `number` of the loop's, as it was so many
    turns `ago`."""

    number: int
    ago: int


class Apart(NamedTuple):
    """A small constant for each turn."""

    constants: tuple[Any, ...]


Form = Going | Room | Apart


class Loop(NamedTuple):
    """Turns that follow one another."""

    start: int
    """The first turn's first call."""
    period: int
    """Calls of a turn."""
    turns: int
    forms: tuple[tuple[Form, ...], ...]
    """For each call of a turn what it is given."""
    rooms: tuple[tuple[Any, ...], ...]
    """The tensors of each room, turn by turn; before them the one that the first turn is given, or
    None."""


def find_loop(
    calls: Sequence[Called],
    start: int,
    written: Mapping[Any, frozenset[int]],
    allocated: Mapping[Any, int],
    least: int,
) -> Loop | None:
    """The loop that begins with a call, of all lengths of a turn the one with most calls.

    written    the places of each kernel's parameters that it writes
    allocated  bytes of the tensors that the function makes room for
    least      turns that are worth it
    """
    found: Loop | None = None
    for period in range(1, min(LONGEST, (len(calls) - start) // least) + 1):
        count = _repeats(calls, start, period)
        loop = None
        if count >= least:
            turns = [calls[start + period * t :][:period] for t in range(count)]
            loop = _read(start, turns, written, allocated, least)
        if loop and (found is None or loop.turns * loop.period > found.turns * found.period):
            found = loop
    return found


def _repeats(calls: Sequence[Called], start: int, period: int) -> int:
    """How often the same kernels are called, one period after another."""
    same = start + period
    while same < len(calls) and calls[same].kernel.same_as(calls[same - period].kernel):
        same += 1
    return (same - start) // period


def _read(
    start: int,
    turns: Sequence[Sequence[Called]],
    written: Mapping[Any, frozenset[int]],
    allocated: Mapping[Any, int],
    least: int,
) -> Loop | None:
    """As many of the turns as are of a form; None if too few are."""
    count = len(turns)
    while count >= least:
        reader = _Reader(turns[:count], written, allocated)
        known = reader.known()
        if known == count:
            rooms = tuple(map(tuple, reader.rooms))
            return Loop(start, len(turns[0]), count, reader.forms, rooms)
        count = known
    return None


class _Reader:
    """What each place of each call is given, turn by turn."""

    def __init__(
        self,
        turns: Sequence[Sequence[Called]],
        written: Mapping[Any, frozenset[int]],
        allocated: Mapping[Any, int],
    ) -> None:
        self._turns, self._allocated = turns, allocated
        places = [(n, p) for n, call in enumerate(turns[0]) for p in range(len(call.given))]
        self._writes = [(n, p) for n, p in places if p in written[turns[0][n].kernel]]
        self._reads = [at for at in places if at not in self._writes]
        self._forms: dict[tuple[int, int], Form] = {}
        self.rooms: list[list[Any]] = []

    @property
    def forms(self) -> tuple[tuple[Form, ...], ...]:
        """By call and place."""
        calls = enumerate(self._turns[0])
        return tuple(tuple(self._forms[n, p] for p in range(len(c.given))) for n, c in calls)

    def known(self) -> int:
        """The number of turns, from the first on, that are of a form with the first two."""
        fewest = len(self._turns)
        for at in (*self._writes, *self._reads):
            number, place = at
            given = [turn[number].given[place] for turn in self._turns]
            form, count = self._form(given, at in self._writes)
            if form is None:
                return 1
            self._forms[at] = form
            fewest = min(fewest, count)
        made = {one for room in self.rooms for one in room[1:]}
        going = (form.first.base for form in self._forms.values() if isinstance(form, Going))
        return 1 if any(base in made for base in going) else fewest

    def _form(self, given: Sequence[Given], writes: bool) -> tuple[Form | None, int]:
        """The form of what one place is given, and for how many turns it holds."""
        first, second = given[:2]
        if any(one[2:] != first[2:] for one in given):
            return None, 1
        if first.base.same_as(second.base):
            step = second.offset - first.offset
            same = _prefix(
                one.base.same_as(first.base) and one.offset == first.offset + step * turn
                for turn, one in enumerate(given)
            )
            return Going(first, step), same
        if all(_is_small(one) for one in given):
            return Apart(tuple(one.base for one in given)), len(given)
        return self._room([one.base for one in given], self._own(given), writes)

    def _own(self, given: Sequence[Given]) -> int:
        """How many of the first are whole tensors that the function makes room for."""
        return _prefix(self._allocated.get(one.base) == one.size for one in given)

    def _room(self, bases: Sequence[Any], own: int, writes: bool) -> tuple[Form | None, int]:
        if own < 2:
            return None, 1
        for number, (before, *made) in enumerate(self.rooms):
            if bases[0].same_as(made[0]):
                return Room(number, 0), _prefix(map(_same, bases, made))
            unknown = before is None or before.same_as(bases[0])
            if bases[1].same_as(made[0]) and unknown and not writes:
                self.rooms[number][0] = bases[0]
                return Room(number, 1), 1 + _prefix(map(_same, bases[1:], made))
        if not writes:
            return None, 1
        self.rooms.append([None, *bases])
        return Room(len(self.rooms) - 1, 0), own


def _is_small(given: Given) -> bool:
    return hasattr(given.base, "value") and given.size <= FEW_BYTES


def _same(one: Any, other: Any) -> bool:
    return bool(one.same_as(other))


def _prefix(holds: Any) -> int:
    """How many hold, from the first on."""
    count = 0
    for one in holds:
        if not one:
            break
        count += 1
    return count
