"""Preparing a fused PrimFunc: inline what costs nothing to recompute, then read what is left.

    pad; conv; add(conv, b); relu(add); cast(relu)   →   pad; conv; cast(relu(conv + b))

The result does not depend on any plan, so the picker, the search and the writer all number the same
stages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from threading import Lock
from typing import Any

from msgspec import structs

from tvm_ext.errors import PlanError
from tvm_ext.tile.classify import has_reuse, overlaps, pads_window
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.merge_indices import merge_indices
from tvm_ext.tile.remember import remembered
from tvm_ext.tile.strassen import products_of_quarters
from tvm_ext.tir.affine import loads
from tvm_ext.tir.join_axes import join_axes, join_rows
from tvm_ext.tir.read import flops, read_schedule
from tvm_ext.tir.split_axes import split_blocked, split_written, with_simple_quotients
from tvm_ext.tir.symbolic import typical
from tvm_ext.tvm_api import (
    PrimFunc,
    SBlockRV,
    Schedule,
    ScheduleError,
    schedule_of,
    tirx,
    with_narrow_indices,
    with_own_names,
)


@dataclass(frozen=True)
class Prepared:
    """A schedule after inlining; `blocks[i]` is the block of `graph.nodes[i]`."""

    schedule: Schedule
    graph: TileGraph
    blocks: tuple[SBlockRV, ...]


_COPYING = Lock()
"""Held while a kept schedule is copied: TVM's calls release Python's own lock."""
SPREAD = 4
"""Times an element is computed from which keeping it costs less, if it costs something."""
COSTLY_FLOPS = 10
"""Operations of an element that cost more than reading it: those of a special function."""
MOST_LOADS, MOST_FLOPS = 64, 256
"""Loads and operations of a statement that nothing more is inlined into, each as often as it is
written: TVM's simplifier takes minutes for a power that is written twelve times."""
MOST_IN_INDEX = 4
"""Loads of a statement that becomes part of an index at most: TVM looks through every index for
the bounds of what is read, again with each statement that it inlines."""
WINDOW = 3
"""Elements of one producer in one statement from which recomputing them costs more than memory."""


def extent_of(schedule: Schedule, loop: Any) -> int:
    """Iterations of a loop. Raises PlanError where only the place in another loop says how many:
    views that TVM cannot see through make such bounds."""
    extent = schedule.get(loop).extent
    if not isinstance(extent, tirx.IntImm):
        raise PlanError("extent", f"plan: TVM bounds a loop by {extent}, not by a number")
    return int(extent)


def _is_window(consumer: TileNode, producer: TileNode) -> bool:
    """Whether the consumer combines several elements of what the producer writes."""
    reads = [access for access in consumer.reads if access.tensor == producer.write.tensor]
    return len(reads) >= WINDOW


def _is_spread(consumer: TileNode, producer: TileNode) -> bool:
    """Whether the consumer would compute each element of the producer many times, at some cost (a
    sigmoid for each channel, by which every pixel is multiplied)."""
    times = prod(consumer.extents) / max(1, prod(producer.extents))
    return times >= SPREAD and producer.flops_per_point >= COSTLY_FLOPS


def is_view(graph: TileGraph, index: int) -> bool:
    """Whether a node takes a slice or permutes outer axes: what lies side by side stays so."""
    node = graph.nodes[index]
    if node.flops_per_point or len(node.reads) != 1:
        return False
    read = node.reads[0]
    dims = [dim for dim in read.dims if dim is not None]
    steps = [step for dim in dims for step in dim.coeffs if step]
    used = [axis for axis in range(len(node.axes)) if read.uses(axis)]
    last = node.write.dims[-1] if node.write.dims else None
    shape = graph.tensors[read.tensor].shape
    return (
        last is not None
        and 0 < len(dims) == len(read.dims)
        and all(
            0 <= dim.offset <= extent - dim.span(node.extents)
            for dim, extent in zip(dims, shape, strict=True)
        )
        and last.coeffs == dims[-1].coeffs
        and all(dim.div == 1 and not dim.mod for dim in dims)
        and steps == [1] * len(used)
        and all(axis in used or node.extents[axis] == 1 for axis in range(len(node.axes)))
    )


def permutes(graph: TileGraph, index: int) -> bool:
    """Whether a view is of the whole tensor."""
    source = graph.tensors[graph.nodes[index].reads[0].tensor].shape
    return is_view(graph, index) and sorted(graph.nodes[index].extents) == sorted(source)


def _inlinable(graph: TileGraph, index: int) -> bool:
    """Whether recomputing the node at each use costs no more than keeping its result.

    Map into map is so: uses of one element end up in one statement, where they are one. Not so is a
    window: each element would be computed again by every neighbour, unless that is free (padding).
    Nor what a product ends with before a window's padding: it leaves the product's registers, and
    the padding is read in place.
    Into a reduction only if that is the sole consumer and reads each element once, or nothing is
    recomputed. Sums of products of quarters stay: what is behind them comes to them (`join_rows`).
    """
    node = graph.nodes[index]
    if node.kind != "map" or graph.tensors[node.write.tensor].role == "output":
        return False
    if any(found.last == index for found in products_of_quarters(graph)):
        return False
    consumers = [graph.nodes[i] for i in graph.consumers(index)]
    if not consumers or any(consumer.kind == "opaque" for consumer in consumers):
        return False
    if all(consumer.kind == "map" for consumer in consumers):
        if _is_padded(graph, index):
            return False
        again = any(_is_window(c, node) or _is_spread(c, node) for c in consumers)
        return node.flops_per_point == 0 or not again
    if is_view(graph, index):
        return len(consumers) == 1
    makers = [graph.nodes[source] for source in graph.sources(index)]
    if any(maker.kind == "reduce" and _is_window(node, maker) for maker in makers):
        return False
    return len(consumers) == 1 and not has_reuse(consumers[0]) and not overlaps(consumers[0])


