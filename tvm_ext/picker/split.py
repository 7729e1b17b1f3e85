"""Reductions whose iterations are shared out instead of their results: those to fewer results than
there are cores, and those over rows that the kernel before has shared out so."""

from __future__ import annotations

from math import prod

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import lanes_for
from tvm_ext.picker.anchor import widest_bytes
from tvm_ext.picker.perf import Candidate, Estimate
from tvm_ext.picker.stream import streaming
from tvm_ext.picker.traffic import holding_gbps
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import split_axis
from tvm_ext.tile.fuse import sums_columns
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

PARTIAL_VECTORS = 4
"""Vectors of partial results in one core; the innermost axis must hold whole ones."""
MAX_PARTS = 8
"""Parts a core may take, where the axis does not split into one for each."""


def split_plan(graph: TileGraph, anchor: int, hw: HardwareModel) -> Candidate | None:
    """The anchor's outermost reduction axis in equal parts, one or a few to a core; None if it has
    results enough to share out and goes along memory, reads other stages, or does not split evenly.

    Sums of columns would be shared out evenly, but what the kernel before has written by rows, and
    a core has at hand, then goes from core to core (128 x 128 x 32 in a model: 80 us, so 20).
    """
    node = graph.nodes[anchor]
    results = prod(node.axes[axis].extent for axis in node.space)
    axis = split_axis(node)
    across = sums_columns(graph, node)
    others = [other for place, other in enumerate(graph.nodes) if place != anchor]
    if (
        axis is None
        or (results >= hw.cores and not across)
        or any(graph.producer(access.tensor) is not None for access in node.reads)
        or any(prod(other.extents) > results for other in others)
    ):
        return None
    last = node.space[-1] if across else node.reduce[-1]
    lanes = lanes_for(node.axes[last].extent, hw, widest_bytes(graph, node))
    unit = PARTIAL_VECTORS * lanes if axis == last else 1
    extent = node.axes[axis].extent
    counts = [n * hw.cores for n in range(1, MAX_PARTS + 1) if extent % (n * hw.cores * unit) == 0]
    if not counts:
        return None
    core = list(node.extents)
    core[axis] = extent // counts[0]
    plan = TilePlan(
        rule="split",
        anchor=anchor,
        tiles=(LevelTile("core", Tile(tuple(core))),),
        order=tuple(range(len(node.axes))),
        parallel=1,
        lanes=lanes,
        attach=tuple(Attach(place, "core") for place in range(len(graph.nodes)) if place != anchor),
    )
    return Candidate(plan, split_estimate(graph, plan, hw))


def split_estimate(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Estimate:
    """Predicted time of a split plan: all is read once, then one core adds partial results up."""
    node, core = graph.nodes[plan.anchor], plan.at("core")
    whole = streaming(graph, hw, plan.lanes, hw.cores if plan.parallel else 1)
    parts = prod(node.axes[axis].extent // core.extents[axis] for axis in node.reduce)
    partial = parts * graph.tensors[node.write.tensor].size_bytes
    after_us = partial / (holding_gbps(hw, partial, 1) * 1e3)
    return msgspec.structs.replace(whole, latency_us=whole.latency_us + after_us)
