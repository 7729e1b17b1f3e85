"""Preparing a fused PrimFunc: inline what costs nothing to recompute, then read what is left.

    pad; conv; add(conv, b); relu(add); cast(relu)   →   pad; conv; cast(relu(conv + b))

The result does not depend on any plan, so the picker, the search and the writer all number the same
stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.tile.classify import has_reuse, overlaps
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tir.read import read_schedule
from tvm_ext.tvm_api import (
    PrimFunc,
    SBlockRV,
    Schedule,
    ScheduleError,
    schedule_of,
    with_narrow_indices,
)


@dataclass(frozen=True)
class Prepared:
    """A schedule after inlining; `blocks[i]` is the block of `graph.nodes[i]`."""

    schedule: Schedule
    graph: TileGraph
    blocks: tuple[SBlockRV, ...]


WINDOW = 3
"""Elements of one producer in one statement from which recomputing them costs more than memory."""


def _is_window(consumer: TileNode, producer: TileNode) -> bool:
    """Whether the consumer combines several elements of what the producer writes."""
    reads = [access for access in consumer.reads if access.tensor == producer.write.tensor]
    return len(reads) >= WINDOW


def _inlinable(graph: TileGraph, index: int) -> bool:
    """Whether recomputing the node at each use costs no more than keeping its result.

    Map into map is so: uses of one element end up in one statement, where they are one. Not so is a
    window: each element would be computed again by every neighbour, unless that is free (padding).
    Into a reduction only if that is the sole consumer and reads each element once.
    """
    node = graph.nodes[index]
    if node.kind != "map" or graph.tensors[node.write.tensor].role == "output":
        return False
    consumers = [graph.nodes[i] for i in graph.consumers(index)]
    if not consumers or any(consumer.kind == "opaque" for consumer in consumers):
        return False
    if all(consumer.kind == "map" for consumer in consumers):
        return node.flops_per_point == 0 or not any(_is_window(c, node) for c in consumers)
    return len(consumers) == 1 and not has_reuse(consumers[0]) and not overlaps(consumers[0])


def prepare(func: PrimFunc, signature: str = "") -> Prepared | None:
    """The prepared function; None if it has no blocks this room understands."""
    func = with_narrow_indices(func)
    schedule = schedule_of(func)
    graph = read_schedule(schedule, func, signature)
    if graph is None:
        return None
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    changed = False
    for index, block in enumerate(blocks):
        if _inlinable(graph, index):
            try:
                schedule.compute_inline(block)
                changed = True
            except ScheduleError:
                continue
    if changed:
        graph = read_schedule(schedule, func, signature)
        if graph is None:
            return None
    return Prepared(schedule, graph, tuple(schedule.get_child_blocks(schedule.get_sblock("root"))))
