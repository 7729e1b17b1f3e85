"""Plans and times of groups that touch each byte once: element-wise ones, and chains of reductions
along rows."""

from __future__ import annotations

from math import prod

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import lanes_for
from tvm_ext.picker.anchor import widest_bytes
from tvm_ext.picker.issue import picked_loads
from tvm_ext.picker.perf import EVEN_TASKS, Candidate, Estimate
from tvm_ext.picker.traffic import USABLE, gathered_us, holding_gbps, overlapped_us
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import WINDOW_TAPS
from tvm_ext.tile.fuse import row_tiles, tiles_of_row
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.infer import propagate
from tvm_ext.tile.legal import row_count
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

Row = tuple[Tile, int, dict[int, Tile]]
"""Of `tile.fuse.row_tiles`."""
TASK_BYTES = 8192
"""What maps write in one task at least: one short row is over before its place is worked out (512
rows of 64 elements with three results 15.9 us, 8 tasks of 64 rows 10.3)."""


def flat_plan(graph: TileGraph, anchor: int, hw: HardwareModel) -> Candidate:
    """Contiguous boxes, shared out evenly; on one core if a launch would cost more."""
    node = graph.nodes[anchor]
    extent = prod(node.extents)
    lanes = lanes_for(extent, hw, widest_bytes(graph, node))
    parallel = _worth_parallel(graph, hw, lanes)
    plan = TilePlan(
        rule="flat",
        anchor=anchor,
        tiles=(
            LevelTile(
                "core", contiguous_tile(node, hw.cores, lanes) if parallel else Tile(node.extents)
            ),
        ),
        order=tuple(range(len(node.axes))),
        parallel=int(parallel),
        lanes=lanes,
    )
    return Candidate(plan, streaming(graph, hw, lanes, hw.cores if parallel else 1))


