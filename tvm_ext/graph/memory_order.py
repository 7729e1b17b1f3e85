"""`MemoryOrder`: calls in the order that keeps least alive.

    a = f(x); b = g(x); c = h(a); d = k(b); y = c + d   →   a = f(x); c = h(a); b = g(x); ...

if h and k return less than they take. Any topological order computes the same; the memory planner
works on the one it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from tvm_ext.graph.open_extent import of_about_slice
from tvm_ext.tvm_api import (
    IRModule,
    element_bytes,
    op_name,
    relax,
    static_extents,
    structural_walk,
    tirx,
    tvm,
    with_blocks,
)

ALLOC = "relax.builtin.alloc_tensor"
"""The operator that makes room for a tensor, after CallTIRRewrite."""
VIEWS = frozenset({"relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"})
"""Operators whose result is what they take."""


@dataclass(frozen=True)
class Step:
    """One binding of a block, by the numbers of the bindings whose memory it needs.

    size_bytes  what it allocates; 0 for a view, a tuple or a field of one
    reads       bindings that must come before it
    kept        whether what it makes is needed after the block
    """

    size_bytes: int
    reads: frozenset[int]
    kept: bool = False


@tvm.transform.module_pass(opt_level=0, name="MemoryOrder")
@dataclass(frozen=True)
class MemoryOrder:
    """Reorders the bindings of dataflow blocks where that lowers the peak of live bytes; of equal
    orders the given one stays.

    extents  stand for some that are not known, if given: the order is that for one of each,
             whatever the numbers
    """

    extents: tuple[int, ...] = ()

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with its Relax functions' dataflow blocks reordered."""
        return with_blocks(mod, partial(_reordered, open_extents=self.extents))


def peak_bytes(steps: Sequence[Step], order: Iterable[int]) -> int:
    """Most bytes alive at once, what a step reads and makes included."""
    return max((live for _, live in _live_bytes(steps, order)), default=0)


