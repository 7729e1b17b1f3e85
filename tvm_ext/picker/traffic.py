"""What data costs on its way: weights from memory, activations from other cores, copies.

Terms of the performance model (`perf`) beside the traffic of the loop nest itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf, prod

from tvm_ext.hardware.model import HardwareModel, MemoryLevel
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import (
    has_reuse,
    is_shared_out,
    is_small_window,
    packed_reads,
    producers,
    sharing_axes,
    slides,
    takes_whole_panels,
    whole_reduction,
)
from tvm_ext.tile.cut import Piece, handed_on_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.infer import propagate, region
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.remember import remembered

STREAMED = 0.8
"""Part of DRAM's bandwidth that is left for weights beside the work on them (16.8 MB in 333 us and
37.7 MB in 700 us of a 62 GB/s memory)."""
DISPLACED = 0.5
"""The same of the last cache, which takes a line back for each that it gives."""
PREFETCH_BYTES = 1 << 17
"""Smaller weights arrive sooner than asking for them pays."""
PREFETCH_ROWS = 4
"""Multiplications by each vector of weights that hide a request for the next one."""
OVERLAP_LOSS = 0.15
"""Part of the shorter of compute and memory time that is not hidden behind the longer."""
NEAR_CYCLES = 80.0
"""Time in which a core finds other work while it waits for a load. Zen's last cache answers sooner
(46 to 50 cycles, as published), one behind a mesh does not: at 135 cycles a core waits for nearly
all it reads (128 rows of 3072, which leave L2 between panels of weights and come back 12 times, 660
us at 29 GB/s, cost 470 to 690 beside 1400 of work), and for half of what it asks for ahead."""
EXCHANGE = 0.15
"""Part of the last cache's bandwidth at which cores get what others have just read and written."""
EXCHANGE_NEAR = 0.08
"""The same of a cache so near that few cores share it, and others may have one of their own: 0.23
and 0.05, between which a virtual machine changes while a model runs. This is the mean of both
times: with 0.15 Inception v2 and ResNet-18 take as long in the first state, and 1.03 to 1.04 times
as long in the second. (Behind a mesh 128 rows of 768 to 3072 are shared out by columns.)"""
MASK_CYCLES = 4.0
"""Clamping an address and choosing between what lies there and padding."""
KEPT = 0.5
"""A group whose tensors fit in this part of the last cache finds them there."""
SHARE = 0.25
"""Part of a shared cache that one can count on: programs beside this one, those behind a hypervisor
too, have the rest (a cache of 32 MiB: 8 MiB are read at 63 GB/s, 16 at 25, as memory is)."""
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
    if not hw.shared_cache_cycles:
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
    near = 0 < hw.shared_cache_cycles <= NEAR_CYCLES
    rate = (EXCHANGE_NEAR if near else EXCHANGE) * hw.levels[-2].gbps
    return size_bytes * (cores - 1) / cores**2 / (rate * 1e3)


def gathered_us(size_bytes: float, hw: HardwareModel) -> float:
    """Time in which one core gets what all have just written."""
    return hw.cores * handed_on_us(size_bytes, hw.cores, hw)


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
        return arriving_us(latency_us, cold_us, sweeps(node, plan, hw), hw)
    return latency_us + cold_us


def arriving_us(latency_us: float, reading_us: float, times: int, hw: HardwareModel) -> float:
    """The time of work beside which weights arrive that it goes over so many times, the first time
    only: 9.4 MB in seven rows of an image one after another take 1960 us, at once 1400, and from
    the cache both 1115."""
    first_us = latency_us / times
    return latency_us - first_us + overlapped_us(first_us, reading_us, far_loss(hw, ahead=True))


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


def prologue_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """Time of the stages before the anchor: at `root` a pass over memory and a launch of their own;
    at `core` a smaller copy for every task, halo included, that stays in cache; at `register` a
    mask wherever they are read."""
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
            total += hw.barrier_us if cores > 1 else 0.0
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
