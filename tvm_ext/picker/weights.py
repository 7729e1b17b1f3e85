"""How weights come to the cores: from memory or the last cache, asked for ahead or not.

A term of the performance model (`perf`) that knows more of packed operands than the traffic of the
loop nest does.
"""

from __future__ import annotations

from math import ceil, prod

from tvm_ext.hardware.model import HardwareModel, MemoryLevel
from tvm_ext.picker.traffic import COLD, USABLE, far_loss, overlapped_us
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import packed_reads, sharing_axes, takes_whole_panels
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.remember import remembered

STREAMED = 0.8
"""Part of DRAM's bandwidth that is left for weights beside the work on them (16.8 MB in 333 us and
37.7 MB in 700 us of a 62 GB/s memory)."""
DISPLACED = 0.5
"""The same of the last cache, which takes a line back for each that it gives."""
UNKEPT_SWEEPS = 2
"""Times that weights are read from memory before a cache behind a mesh keeps them: it takes what
the cores' own caches drop, and little of what they have read once (8 MB out of memory: 16.5 GB/s,
again 18.9, then 29.5). 16.5 MB for 64 rows at once 1590 us, in two times 32 2130 to 2330, in four
times 16 2970."""
PREFETCH_BYTES = 1 << 17
"""Smaller weights arrive sooner than asking for them pays."""
PREFETCH_ROWS = 4
"""Multiplications by each vector of weights that hide a request for the next one."""


@remembered
def packed_bytes(graph: TileGraph, node: TileNode) -> int:
    """Bytes of the packed operands."""
    tensors = {access.tensor for access in packed_reads(node)}
    return sum(graph.tensors[tensor].size_bytes for tensor in tensors)


def wants_prefetch(graph: TileGraph, node: TileNode, core: Tile, register: Tile) -> bool:
    """Whether asking for panels ahead pays: there are several, and enough rows go over each, in
    several passes or in the only one there is."""
    sharing = sharing_axes(node)
    rows = prod(core.extents[axis] for axis in sharing)
    passes = prod(-(-core.extents[axis] // register.extents[axis]) for axis in sharing)
    only = all(core.extents[axis] == node.axes[axis].extent for axis in sharing)
    enough = packed_bytes(graph, node) >= PREFETCH_BYTES and rows >= PREFETCH_ROWS
    return enough and has_next_panel(node, register) and (passes > 1 or only)


def has_next_panel(node: TileNode, register: Tile) -> bool:
    """Whether register tiles go over several panels, and take whole ones: for a part of one nothing
    is asked ahead (1.6 MB in halves of panels 234 us from the cache, 397 out of it, and in whole
    ones 233 and 262)."""
    if not takes_whole_panels(node, register):
        return False
    sharing = sharing_axes(node)
    return any(
        node.axes[axis].extent > register.extents[axis]
        for axis in node.space
        if axis not in sharing
    )


def with_cold_weights(
    graph: TileGraph, node: TileNode, plan: TilePlan, hw: HardwareModel, latency_us: float
) -> float:
    """The time with packed operands in DRAM, as they are when a model's layers take turns. Where
    the last cache has room for those of all layers it has lost part of large ones (7 MB of
    MobileViT), and none of those that a core's own cache could hold (0.6 MB of DenseNet-121).

    Cores that share the panels out read at the bandwidth of all, cores that all need the same ones
    at that of one (9.4 MB beside 1350 us of work, far away: shared out 1400 us, read by both of two
    cores 1540, with neighbours at work 1580 and 2020). Panels asked for ahead arrive during the
    work, others hold it up.
    """
    size_bytes = packed_bytes(graph, node)
    core = plan.at("core")
    counts = core.counts(node.axes)
    sharing = sharing_axes(node)
    first = _first_cut(node, plan)
    apart = first not in sharing and counts[first] % hw.cores == 0
    together = plan.parallel and (apart or all(counts[axis] == 1 for axis in sharing))

    def reading_us(source: MemoryLevel, share: float) -> float:
        rate = (source.total_gbps or source.gbps * hw.cores) if together else source.gbps
        return size_bytes / (rate * share * 1e3)

    cold_us = reading_us(hw.levels[-1], STREAMED)
    if hw.weights_fit:
        lost = COLD if size_bytes > hw.own_cache_bytes else 0.0
        cold_us = lost * cold_us + (1 - lost) * reading_us(hw.levels[-2], DISPLACED)
    if plan.prefetch and has_next_panel(node, plan.at("register")):
        swept_bytes = size_bytes / (hw.cores if together else 1)
        return arriving_us(latency_us, cold_us, sweeps(node, plan, hw), hw, swept_bytes)
    return latency_us + cold_us


def arriving_us(
    latency_us: float, reading_us: float, times: int, hw: HardwareModel, swept_bytes: float = 0.0
) -> float:
    """The time of work beside which weights arrive that it goes over so many times, the first time
    only: 9.4 MB in seven rows of an image one after another take 1960 us, at once 1400, and from
    the cache both 1115. A far cache does not keep them at once: where a core's own does not hold
    the `swept_bytes` it goes over, they arrive twice."""
    kept = hw.weights_fit or not hw.cache_is_far or swept_bytes <= hw.own_cache_bytes * USABLE
    beside = 1 if kept else min(times, UNKEPT_SWEEPS)
    sweep_us = latency_us / times
    arrives_us = overlapped_us(sweep_us, reading_us, far_loss(hw, ahead=True))
    return latency_us + beside * (arrives_us - sweep_us)


def sweeps(node: TileNode, plan: TilePlan, hw: HardwareModel) -> int:
    """How many times a core goes over its packed operands, from the first panel to the last. Where
    its tasks take one panel each, and the rows of one after another, the next one has time to
    arrive beside all of them; a chain's panels are small."""
    if plan.rule not in ("tile", "strassen"):
        return 1
    core, register = plan.at("core"), plan.at("register")
    counts = core.counts(node.axes)
    sharing = sharing_axes(node)
    tasks = prod(counts[axis] for axis in sharing)
    columns = [axis for axis in node.space if axis not in sharing]
    if _first_cut(node, plan) in columns:
        return 1 if all(core.extents[a] <= register.extents[a] for a in columns) else tasks
    return ceil(tasks / (hw.cores if plan.parallel else 1))


def _first_cut(node: TileNode, plan: TilePlan) -> int:
    """The outermost axis that core tiles cut."""
    counts = plan.at("core").counts(node.axes)
    return next((axis for axis in plan.order if counts[axis] > 1), plan.order[0])