def _live_bytes(steps: Sequence[Step], order: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Each step with the bytes alive at it, what it reads and makes included."""
    owners = storage(steps)
    waiting = uses(steps, owners)
    live = 0
    for number in order:
        live += steps[number].size_bytes
        yield number, live
        live -= sum(steps[i].size_bytes for i in _freed(steps, owners, waiting, number))


def fresh_bytes(block: Any) -> list[int]:
    """For each binding of a block the bytes of what it makes that lie where nothing has lain before
    it, memory being used again as soon as it can be."""
    steps = _steps(block.bindings)
    fresh, most = [0] * len(steps), 0
    for number, live in _live_bytes(steps, _best_order(steps)):
        fresh[number] = max(0, live - most)
        most = max(most, live)
    return fresh


def storage(steps: Sequence[Step]) -> list[frozenset[int]]:
    """For each step the steps whose memory its result lies in: itself, or what it is a view of."""
    owners: list[frozenset[int]] = []
    for number, step in enumerate(steps):
        behind = _needed(step, owners)
        owners.append(frozenset({number}) if step.size_bytes else behind)
    return owners


def _needed(step: Step, owners: Sequence[frozenset[int]]) -> frozenset[int]:
    """The steps whose memory a step reads."""
    return frozenset[int]().union(*(owners[i] for i in step.reads))


def uses(steps: Sequence[Step], owners: Sequence[frozenset[int]]) -> list[int]:
    """For each step how many steps, and the world outside, still need its memory."""
    waiting = [0] * len(steps)
    for number, step in enumerate(steps):
        for owner in _needed(step, owners) | {number}:
            waiting[owner] += 1
        for owner in owners[number] if step.kept else ():
            waiting[owner] += 1
    return waiting


def _freed(
    steps: Sequence[Step], owners: Sequence[frozenset[int]], waiting: list[int], number: int
) -> list[int]:
    """Counts a step as done; returns the steps whose memory nobody needs any more."""
    done = _needed(steps[number], owners) | {number}
    for owner in done:
        waiting[owner] -= 1
    return [owner for owner in done if waiting[owner] == 0]


def greedy_order(steps: Sequence[Step]) -> list[int]:
    """At each point the step that leaves least alive; of equal ones the first given."""
    owners = storage(steps)
    waiting = uses(steps, owners)
    missing = [len(step.reads) for step in steps]
    readers: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for source in step.reads:
            readers[source].append(number)
    ready = [number for number, count in enumerate(missing) if count == 0]
    order = []

    def left(number: int) -> tuple[int, int]:
        needed = _needed(steps[number], owners) | {number}
        freed = sum(steps[i].size_bytes for i in needed if waiting[i] == 1)
        return steps[number].size_bytes - freed, number

    while ready:
        number = min(ready, key=left)
        ready.remove(number)
        order.append(number)
        _freed(steps, owners, waiting, number)
        for reader in readers[number]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    return order


def depth_first_order(steps: Sequence[Step]) -> list[int]:
    """Every step right after what it needs, the part that needs most memory first."""
    below = [0] * len(steps)
    for number, step in enumerate(steps):
        below[number] = max([step.size_bytes, *(below[i] for i in step.reads)])
    order: list[int] = []
    done: set[int] = set()
    read = frozenset[int]().union(*(step.reads for step in steps))
    for root in (number for number in range(len(steps)) if number not in read):
        stack = [(root, False)]
        while stack:
            number, entered = stack.pop()
            if entered:
                order.append(number)
            elif number not in done:
                done.add(number)
                stack.append((number, True))
                sources = sorted(steps[number].reads - done, key=lambda i: (below[i], -i))
                stack += [(source, False) for source in sources]
    return order


def _reordered(block: Any, open_extents: tuple[int, ...]) -> Any:
    bindings = list(block.bindings)
    best = _best_order(_steps(bindings, open_extents))
    given = best == list(range(len(best)))
    return block if given else relax.DataflowBlock([bindings[i] for i in best])


def _best_order(steps: Sequence[Step]) -> list[int]:
    choices = [list(range(len(steps))), greedy_order(steps), depth_first_order(steps)]
    return min(choices, key=lambda order: peak_bytes(steps, order))


def _steps(bindings: Sequence[Any], open_extents: tuple[int, ...] = ()) -> list[Step]:
    numbers = {binding.var: number for number, binding in enumerate(bindings)}
    extents = _extents_found(bindings)
    steps = []
    for number, binding in enumerate(bindings):
        value = getattr(binding, "value", None)
        used: list[Any] = []
        structural_walk(value, (relax.Var, used.append))
        reads = frozenset(numbers[var] for var in used if var in numbers)
        if extents:
            found = {extents[var] for var in _symbols(binding) if var in extents}
            reads |= found - {number}
        allocates = isinstance(value, relax.Call) and op_name(value) not in VIEWS
        kept = not isinstance(binding.var, relax.DataflowVar)
        size_bytes = type_bytes(binding.var.ty, open_extents) if allocates else 0
        steps.append(Step(size_bytes, reads, kept))
    return steps


def _extents_found(bindings: Sequence[Any]) -> dict[Any, int]:
    """Extents that data say, with the numbers of the bindings that find them."""
    found: dict[Any, int] = {}
    for number, binding in enumerate(bindings):
        if isinstance(binding, relax.MatchCast):
            found |= {var: number for var in _symbols(binding) if var not in found}
    return found


def _symbols(binding: Any) -> list[Any]:
    """The extents without a number that a binding reads, or gives to what it makes."""
    used: list[Any] = []
    for part in (binding.value, binding.var.ty):
        structural_walk(part, (tirx.Var, used.append))
    return used


def type_bytes(ty: Any, open_extents: tuple[int, ...] = ()) -> int:
    """Bytes of a tensor, or of all fields of a tuple, with 1 for extents that are open; 0 where the
    shape is not known."""
    if hasattr(ty, "fields"):
        return sum(type_bytes(field, open_extents) for field in ty.fields)
    extents = static_extents(ty)
    if extents is None:
        return 0
    return prod(of_about_slice(extent, open_extents) for extent in extents) * element_bytes(
        ty.dtype
    )