def _is_padded(graph: TileGraph, index: int) -> bool:
    """Whether a node ends a product whose padded results a window reads."""
    consumers = graph.consumers(index)
    return len(consumers) == 1 and pads_window(graph, consumers[0]) and _ends_product(graph, index)


@remembered
def _ends_product(graph: TileGraph, index: int) -> bool:
    node = graph.nodes[index]
    if node.kind != "map":
        return has_reuse(node)
    return any(_ends_product(graph, source) for source in graph.sources(index))


class _Lengths:
    """Loads and operations of each node's statement, as nodes are inlined: what is read twice by
    what is read twice grows without end (the bins of a depth estimate: 343 nodes, of which one of
    four loads is read 32 times)."""

    def __init__(self, graph: TileGraph, bodies: list[Any]) -> None:
        self._graph = graph
        self._written = [getattr(body, "buffer", None) for body in bodies]
        self._loads = [
            Counter(load.source for load in loads(body.value)) if written is not None else Counter()
            for body, written in zip(bodies, self._written, strict=True)
        ]
        self._lengths = [
            (counts.total(), flops(body.value) if counts else 0.0)
            for counts, body in zip(self._loads, bodies, strict=True)
        ]
        self._indices = [
            {inner.source for load in loads(body.value) for inner in loads(load.indices)}
            if counts and any(None in access.dims for access in node.reads)
            else set()
            for counts, body, node in zip(self._loads, bodies, graph.nodes, strict=True)
        ]

    def have_room(self, index: int) -> bool:
        """Whether no statement, and no index, would be too long with the node inlined."""
        own, written = self._lengths[index][0], self._written[index]
        readers = self._graph.consumers(index)
        if own > MOST_IN_INDEX and any(written in self._indices[one] for one in readers):
            return False
        added = self._after(index).values()
        return all(count <= MOST_LOADS and work <= MOST_FLOPS for count, work in added)

    def add(self, index: int) -> None:
        """The node has been inlined."""
        for consumer, after in self._after(index).items():
            self._lengths[consumer] = after

    def _after(self, index: int) -> dict[int, tuple[int, float]]:
        """Loads and operations of each consumer's statement with the node in it."""
        own, work = self._lengths[index]
        after = {}
        for consumer in self._graph.consumers(index):
            times = self._loads[consumer][self._written[index]]
            count, known = self._lengths[consumer]
            after[consumer] = count + times * max(0, own - 1), known + times * work
        return after


def prepare(func: PrimFunc, signature: str = "") -> Prepared | None:
    """The prepared function, its schedule the caller's own; None if it has no blocks this room
    understands. Extents that are not known are taken for typical ones."""
    known = _prepared(func)
    if known is None:
        return None
    with _COPYING:
        schedule = known.schedule.copy()
    return Prepared(schedule, structs.replace(known.graph, signature=signature), known.blocks)


def _simplified(schedule: Schedule) -> tuple[Schedule, TileGraph | None]:
    """The schedule with the quotients of split axes worked out, which no primitive does, and its
    graph. Its trace is that of the whole schedule."""
    func = with_own_names(with_simple_quotients(schedule.mod["main"]))
    simple = schedule_of(func)
    for step in schedule.trace.insts:
        simple.trace.append(step, schedule.trace.decisions.get(step))
    return simple, read_schedule(simple, func)


@lru_cache(maxsize=256)
def _prepared(func: PrimFunc) -> Prepared | None:
    """Kept, since a function is prepared when it is read and for every plan that is written."""
    func = with_narrow_indices(typical(func))
    schedule = schedule_of(func)
    graph = read_schedule(schedule, func)
    if graph is None:
        return None
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if split_blocked(schedule, graph, blocks, "reduce"):
        graph = read_schedule(schedule, func)
        if graph is None:
            return None
    changed = False
    lengths = _Lengths(graph, [schedule.get(block).body for block in blocks])
    for index, block in enumerate(blocks):
        if _inlinable(graph, index) and lengths.have_room(index):
            try:
                schedule.compute_inline(block)
            except ScheduleError:
                continue
            changed = True
            lengths.add(index)
    if changed:
        graph = read_schedule(schedule, func)
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if graph is not None and join_rows(schedule, graph, blocks):
        graph = read_schedule(schedule, func)
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if graph is not None and split_written(schedule, graph, blocks):
        graph = read_schedule(schedule, func)
    if graph is not None and join_axes(schedule, graph, blocks):
        joined = read_schedule(schedule, func)
        graph = merge_indices(joined) if joined else None
    elif graph is not None and split_blocked(schedule, graph, blocks, "map"):
        schedule, graph = _simplified(schedule)
    if graph is None:
        return None
    return Prepared(schedule, graph, tuple(schedule.get_child_blocks(schedule.get_sblock("root"))))
