"""What data costs on its way: activations from other cores, lines written, copies.

Terms of the performance model (`perf`) beside the traffic of the loop nest itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf, prod

from tvm_ext.hardware.model import NEAR_CYCLES, SHARE, HardwareModel, MemoryLevel
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import (
    has_reuse,
    is_shared_out,
    is_small_window,
    producers,
    slides,
    whole_reduction,
)
from tvm_ext.tile.cut import Piece, handed_on_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.infer import propagate, region
from tvm_ext.tile.plan import TilePlan

USABLE = 0.8
"""Part of a cache a tile may count on."""
OVERLAP_LOSS = 0.15
"""Part of the shorter of compute and memory time that is not hidden behind the longer."""
EXCHANGE = 0.15
"""Part of the last cache's bandwidth at which cores get what others have just read and written."""
EXCHANGE_FAR = 0.3
"""The same behind a mesh, where its bandwidth is low (two cores of a Xeon: beside 0.15 BERT and
Inception v2 1.03 times as fast, seven others 0.99 to 1.01)."""
EXCHANGE_NEAR = 0.08
"""The same of a cache so near that few cores share it, and others may have one of their own: 0.23
and 0.05, between which a virtual machine changes while a model runs. This is the mean of both
times: with 0.15 Inception v2 and ResNet-18 take as long in the first state, and 1.03 to 1.04 times
as long in the second. (Behind a mesh 128 rows of 768 to 3072 are shared out by columns.)"""
MASK_CYCLES = 4.0
"""Clamping an address and choosing between what lies there and padding."""
KEPT = 0.5
"""A group whose tensors fit in this part of the last cache finds them there."""
COLD = 0.5
"""Part of such lines that the last cache has lost: of 4.8 MB between two layers of MobileNetV2 2.4
are written first, in 258 to 300 us where those already touched would take 182."""
STAGING_READS = 2.0
"""Time of reading rows that lie apart, beside reading as many bytes in a row."""


def overlapped_us(first_us: float, second_us: float, loss: float = OVERLAP_LOSS) -> float:
    """Time of two things at once, each of which hinders the other a little."""
    return max(first_us, second_us) + loss * min(first_us, second_us)


def far_loss(hw: HardwareModel, *, ahead: bool) -> float:
    """Part of the time of what comes from beyond a core's own caches, asked for `ahead` or not,
    that work does not hide."""
    if not hw.cache_is_far:
        return OVERLAP_LOSS
    far = 1 - NEAR_CYCLES / hw.shared_cache_cycles
    return max(OVERLAP_LOSS, far if ahead else min(1.0, 2 * far))


def stays_in_cache(graph: TileGraph, hw: HardwareModel) -> bool:
    """Whether a group finds its tensors in the last cache."""
    return graph.io_bytes < hw.levels[-2].size_bytes * KEPT


def holding_gbps(
    hw: HardwareModel, size_bytes: float, cores: int, sharing: int = 0, common_bytes: float = 0.0
) -> float:
    """Bandwidth, GB/s over `cores`, of the first level that holds so many bytes.

    `sharing` cores each hold as much of their own in the shared levels (default: `cores` hold it
    together), and the same `common_bytes` beside it.
    """
    return _gbps(holding_level(hw, size_bytes, cores, sharing, common_bytes), cores, sharing)


def written_gbps(hw: HardwareModel, size_bytes: float, cores: int, sharing: int = 0) -> float:
    """Bandwidth at which so many bytes are written line by line in many places: a line beyond a
    core's own caches is fetched first, one that leaves the last cache is put back as well (36
    planes in turn: 42 GB/s where 67 are read, 6.8 of memory's 18)."""
    source = holding_level(hw, size_bytes, cores, sharing)
    transfers = 3 if source is hw.levels[-1] else 2 if source.shared else 1
    return _gbps(source, cores, sharing) / transfers


def holding_level(
    hw: HardwareModel, size_bytes: float, cores: int, sharing: int = 0, common_bytes: float = 0.0
) -> MemoryLevel:
    """The first level that holds so many bytes; what they are as in `holding_gbps`."""
    for level in hw.levels[1:-1]:
        held = size_bytes * (sharing or 1) if level.shared else size_bytes
        if held + common_bytes <= _room(level, cores):
            return level
    return hw.levels[-1]


def cold_us(fresh_bytes: float, run_bytes: float, hw: HardwareModel) -> float:
    """Time in which lines come that are written without having been touched since the run before,
    in a run that touches so many: 0 where the last cache keeps them all."""
    if run_bytes <= cached_bytes(hw):
        return 0.0
    return fresh_bytes * COLD / (_gbps(hw.levels[-1], hw.cores, 0) * 1e3)


