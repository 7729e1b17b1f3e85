"""How the threads of a GPU block share its tile: what the `block` rule writes and its model counts.

Threads side by side take vectors side by side, along memory and down the rows, and each takes the
next such strip as well (TVM's virtual threads):

    columns   0123 4567 89ab ...          a thread's eight columns are two strips of four, so
    thread    0    1    2    ... 0 1      that neighbours read and write one run of memory

Copies in shared memory that threads read down the columns have rows an odd number of vectors long:
rows that follow one another begin in different banks (CUDA programming guide, shared memory).
"""

from __future__ import annotations

from math import prod

from tvm_ext.errors import PlanError
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import producers, staged, vector_axis
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.infer import region
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.remember import remembered

VECTOR_BYTES = 16
"""The widest load of one thread."""
MAX_UNROLLED = 256
"""Multiply-adds of one thread without a branch: what keeps the loop's code in the caches."""
MAX_DEPTH = 4
"""Steps of the reduction whose operands a thread loads at once."""
STATIC_BYTES = 48 << 10
"""Shared memory that a block may declare; more takes a request at every launch."""
MAX_THREADS = 1024
"""Threads of a block (CUDA programming guide, compute capabilities)."""


def check_block(graph: TileGraph, node: TileNode, plan: TilePlan) -> None:
    """Raises PlanError unless each tile divides the one outside it and the block can start."""
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    if node.kind != "reduce" or not node.space:
        raise PlanError("space", f"plan for {node.name}: rule block needs a reduction over a space")
    for axis, c, s, r in zip(node.axes, core.extents, step.extents, register.extents, strict=True):
        outer, wanted = (c, r) if axis.kind == "space" else (axis.extent, 1)
        if outer % wanted or (axis.kind == "space" and s != c) or (axis.kind != "space" and r != 1):
            raise PlanError(
                "divide", f"plan for {node.name}: {axis.name} core {c}, shared {s}, register {r}"
            )
    if sorted(plan.order) != list(range(len(node.axes))):
        raise PlanError("order", f"plan for {node.name}: {plan.order} is no order of its axes")
    if thread_count(node, plan) > MAX_THREADS:
        raise PlanError("threads", f"plan for {node.name}: more than {MAX_THREADS} threads a block")
    if register.points > MAX_UNROLLED:
        raise PlanError("unroll", f"plan for {node.name}: the register tile {register.extents}")
    shared = copy_bytes(graph, plan) * (2 if plan.ahead else 1)
    if shared > STATIC_BYTES:
        raise PlanError("shared", f"plan for {node.name}: {shared} of {STATIC_BYTES} shared bytes")


def check_stream(graph: TileGraph, node: TileNode, plan: TilePlan) -> None:
    """Raises PlanError unless threads can share out a block without register tiles."""
    if plan.lanes > MAX_THREADS:
        raise PlanError("threads", f"plan for {node.name}: more than {MAX_THREADS} threads a block")
    if not 1 <= plan.unroll <= VECTOR_BYTES:
        raise PlanError("unroll", f"plan for {node.name}: {plan.unroll} elements at once")
    if plan.unroll > 1 and has_booleans(graph, node):
        raise PlanError("unroll", f"plan for {node.name}: vectors of booleans")


def free_producers(graph: TileGraph, anchor: int) -> list[int]:
    """Stages before the anchor that only move data to it (padding): fetching can do their work."""
    return [
        stage
        for stage in producers(graph, anchor)
        if graph.nodes[stage].flops_per_point == 0 and graph.consumers(stage) == (anchor,)
    ]


