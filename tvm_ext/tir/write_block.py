"""The rule `block` for GPUs: a reduction with reuse, tiled for thread blocks and threads.

    for i, j, k: C[i,j] += A[i,k] * B[k,j]
        →
    blockIdx.x: core tiles; threadIdx.x: register tiles, in strips (`tile.block`); acc = 0
        for k/S: A, B of the `shared` tile → shared memory, all threads together, 16 bytes each,
                 those of the next step while this one is computed with
            for S: unrolled register tile: acc += A * B
        epilogue: C = f(acc)

Copies ahead are asynchronous where the machine can (cp.async, from sm_80 on; `tvm_lowering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.block import (
    copied,
    fetch_width,
    has_booleans,
    is_skewed,
    made_inside,
    stepped,
    strip,
    thread_count,
    unrolled_steps,
    vector_elements,
)
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.graph import Access, TileNode
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared, extent_of
from tvm_ext.tir.write_gpu import fuse, spread
from tvm_ext.tvm_api import SBlockRV, Schedule, tirx


def write_block(prepared: Prepared, plan: TilePlan) -> None:
    """Tiles a reduction with reuse: block, shared step, register tile, epilogue in registers."""
    schedule, graph = prepared.schedule, prepared.graph
    node, block = graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    copies = _copies(prepared, plan)
    epilogue = next((entry.stage for entry in plan.attach if entry.level == "register"), None)
    if epilogue is None:
        after = schedule.cache_write(block, 0, "local")
    else:
        schedule.set_scope(block, 0, "local")
        after = prepared.blocks[epilogue]
    loops = schedule.get_loops(block)
    if len(loops) != len(node.axes):
        raise PlanError("structure", f"plan for {node.name}: {len(loops)} loops, {len(node.axes)}")
    grid, strips, threads, sweep, inner = {}, {}, {}, {}, {}
    for axis, loop in enumerate(loops):
        c, r = core.extents[axis], register.extents[axis]
        if node.axes[axis].kind == "reduce":
            sweep[axis], inner[axis] = schedule.split(loop, [None, step.extents[axis]])
        else:
            w = strip(graph, node, register, axis)
            if w < r:
                split = schedule.split(loop, [None, r // w, c // r, w])
                grid[axis], strips[axis], threads[axis], inner[axis] = split
            else:
                grid[axis], threads[axis], inner[axis] = schedule.split(loop, [None, c // r, r])
    space = [axis for axis in plan.order if axis in grid]
    reduce = [axis for axis in plan.order if axis in sweep]
    schedule.reorder(
        *(grid[axis] for axis in space),
        *(strips[axis] for axis in space if axis in strips),
        *(threads[axis] for axis in space),
        *(sweep[axis] for axis in reduce),
        *(inner[axis] for axis in (*reduce, *space)),
    )
    schedule.bind(fuse(schedule, [grid[axis] for axis in space]), "blockIdx.x")
    for axis, loop in strips.items():
        schedule.bind(loop, "vthread.x" if axis == vector_axis(node) else "vthread.y")
    thread = fuse(schedule, [threads[axis] for axis in space])
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(after, thread, preserve_unit_loops=True)
    within = stepped(node, plan)
    outside = [sweep[axis] for axis in reduce if axis not in within]
    steps = fuse(schedule, [sweep[axis] for axis in within])
    for copy, width, order in copies:
        schedule.compute_at(copy, steps, preserve_unit_loops=True)
        rank = len(schedule.get(copy).iter_vars)
        around = schedule.get_loops(copy)[-rank:]
        if order:
            around = [around[place] for place in order]
            schedule.reorder(*around)
        spread(schedule, around, thread_count(node, plan), width)
    for axis in space:
        schedule.unroll(inner[axis])
    ends = graph.nodes[plan.anchor if epilogue is None else epilogue]
    length = 1 if has_booleans(graph, ends) else graph.tensors[ends.write.tensor].shape[-1]
    _store(schedule, schedule.get_loops(after)[len(strips) + 2 :], length)
    if plan.ahead:
        _fetch_ahead(schedule, steps, len(copies))
    depth = unrolled_steps(node, plan)
    if depth > 1:
        schedule.unroll(schedule.split(inner[reduce[-1]], [None, depth])[1])
    schedule.decompose_reduction(block, [*outside, steps][0])


def _copies(prepared: Prepared, plan: TilePlan) -> list[tuple[SBlockRV, int, list[int]]]:
    """Blocks that bring the anchor's reused inputs to shared memory, with their vector widths and
    the order of their loops, where that is to be another.

    A producer attached there (padding) writes to shared memory itself. A tensor of which the graph
    has fewer indices (`x[i // 7, i % 7]` as `x[i]`) is copied as the graph has it: TVM would take
    whole rows for what goes from the end of one to the start of the next.
    """
    schedule, graph = prepared.schedule, prepared.graph
    node, block = graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    regions = schedule.get(block).reads
    names = [str(region.source.name) for region in regions]
    made, found = made_inside(graph, plan), []
    for tensor in copied(graph, plan):
        data, source = graph.tensors[tensor], graph.producer(tensor)
        width, loops = fetch_width(graph, plan, tensor), list[int]()
        accesses = {access for access in node.reads if access.tensor == tensor}
        if tensor in made and source is not None:
            copy = prepared.blocks[source]
            schedule.set_scope(copy, 0, "shared")
        else:
            place = names.index(data.name)
            merged = len(regions[place].source.shape) != len(data.shape)
            if merged and len(accesses) == 1:
                (access,) = accesses
                at = [tirx.Var(axis.name, "int32") for axis in node.axes]
                order = _in_memory(node, access)
                taken = tirx.IndexMap(at, [at[axis] for axis in order], None)
                copy = schedule.reindex_cache_read(block, place, "shared", taken)
                loops = [sorted(order).index(axis) for axis in order]
                last = access.dims[-1]
                alone = last is not None and sum(map(last.uses, order)) == 1
                width = width if alone else 1
            else:
                copy = schedule.cache_read(block, place, "shared")
        if is_skewed(graph, node, tensor):
            unit = vector_elements(data.dtype_bytes)
            schedule.storage_align(copy, 0, -2, 2 * unit, unit)
        found.append((copy, width, loops))
    return found


def _in_memory(node: TileNode, access: Access) -> list[int]:
    """The axes that index a tensor in the order of its indices: a vector of the last one is one
    piece of memory."""
    places = {
        axis: next(p for p, dim in enumerate(access.dims) if dim is None or dim.uses(axis))
        for axis in range(len(node.axes))
        if access.uses(axis)
    }
    return sorted(places, key=lambda axis: (places[axis], axis))


def _fetch_ahead(schedule: Schedule, steps: Any, copies: int) -> None:
    """Copies of the next step are under way while this one is computed with, in two buffers."""
    schedule.annotate(steps, "software_pipeline_stage", [*[0] * copies, 1])
    schedule.annotate(steps, "software_pipeline_order", [*range(copies + 1)])
    schedule.annotate(steps, "software_pipeline_async_stages", [0])


def _store(schedule: Schedule, loops: Sequence[Any], length: int) -> None:
    """What a thread's tile ends with: its strips, each a vector where rows of that length end with
    whole ones."""
    *outer, row = loops
    for loop in outer:
        schedule.unroll(loop)
    width = extent_of(schedule, row)
    if width in (2, 4) and length % width == 0:
        schedule.vectorize(row)
    else:
        schedule.unroll(row)