def spilled_us(held_bytes: float, cores: int, hw: HardwareModel) -> float:
    """Time in which memory of a kernel's own comes that the cores' own caches do not hold: no other
    kernel touches it."""
    return cold_us(max(0.0, held_bytes - hw.own_cache_bytes * cores), inf, hw)


def between_us(
    graph: TileGraph, pieces: Sequence[Piece], plans: Sequence[TilePlan], hw: HardwareModel
) -> float:
    """What the pieces of a group take beside their own times: for what they hand on; a piece in
    parallel behind another is no launch of its own, but waits at a barrier (`tvm_steal`)."""
    passing_us = spilled_us(handed_on_bytes(graph, pieces), hw.cores, hw)
    if not is_shared_out(graph):
        return passing_us
    phases = sum(1 for one, after in pairwise(plans) if one.parallel and after.parallel)
    return passing_us - phases * max(0.0, hw.launch_us - hw.barrier_us)


def cached_bytes(hw: HardwareModel) -> float:
    """What is larger comes from memory whenever it is read."""
    return max((_room(level, hw.cores) for level in hw.levels[1:-1]), default=0.0)


def _room(level: MemoryLevel, cores: int) -> float:
    """Bytes of a cache, or of that of each core, to be counted on."""
    return level.size_bytes * (SHARE if level.shared else cores)


def _gbps(source: MemoryLevel, cores: int, sharing: int) -> float:
    rate = source.gbps * cores
    return min(rate, source.total_gbps * cores / (sharing or cores)) if source.total_gbps else rate


def handed_on_us(size_bytes: float, cores: int, hw: HardwareModel) -> float:
    """Time in which cores get what others have just written of data that they share out anew."""
    part = EXCHANGE_FAR if hw.cache_is_far else EXCHANGE_NEAR
    rate = (part if hw.shared_cache_cycles else EXCHANGE) * hw.levels[-2].gbps
    return size_bytes * (cores - 1) / cores**2 / (rate * 1e3)


def gathered_us(size_bytes: float, hw: HardwareModel) -> float:
    """Time in which one core gets what all have just written."""
    return hw.cores * handed_on_us(size_bytes, hw.cores, hw)


