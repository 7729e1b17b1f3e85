"""Tails: the last register tile of an axis is moved back, and those that lie outside are left out.

    500 columns by 48: .., [432, 480), [480, 500)  →  .., [432, 480), [452, 500)

What lies in two tiles is computed twice, to the same values, so the order does not matter. Part of
a vector would be computed lane by lane (500 x 500 x 500: 84 GFLOP/s where whole vectors reach 190),
a loop for the tail is compiled as long as the main one, and a core tile that is shorter than others
would have to wait for them (55 rows on two cores: 27, 27 and 1 in place of 28 and 27). A loop of
its own pays only for a tail of whole vectors that would be much longer moved back.
"""

from __future__ import annotations

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chunk import chunk_of
from tvm_ext.tile.classify import (
    is_affine,
    is_square,
    shares_index,
    transposed_axis,
    vector_axis,
)
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.remember import remembered

WORTH_A_LOOP = 1 / 32
"""Part of an axis that a tail moved back computes twice, from which it gets a loop of its own."""


@remembered
def shiftable(graph: TileGraph, node: TileNode, axis: int) -> bool:
    """Whether tiles of a space axis may start anywhere: no operand is packed in blocks along it, no
    zeros lie at known places of it, it moves an index of the output alone, who reads the output in
    a tile reads all of it, and nothing is computed in place."""
    extent = node.axes[axis].extent
    blocks = any(
        dim is not None and dim.uses(axis) and (dim.mod or dim.div > 1)
        for access in (*node.reads, node.write)
        for dim in access.dims
    )
    hollow = any(hole.space == axis for hole in node.holes)
    cropped = any(
        written is not None
        and written.uses(axis)
        and (dim is None or dim.div > 1 or dim.mod or dim.span(other.extents) != extent)
        for other in graph.nodes
        for read in other.reads
        if read.tensor == node.write.tensor
        for written, dim in zip(node.write.dims, read.dims, strict=True)
    )
    free = not (blocks or hollow or cropped or _may_be_in_place(graph, node))
    return free and is_affine(node) and not shares_index(node, axis)


def _may_be_in_place(graph: TileGraph, node: TileNode) -> bool:
    """Whether a stage between others reads another's elements each where it writes its own: TVM may
    give both the same memory, and what is computed twice is computed of what was written first."""
    between = [
        access
        for access in (node.write, *node.reads)
        if graph.tensors[access.tensor].role == "inner"
    ]
    written = node.write in between and node.kind == "map"
    return written and any(access.dims == node.write.dims for access in between[1:])


def is_parted(
    node: TileNode, axis: int, core: Tile, register: Tile, lanes: int, *, once: bool = False
) -> bool:
    """Whether the tail of an axis that no core tile cuts is worth a loop of its own: 13 rows by 7
    are 7 and 6, not 14. Where everything may be computed only `once`, all of whole vectors are."""
    extent, size = node.axes[axis].extent, register.extents[axis]
    tail = extent % size
    square = is_square(node, register, lanes) and axis == transposed_axis(node)
    vectors = square or axis == vector_axis(node)
    if not tail or core.extents[axis] < extent or (vectors and tail % lanes):
        return False
    return once or size - tail > extent * WORTH_A_LOOP


def shifts(
    graph: TileGraph, node: TileNode, core: Tile, register: Tile, lanes: int, *, once: bool = False
) -> tuple[int, ...] | None:
    """The axes whose last register tile is moved back, none if register tiles divide all others
    than those with loops for tails (`is_parted`); None if one leaves a tail that cannot be moved.
    """
    moved = tuple(
        axis
        for axis in node.space
        if node.axes[axis].extent % register.extents[axis]
        and not is_parted(node, axis, core, register, lanes, once=once)
    )
    whole = all(
        c == axis.extent or c % r == 0
        for axis, c, r in zip(node.axes, core.extents, register.extents, strict=True)
    )
    return moved if whole and all(shiftable(graph, node, axis) for axis in moved) else None


def plan_shifts(graph: TileGraph, plan: TilePlan) -> tuple[int, ...] | None:
    """`shifts` of a plan's anchor; None for rules whose tails are others'.

    What is copied for a core tile must hold all its register tiles: one whose core tile is shorter
    is not moved, it would read what another core may not have copied yet.
    """
    if plan.rule != "tile":
        return None
    node, core, register = graph.nodes[plan.anchor], plan.at("core"), plan.at("register")
    once = chunk_of(node, plan) is not None  # or it would be summed twice
    moved = shifts(graph, node, core, register, plan.lanes, once=once)
    inside = [entry.stage for entry in plan.attach if entry.level == "core"]
    written = {graph.nodes[stage].write.tensor for stage in inside}
    copied = [
        *(node.reads[read] for read in plan.staged),
        *(access for access in (*node.reads, node.write) if access.tensor in written),
        *(node.write for stage in inside if stage > plan.anchor),
    ]
    left = any(
        0 < node.axes[axis].extent % core.extents[axis] < register.extents[axis]
        and any(dim is None or dim.uses(axis) for access in copied for dim in access.dims)
        for axis in moved or ()
    )
    return None if left else moved