def contiguous_tile(node: TileNode, cores: int, lanes: int) -> Tile:
    """The largest contiguous box whose count the cores share evenly.

    Whole inner axes, one axis cut by a divisor, ones outside. A tensor with a single axis to cut is
    cut into one piece per core and a short tail.
    """
    extents = node.extents
    outer = 1
    for axis, extent in enumerate(extents):
        rest = extents[axis + 1 :]
        if prod(rest) == 1:
            size = max(1, extent // cores // lanes * lanes) if outer % cores else extent
            return Tile((*(1,) * axis, max(1, size), *rest))
        for parts in range(1, extent + 1):
            tasks = outer * parts
            if extent % parts == 0 and (tasks % cores == 0 or tasks >= EVEN_TASKS * cores):
                return Tile((*(1,) * axis, extent // parts, *rest))
        outer *= extent
    return Tile(extents)


def rows_plan(graph: TileGraph, hw: HardwareModel) -> Candidate | None:
    """The last stage one row at a time with all stages before it; None if rows share work."""
    choices = list(row_tiles(graph))
    if not choices:
        return None
    maps = all(node.kind == "map" for node in graph.nodes)
    tile, rows, tiles = _worth_a_task(graph, choices, hw) if maps else choices[0]
    anchor = len(graph.nodes) - 1
    node = graph.nodes[anchor]
    windows = max(own.points for own in tiles.values()) <= WINDOW_TAPS
    if len(graph.results) == 1 and 1 < rows == len(node.space) and windows:
        tile, rows = _windows_side_by_side(node, tile), rows - 1
        tiles = propagate(graph, anchor, tile)
    count = prod(node.axes[axis].extent for axis in node.space[:rows])
    dtype_bytes = widest_bytes(graph, node)
    inner = max(axis.extent for i in tiles for axis in graph.nodes[i].axes[-1:])
    lanes = lanes_for(inner, hw, dtype_bytes)
    parallel = rows > 0 and count > 1 and _worth_parallel(graph, hw, lanes)
    plan = TilePlan(
        rule="rows",
        anchor=anchor,
        tiles=(LevelTile("core", tile),),
        order=tuple(range(len(node.axes))),
        parallel=rows if parallel else 0,
        lanes=lanes,
        attach=tuple(Attach(i, "core") for i in range(anchor)),
    )
    return Candidate(plan, row_by_row(graph, hw, plan))


def _worth_a_task(graph: TileGraph, choices: list[Row], hw: HardwareModel) -> Row:
    """The shortest row of maps that is worth a task of its own, if cores share such rows evenly."""

    def suits(choice: Row) -> bool:
        _, rows, tiles = choice
        count = prod(graph.nodes[-1].extents[:rows])
        held = sum(tile.points * widest_bytes(graph, graph.nodes[i]) for i, tile in tiles.items())
        return held >= TASK_BYTES and (count % hw.cores == 0 or count >= EVEN_TASKS * hw.cores)

    return next(filter(suits, choices), choices[0])


def _windows_side_by_side(node: TileNode, tile: Tile) -> Tile:
    """A window at a time is scalar work. LLVM makes vectors of those along an axis (planes of 56 x
    56 pooled by 2 x 2: 42 → 6 us)."""
    last = node.space[-1]
    return Tile((*tile.extents[:last], node.extents[last], *tile.extents[last + 1 :]))


def streaming(graph: TileGraph, hw: HardwareModel, lanes: int, cores: int) -> Estimate:
    """Time of a group that touches each byte once: arithmetic against the level that holds it."""
    total = graph.io_bytes
    source = next((x for x in hw.levels[1:] if total <= x.size_bytes * cores), hw.levels[-1])
    memory_us = total / (holding_gbps(hw, total, cores) * 1e3)
    per_core = hw.peak_gflops.get("float32", 1.0) * lanes / max(1, hw.lanes(4)) / 2
    compute_us = graph.flops / (per_core * cores * 1e3)
    launch = hw.launch_us if cores > 1 else 0.0
    bound = "compute" if compute_us > memory_us else source.name
    return Estimate(max(compute_us, memory_us) + launch, compute_us, memory_us, bound)


def row_by_row(graph: TileGraph, hw: HardwareModel, plan: TilePlan) -> Estimate:
    """Time of a group whose stages are computed for one row after another: what lies between them
    is written and read in the caches that hold a row of it."""
    cores = hw.cores if plan.parallel else 1
    whole = streaming(graph, hw, plan.lanes, cores)
    picked = sum(
        picked_loads(graph, node, access, Tile(node.extents), plan.lanes)
        for node in graph.nodes
        for access in node.reads
    )
    picking_us = picked / hw.vector_loads_per_cycle / (cores * hw.clock_ghz * 1e3)
    compute_us = max(whole.compute_us, picking_us)
    row = plan.at("core")
    rows = row_count(graph, plan)
    tiles = tiles_of_row(graph, row, rows) or propagate(graph, plan.anchor, row)
    read = {access.tensor for node in graph.nodes for access in node.reads}
    written = {i: graph.nodes[i].write.tensor for i in tiles}
    inner = {i: graph.tensors[tensor] for i, tensor in written.items() if tensor in read}
    row_bytes = sum(tiles[i].points * tensor.dtype_bytes for i, tensor in inner.items())
    if not row_bytes and not picked:
        return whole
    between = 2 * sum(tensor.size_bytes for tensor in inner.values())
    rate = holding_gbps(hw, row_bytes / USABLE, 1, sharing=cores) * cores
    memory_us = whole.memory_us + between / (rate * 1e3)
    launch_us = hw.launch_us if cores > 1 else 0.0
    latency_us = max(whole.compute_us, overlapped_us(picking_us, memory_us)) + launch_us
    bound = "compute" if compute_us > memory_us else whole.bound
    return Estimate(latency_us, compute_us, memory_us, bound)


def _worth_parallel(graph: TileGraph, hw: HardwareModel, lanes: int) -> bool:
    """Whether all cores are faster than one, which has to fetch what the others wrote, and they its
    results (the cells of an LSTM between products: 1.1 us by themselves, in parallel 1.4; the model
    1.13 times as fast)."""
    alone, shared = (streaming(graph, hw, lanes, cores) for cores in (1, hw.cores))
    fetching_us = gathered_us(min(graph.io_bytes, hw.own_cache_bytes * hw.cores), hw)
    return shared.latency_us < alone.latency_us + fetching_us