def wants_results_ahead(
    graph: TileGraph, node: TileNode, epilogue: TileNode, register: Tile, hw: HardwareModel
) -> bool:
    """Whether asking for what the next epilogue reads and writes pays: the cores' own caches do not
    hold it, and the reduction before it is so short that every other step has a line to ask for.
    A tensor as large as the one written (a residual) is asked for too.

    Out of cache (Zen 4) 64 of 56 x 56 to 256 and a residual 737 → 534 us, 7 x 7 taps of 3 channels
    1435 → 1218, 3 x 3 655 → 544, depthwise 7 x 7 362 → 260; in the last cache 0.97 to 1.18. Of long
    reductions 0.99 to 1.03."""
    if not has_reuse(node) or graph.io_bytes <= hw.own_cache_bytes * hw.cores:
        return False
    written = graph.tensors[epilogue.write.tensor]
    tensors = {access.tensor for access in epilogue.reads} - {node.write.tensor}
    residuals = [one for one in tensors if graph.tensors[one].size_bytes >= written.size_bytes]
    steps = prod(-(-node.axes[axis].extent // register.extents[axis]) for axis in node.reduce)
    elements = prod(register.extents[axis] for axis in node.space) * written.dtype_bytes
    lines = elements // hw.levels[1].line_bytes * (len(residuals) + 1)
    return 2 * lines >= steps


def prologue_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """Time of the stages before the anchor: at `root` a pass over memory and a launch of their own,
    what the other cores made fetched from them (14 x 14 x 128 words padded: 30 us of 107, both
    cores reading all of it); at `core` a smaller copy for every task, halo included, that stays in
    cache; at `register` a mask wherever they are read."""
    levels = {entry.stage: entry.level for entry in plan.attach}
    node = graph.nodes[plan.anchor]
    core = plan.at("core")
    cores = hw.cores if plan.parallel else 1
    waves = core_waves(node, core, cores)
    total = 0.0
    for stage in producers(graph, plan.anchor):
        if levels.get(stage) == "register":
            total += masks_us(graph, plan, hw)
            continue
        producer = graph.nodes[stage]
        element_bytes = 2 * graph.tensors[producer.write.tensor].dtype_bytes
        if levels.get(stage) == "core":
            points = propagate(graph, plan.anchor, whole_reduction(node, core))[stage].points
            total += waves * points * element_bytes / (holding_gbps(hw, points * 4, 1) * 1e3)
        else:
            size_bytes = prod(producer.extents) * element_bytes
            total += size_bytes / (holding_gbps(hw, size_bytes, cores) * 1e3)
            total += hw.barrier_us + gathered_us(size_bytes / 2, hw) if cores > 1 else 0.0
    return total


def finishing_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """Time of an epilogue that goes over the sums of a core tile when all chunks have been added
    (`tile.chunk`)."""
    later = any(entry.stage > plan.anchor and entry.level == "core" for entry in plan.attach)
    if plan.rule != "tile" or not later:
        return 0.0
    node, core = graph.nodes[plan.anchor], plan.at("core")
    points = prod(core.extents[axis] for axis in node.space)
    size_bytes = points * graph.tensors[node.write.tensor].dtype_bytes
    waves = core_waves(node, core, hw.cores if plan.parallel else 1)
    return waves * 2 * size_bytes / (holding_gbps(hw, size_bytes, 1) * 1e3)


def uncounted_us(graph: TileGraph, node: TileNode, hw: HardwareModel, cores: int) -> float:
    """Time of what passes through memory beside the loop nest of a stage, if the last cache does
    not hold the group: what its epilogue reads, and lines that are written, which are read first
    (25088 x 144 by 24: 580 us, without these 373)."""
    memory = hw.levels[-1]
    if memory.name != "dram" or stays_in_cache(graph, hw):
        return 0.0
    own = {access.tensor for access in node.reads}
    beside = [t for place, t in enumerate(graph.tensors) if t.role == "input" and place not in own]
    written = [tensor for tensor in graph.tensors if tensor.role == "output"]
    size_bytes = sum(tensor.size_bytes for tensor in (*beside, *written))
    return size_bytes / (_gbps(memory, cores, 0) * 1e3)


def loose_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """Time of stages that the plan says nothing of: each is a pass over memory and a phase of its
    own (a Winograd chain behind another product, whose transforms no rule takes inside: 3500 us
    where the products take 1370)."""
    named = {plan.anchor, *producers(graph, plan.anchor), *(e.stage for e in plan.attach)}
    total = 0.0
    for stage, node in enumerate(graph.nodes):
        if stage in named:
            continue
        tensors = {access.tensor for access in (*node.reads, node.write)}
        size_bytes = sum(graph.tensors[tensor].size_bytes for tensor in tensors)
        total += size_bytes / (holding_gbps(hw, size_bytes, hw.cores) * 1e3)
        total += hw.barrier_us if hw.cores > 1 else 0.0
    return total


def masks_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """Time of masks for vectors that are read in place, padding among them: nothing beside the work
    of the taps of a row or window that the register tile takes whole, for they share what they
    read, nor in a small window, where they are part of every pass (`perf.PASS_CYCLES`); else one
    for every tap of every output (31 x 31 taps: 5.2 ms, in rows 1.2)."""
    node, register = graph.nodes[plan.anchor], plan.at("register")
    whole = [axis for axis in node.reduce if register.extents[axis] == node.axes[axis].extent]
    if is_small_window(node) or any(
        slides(node, axis) and node.axes[axis].extent > 1 for axis in whole
    ):
        return 0.0
    cores = hw.cores if plan.parallel else 1
    return prod(node.extents) / plan.lanes * MASK_CYCLES / cores / hw.clock_ghz / 1e3


def staging_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """Time of copying the staged reads side by side, for every core tile.

    While a panel is copied, what it is copied from takes as much room: where a core's caches do not
    hold both, the copy leaves them and comes back (1.5 MB beside an L2 of 2 MB: 600 us, half of
    it: 440).
    """
    node, core = graph.nodes[plan.anchor], plan.at("core")
    waves = core_waves(node, core, hw.cores if plan.parallel else 1)
    total = 0.0
    for place in plan.staged:
        access = node.reads[place]
        tensor = graph.tensors[access.tensor]
        panel = region(access, whole_reduction(node, core), tensor.shape)
        size_bytes = prod(panel) * tensor.dtype_bytes
        read = STAGING_READS / holding_gbps(hw, graph.io_bytes, 1)
        written = 1 / holding_gbps(hw, size_bytes, 1)
        if 2 * size_bytes > hw.own_cache_bytes:
            written += 2 * (1 / holding_gbps(hw, 2 * size_bytes, 1) - written)
        total += waves * size_bytes * (read + written) / 1e3
    return total


def core_waves(node: TileNode, core: Tile, cores: int) -> int:
    """Core tiles that the busiest core takes."""
    counts = core.counts(node.axes)
    return ceil(prod(counts[axis] for axis in node.space) / cores)
