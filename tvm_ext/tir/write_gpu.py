"""The rules for GPUs: `block`, `block_rows`, `block_flat` and their fallback `block_loose`.

A thread block takes what a core takes on a CPU, and its threads what vector lanes take:

    for i, j, k: C[i,j] += A[i,k] * B[k,j]
        →
    blockIdx.x: core tiles; threadIdx.x: register tiles; acc = 0
        for k/S: A, B of the `shared` tile → shared memory, all threads together, 16 bytes each
            for S: unrolled register tile: acc += A * B
        epilogue: C = f(acc)

Every stage ends inside some grid: what a plan does not name gets a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import staged
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import contiguous_cut
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir.prepare import Prepared
from tvm_ext.tvm_api import SBlockRV, Schedule, ScheduleError

FETCH_BYTES = 16
"""The widest load of one thread."""
MAX_THREADS = 1024
MAX_UNROLLED = 256
"""Statements of one register tile."""


def write_block(prepared: Prepared, plan: TilePlan) -> None:
    """Tiles a reduction with reuse: block, shared step, register tile, epilogue in registers."""
    schedule, graph = prepared.schedule, prepared.graph
    node, block = graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    check_block(node, core, step, register, plan)
    fetched = {entry.stage for entry in plan.attach if entry.level == "shared"}
    copies = _stage_reads(prepared, plan, fetched)
    epilogue = next((entry.stage for entry in plan.attach if entry.level == "register"), None)
    if epilogue is None:
        after = schedule.cache_write(block, 0, "local")
    else:
        schedule.set_scope(block, 0, "local")
        after = prepared.blocks[epilogue]
    loops = schedule.get_loops(block)
    if len(loops) != len(node.axes):
        raise PlanError("structure", f"plan for {node.name}: {len(loops)} loops, {len(node.axes)}")
    grid, threads, sweep, inner = {}, {}, {}, {}
    for axis, loop in enumerate(loops):
        c, r = core.extents[axis], register.extents[axis]
        if node.axes[axis].kind == "reduce":
            sweep[axis], inner[axis] = schedule.split(loop, [None, step.extents[axis]])
        else:
            grid[axis], threads[axis], inner[axis] = schedule.split(loop, [None, c // r, r])
    space = [axis for axis in plan.order if axis in grid]
    reduce = [axis for axis in plan.order if axis in sweep]
    schedule.reorder(
        *(grid[axis] for axis in space),
        *(threads[axis] for axis in space),
        *(sweep[axis] for axis in reduce),
        *(inner[axis] for axis in (*reduce, *space)),
    )
    schedule.bind(_fuse(schedule, [grid[axis] for axis in space]), "blockIdx.x")
    thread = _fuse(schedule, [threads[axis] for axis in space])
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(after, thread, preserve_unit_loops=True)
    count = thread_count(node, core, register)
    for copy, width in copies:
        schedule.compute_at(copy, sweep[reduce[-1]], preserve_unit_loops=True)
        rank = len(schedule.get(copy).iter_vars)
        _spread(schedule, schedule.get_loops(copy)[-rank:], count, width)
    for loop in (*(inner[axis] for axis in space), *schedule.get_loops(after)[2:]):
        schedule.unroll(loop)
    schedule.decompose_reduction(block, sweep[reduce[0]])


def check_block(node: TileNode, core: Tile, step: Tile, register: Tile, plan: TilePlan) -> None:
    """Raises PlanError unless each tile divides the one outside it and the block can start."""
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
    if thread_count(node, core, register) > MAX_THREADS:
        raise PlanError("threads", f"plan for {node.name}: more than {MAX_THREADS} threads a block")
    if register.points > MAX_UNROLLED:
        raise PlanError("unroll", f"plan for {node.name}: the register tile {register.extents}")


def thread_count(node: TileNode, core: Tile, register: Tile) -> int:
    """Threads of a block: register tiles in its core tile."""
    return prod(core.extents[axis] // register.extents[axis] for axis in node.space)


def _stage_reads(
    prepared: Prepared, plan: TilePlan, fetched: set[int]
) -> list[tuple[SBlockRV, int]]:
    """Blocks that bring the anchor's reused inputs to shared memory, with their vector widths.

    A producer attached there (padding) writes to shared memory itself.
    """
    schedule, graph = prepared.schedule, prepared.graph
    node, block = graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    names = [str(region.source.name) for region in schedule.get(block).reads]
    found = []
    for tensor in dict.fromkeys(access.tensor for access in node.reads):
        accesses = [access for access in node.reads if access.tensor == tensor]
        source = graph.producer(tensor)
        if source in fetched:
            schedule.set_scope(prepared.blocks[source], 0, "shared")
            found.append((prepared.blocks[source], 1))
        elif any(staged(node, access, core, register) for access in accesses):
            place = names.index(graph.tensors[tensor].name)
            width = fetch_width(graph, node, tensor, step)
            found.append((schedule.cache_read(block, place, "shared"), width))
    return found


def fetch_width(graph: TileGraph, node: TileNode, tensor: int, step: Tile) -> int:
    """Elements one thread fetches at once: as many as 16 bytes hold if rows and tiles allow it."""
    data = graph.tensors[tensor]
    width = max(1, FETCH_BYTES // data.dtype_bytes)
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


def write_block_rows(prepared: Prepared, plan: TilePlan) -> None:
    """One row per block, every stage of it by all threads; what lies between stages is shared."""
    schedule, graph = prepared.schedule, prepared.graph
    node, block = graph.nodes[plan.anchor], prepared.blocks[plan.anchor]
    core = plan.at("core").extents
    rows = next((i for i, axis in enumerate(node.space) if core[axis] > 1), len(node.space))
    if any(core[axis] != node.axes[axis].extent for axis in range(rows, len(node.axes))):
        raise PlanError("rows", f"plan for {node.name}: core tile {core} is not whole rows")
    _check_threads(node, plan)
    loops = schedule.get_loops(block)
    if rows and loops:
        row = _fuse(schedule, loops[:rows])
    else:
        row = schedule.add_unit_loop(loops[0] if loops else block)
    schedule.bind(row, "blockIdx.x")
    _bind_row(prepared, plan.anchor, plan.lanes)
    for stage in sorted((e.stage for e in plan.attach if e.level == "core"), reverse=True):
        schedule.set_scope(prepared.blocks[stage], 0, "shared")
        schedule.compute_at(prepared.blocks[stage], row, preserve_unit_loops=True)
        _bind_row(prepared, stage, plan.lanes)


def _bind_row(prepared: Prepared, stage: int, threads: int) -> None:
    """Spreads the loops of a stage inside its row over the threads: its space, or, where that is
    one element, its reduction, whose partial results the threads then combine."""
    schedule, block = prepared.schedule, prepared.blocks[stage]
    own = schedule.get_loops(block)[1:]
    if not own:
        own = [schedule.add_unit_loop(block)]
    reduces = len(prepared.graph.nodes[stage].reduce)
    space = own[: len(own) - reduces]
    wide = prod(int(schedule.get(loop).extent) for loop in space) > 1
    chosen = space if wide or not reduces else own[len(own) - reduces :]
    _spread(schedule, chosen, threads, 1)


def write_block_flat(prepared: Prepared, plan: TilePlan) -> None:
    """Contiguous boxes per block; neighbours to neighbouring threads, `unroll` elements each."""
    schedule, node = prepared.schedule, prepared.graph.nodes[plan.anchor]
    extents = plan.at("core").extents
    _check_threads(node, plan)
    cut = contiguous_cut(node, plan.at("core"))
    if node.kind != "map":
        raise PlanError("flat", f"plan for {node.name}: it is no map stage")
    loops = schedule.get_loops(prepared.blocks[plan.anchor])
    if not loops:
        return _bind_scalar(schedule, prepared.blocks[plan.anchor])
    outer, inner = schedule.split(loops[cut], [None, extents[cut]])
    schedule.bind(_fuse(schedule, [*loops[:cut], outer]), "blockIdx.x")
    _spread(schedule, [inner, *loops[cut + 1 :]], plan.lanes, plan.unroll)


def write_block_loose(prepared: Prepared, index: int, plan: TilePlan) -> None:
    """A kernel of its own for a stage no rule tiles: one thread per element of its output."""
    schedule, block = prepared.schedule, prepared.blocks[index]
    node = prepared.graph.nodes[index]
    try:
        loops = schedule.get_loops(block)
    except ScheduleError:
        return
    leading = next((i for i, a in enumerate(node.axes) if a.kind == "reduce"), len(node.axes))
    if len(loops) != len(node.axes) or node.kind == "opaque":
        raise PlanError("loose", f"plan for {node.name}: a stage that is not understood")
    if not leading:
        return _bind_scalar(schedule, block)
    outer, thread = schedule.split(_fuse(schedule, loops[:leading]), [None, plan.lanes])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def _check_threads(node: TileNode, plan: TilePlan) -> None:
    if plan.lanes > MAX_THREADS:
        raise PlanError("threads", f"plan for {node.name}: more than {MAX_THREADS} threads a block")
    if not 1 <= plan.unroll <= FETCH_BYTES:
        raise PlanError("unroll", f"plan for {node.name}: {plan.unroll} elements at once")


def _bind_scalar(schedule: Schedule, block: SBlockRV) -> None:
    """One thread of one block for a stage without space axes."""
    loops = schedule.get_loops(block)
    thread = schedule.add_unit_loop(loops[0] if loops else block)
    outer = schedule.add_unit_loop(thread)
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def _fuse(schedule: Schedule, loops: Sequence[Any]) -> Any:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _spread(schedule: Schedule, loops: Sequence[Any], threads: int, width: int) -> None:
    """Shares loops out over the threads of the block, each taking `width` neighbours at once.

    The vector is split off first, so that no condition on the thread depends on its lane.
    """
    body = _fuse(schedule, loops)
    lane = None
    if width > 1:
        body, lane = schedule.split(body, [None, width])
    _, thread = schedule.split(body, [None, threads])
    schedule.bind(thread, "threadIdx.x")
    if lane is not None:
        schedule.vectorize(lane)