def vector_elements(dtype_bytes: int) -> int:
    """Elements of the widest load."""
    return max(1, VECTOR_BYTES // dtype_bytes)


def has_booleans(graph: TileGraph, node: TileNode) -> bool:
    """Whether a stage reads or writes booleans: in TVM's CUDA code vectors of them take two bytes
    an element, and one in memory, so that no vector of the stage is right."""
    used = {access.tensor for access in (*node.reads, node.write)}
    return any(graph.tensors[tensor].dtype == "bool" for tensor in used)


def strip(graph: TileGraph, node: TileNode, register: Tile, axis: int) -> int:
    """Neighbours along an axis that one thread takes before the next thread's begin: a vector along
    memory, one anywhere else."""
    if axis != vector_axis(node):
        return 1
    width = vector_elements(graph.tensors[node.write.tensor].dtype_bytes)
    extent = register.extents[axis]
    return width if extent % width == 0 else extent


def unrolled_steps(node: TileNode, plan: TilePlan) -> int:
    """Steps of the innermost reduction whose operands a thread loads at once."""
    last = [axis for axis in plan.order if axis in node.reduce][-1]
    return unrolled(plan.at("shared").extents[last], plan.at("register").points)


def unrolled(extent: int, points: int) -> int:
    """Steps of a reduction of that extent that are unrolled around a register tile of so many
    points."""
    most = max(1, min(extent, MAX_DEPTH, MAX_UNROLLED // points))
    return next(depth for depth in range(most, 0, -1) if extent % depth == 0)


@remembered
def is_skewed(graph: TileGraph, node: TileNode, tensor: int) -> bool:
    """Whether threads read a tensor's copy in shared memory down its columns."""
    vector = vector_axis(node)
    if vector is None or len(graph.tensors[tensor].shape) < 2:
        return False
    lasts = [access.dims[-1] for access in node.reads if access.tensor == tensor]
    return all(last is not None and not last.coeffs[vector] for last in lasts)


def skewed(length: int, dtype_bytes: int) -> int:
    """Elements from one row of a skewed copy to the next: an odd number of vectors."""
    unit = vector_elements(dtype_bytes)
    vectors = -(-length // unit)
    return unit * (vectors + 1 - vectors % 2)


def thread_count(node: TileNode, plan: TilePlan) -> int:
    """Threads of a block: register tiles in its core tile."""
    core, register = plan.at("core"), plan.at("register")
    return prod(core.extents[axis] // register.extents[axis] for axis in node.space)


def made_inside(graph: TileGraph, plan: TilePlan) -> set[int]:
    """Tensors whose producer (padding) writes to shared memory itself."""
    return {
        graph.nodes[entry.stage].write.tensor for entry in plan.attach if entry.level == "shared"
    }


def copied(graph: TileGraph, plan: TilePlan) -> tuple[int, ...]:
    """Tensors of which a block keeps the boxes of a step in shared memory."""
    node = graph.nodes[plan.anchor]
    core, register, made = plan.at("core"), plan.at("register"), made_inside(graph, plan)
    found = (
        access.tensor
        for access in node.reads
        if access.tensor in made or staged(node, access, core, register)
    )
    return tuple(dict.fromkeys(found))


def copy_box(graph: TileGraph, plan: TilePlan, tensor: int) -> tuple[int, ...]:
    """Extents of the box of a step, as TVM makes it: the gaps of a strided window included, and
    more than a cut through blocks (`w[o // 32, k, o % 32]`, `x[o // 64, c]` for groups) needs."""
    node, step = graph.nodes[plan.anchor], plan.at("shared")
    shape, made = graph.tensors[tensor].shape, tensor in made_inside(graph, plan)
    box = [1] * len(shape)
    for access in node.reads:
        if access.tensor != tensor:
            continue
        own = list(region(access, step, shape))
        for place, dim in enumerate(access.dims):
            if dim is not None and dim.mod and dim.div == 1 and own[place] < dim.mod:
                own[place] = 2 * dim.mod
            if dim is not None and dim.div > 1 and made:
                own[place] = min(own[place] + 1, shape[place])
        box = [max(pair) for pair in zip(box, own, strict=True)]
    return tuple(box)


def copy_bytes(graph: TileGraph, plan: TilePlan) -> int:
    """Shared memory for the copies of one step."""
    node, total = graph.nodes[plan.anchor], 0
    for tensor in copied(graph, plan):
        dtype_bytes, box = graph.tensors[tensor].dtype_bytes, list(copy_box(graph, plan, tensor))
        if tensor in made_inside(graph, plan):
            for place in clipped(node, plan, tensor):
                box[place] = graph.tensors[tensor].shape[place] + 1
        if box and is_skewed(graph, node, tensor):
            box[-1] = skewed(box[-1], dtype_bytes)
        total += prod(box) * dtype_bytes
    return total


def clipped(node: TileNode, plan: TilePlan, tensor: int) -> set[int]:
    """Dims of a tensor that is made in shared memory whose last tile is a part: TVM finds no bound
    for those of the other tiles and keeps room for the whole dim."""
    core = plan.at("core").extents
    parts = [axis for axis in node.space if node.axes[axis].extent % core[axis]]
    return {
        place
        for access in node.reads
        for place, dim in enumerate(access.dims)
        if access.tensor == tensor and dim is not None and any(map(dim.uses, parts))
    }


def stepped(node: TileNode, plan: TilePlan) -> tuple[int, ...]:
    """The reduce axes whose loop a block's steps are: the innermost that takes several, and those
    inside it. One loop over several would count by remainders: what nvcc 13.0 makes of those of the
    next step (`(k + 1) % 96 * 16` in 16 bits) reads from elsewhere."""
    counts = plan.at("shared").counts(node.axes)
    reduce = [axis for axis in plan.order if axis in node.reduce]
    several = [place for place, axis in enumerate(reduce) if counts[axis] > 1]
    return tuple(reduce[several[-1] if several else 0 :])


def step_counts(node: TileNode, plan: TilePlan) -> tuple[int, int]:
    """How often a block enters the loop over its steps, and the steps of that loop."""
    counts = plan.at("shared").counts(node.axes)
    inside = prod(counts[axis] for axis in stepped(node, plan))
    return prod(counts[axis] for axis in node.reduce) // inside, inside


def can_fetch_ahead(graph: TileGraph, plan: TilePlan) -> bool:
    """Whether a block has a next step, and room to keep two: one is then fetched while the other is
    computed with."""
    _, steps = step_counts(graph.nodes[plan.anchor], plan)
    return steps > 1 and 0 < 2 * copy_bytes(graph, plan) <= STATIC_BYTES


def fetch_width(graph: TileGraph, plan: TilePlan, tensor: int) -> int:
    """Elements one thread fetches at once: as many as 16 bytes hold if rows and tiles allow it."""
    data = graph.tensors[tensor]
    width = vector_elements(data.dtype_bytes) if data.dtype != "bool" else 1
    node, step = graph.nodes[plan.anchor], plan.at("shared")
    source = graph.producer(tensor)
    if tensor in made_inside(graph, plan) and source is not None:
        width = width if walks_rows(graph, graph.nodes[source], width) else 1
    for access in node.reads:
        last = access.dims[-1] if access.dims and access.tensor == tensor else None
        if access.tensor != tensor:
            continue
        if last is None or data.shape[-1] % width or last.span(step.extents) % width:
            return 1
        if last.offset % width or any(
            axis.extent % tile
            for axis, tile, uses in zip(node.axes, step.extents, last.coeffs, strict=True)
            if uses
        ):
            return 1
    return width


def walks_rows(graph: TileGraph, node: TileNode, width: int) -> bool:
    """Whether `width` neighbours along the last axis are, in every tensor, one aligned piece of
    memory or a single element."""
    last = len(node.axes) - 1
    if last < 0 or node.axes[last].extent % width or has_booleans(graph, node):
        return False
    for access in (*node.reads, node.write):
        shape = graph.tensors[access.tensor].shape
        if not access.uses(last):
            continue
        *outer, row = access.dims
        if row is None or any(dim is None or dim.coeffs[last] for dim in outer):
            return False
        unit = tuple(int(axis == last) for axis in range(last + 1))
        if row.coeffs != unit or row.div > 1 or row.mod or row.offset % width or shape[-1] % width:
            return False
    return True
