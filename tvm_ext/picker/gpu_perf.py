"""The micro performance model for GPUs: time of a block plan from tile numbers alone (Roller §3.3).

Per multiprocessor: multiply-adds issued, shared memory read by the threads' register tiles, and the
latency of filling shared memory, which only other resident blocks hide; beside it, for all of them
together, bytes through L2 and bytes of DRAM. The slowest is the time.
"""

from __future__ import annotations

from math import ceil, prod

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.perf import Estimate
from tvm_ext.picker.traffic import KEPT, overlapped_us
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import staged
from tvm_ext.tile.footprint import access_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.infer import region
from tvm_ext.tile.plan import TilePlan

RESIDENT_THREADS = 1024
"""Threads a multiprocessor keeps at once: the least of any generation since Volta."""
FETCH_CYCLES = 600
"""From a load of global memory to the barrier after the store to shared memory."""
ADDRESS_REGISTERS = 32
"""Registers of a thread that hold addresses, loop counters and fetched elements on their way."""


class Limits(msgspec.Struct, frozen=True):
    """What one thread block may use of a GPU (CUDA programming guide, compute capabilities)."""

    threads: int
    shared_bytes: int
    """Declared statically; more needs an opt-in at every launch."""
    registers: int
    """32-bit registers of all threads together."""
    registers_per_thread: int
    warp: int


def limits(hw: HardwareModel) -> Limits:
    """The limits in the model's target, or CUDA's common ones where it does not say."""
    target = hw.target
    return Limits(
        threads=int(target.get("max_threads_per_block", 1024)),
        shared_bytes=int(target.get("max_shared_memory_per_block", 48 << 10)),
        registers=int(target.get("registers_per_block", 65536)),
        registers_per_thread=hw.vector_registers,
        warp=int(target.get("thread_warp_size", 32)),
    )


def thread_count(node: TileNode, plan: TilePlan) -> int:
    """Threads of a block of the `block` rule."""
    core, register = plan.at("core"), plan.at("register")
    return prod(core.extents[axis] // register.extents[axis] for axis in node.space)


def shared_bytes(graph: TileGraph, node: TileNode, plan: TilePlan) -> int:
    """Shared memory of a block of the `block` rule: the boxes that its step reads of every staged
    input, the gaps of a strided window included.

    TVM copies more than a cut through blocks (`w[o // 32, k, o % 32]`, `x[o // 64, c]` for groups)
    needs: up to two of them.
    """
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    inside = {entry.stage for entry in plan.attach if entry.level == "shared"}
    kept: dict[int, int] = {}
    for access in node.reads:
        tensor = graph.tensors[access.tensor]
        made = graph.producer(access.tensor) in inside
        if made or staged(node, access, core, register):
            box = list(region(access, step, tensor.shape))
            for place, dim in enumerate(access.dims):
                if dim is not None and dim.mod and dim.div == 1 and box[place] < dim.mod:
                    box[place] = 2 * dim.mod
                if dim is not None and dim.div > 1 and made:
                    box[place] = min(box[place] + 1, tensor.shape[place])
            size = prod(box) * tensor.dtype_bytes
            kept[access.tensor] = max(kept.get(access.tensor, 0), size)
    return sum(kept.values())


def register_count(graph: TileGraph, node: TileNode, register: Tile) -> int:
    """32-bit registers one thread needs: accumulators, one element of each operand, addresses."""
    elements = [
        access_bytes(graph, access, register) // 4 or 1 for access in (*node.reads, node.write)
    ]
    return sum(elements) + ADDRESS_REGISTERS


def resident_blocks(graph: TileGraph, node: TileNode, plan: TilePlan, hw: HardwareModel) -> int:
    """Blocks one multiprocessor holds at once; 0 if not even one fits."""
    limit, threads = limits(hw), thread_count(node, plan)
    rounded = -(-threads // limit.warp) * limit.warp
    shared = shared_bytes(graph, node, plan)
    needed = register_count(graph, node, plan.at("register"))
    if threads > limit.threads or shared > limit.shared_bytes:
        return 0
    if needed > limit.registers_per_thread:
        return 0
    by_shared = hw.level("shared").size_bytes // max(1, shared)
    by_registers = limit.registers // (rounded * needed)
    return min(by_shared, by_registers, max(1, RESIDENT_THREADS // rounded))


def estimate_block(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Estimate:
    """Predicted time of a `block` plan; partial tiles are charged as whole ones."""
    node = graph.nodes[plan.anchor]
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    warp = limits(hw).warp
    warps = -(-thread_count(node, plan) // warp)
    counts = core.counts(node.axes)
    blocks = prod(counts[axis] for axis in node.space)
    sweeps = prod(step.counts(node.axes)[axis] for axis in node.reduce)
    steps = sweeps * prod(step.extents[axis] for axis in node.reduce)
    accumulators = prod(register.extents[axis] for axis in node.space)
    mine = ceil(blocks / hw.cores)
    resident = min(mine, max(1, resident_blocks(graph, node, plan, hw)))
    hidden = resident * warps * accumulators / (hw.fma_latency_cycles * hw.fma_per_cycle)
    operations = warps * accumulators * steps * max(1.0, node.flops_per_point / 2)
    issue = operations / hw.fma_per_cycle / min(1.0, hidden)
    loaded = sum(access_bytes(graph, access, register) for access in node.reads) * steps
    rate = hw.level("shared").gbps / hw.clock_ghz
    own = max(issue, loaded * warps * warp / rate)
    waves = ceil(mine / resident)
    cycles = waves * max(resident * own, own + sweeps * FETCH_CYCLES)
    compute_us = cycles / hw.clock_ghz / 1e3
    moved = blocks * (
        sum(access_bytes(graph, access, step, 32) for access in node.reads) * sweeps
        + access_bytes(graph, node.write, core, 32)
    )
    busy = min(hw.cores, blocks)
    memory_us, bound = through(hw, "l2", moved, busy), "l2"
    dram_us = through(hw, "dram", graph.io_bytes, busy)
    if graph.io_bytes > KEPT * hw.level("l2").size_bytes and dram_us > memory_us:
        memory_us, bound = dram_us, "dram"
    total = overlapped_us(compute_us, memory_us)
    inside = {plan.anchor, *(entry.stage for entry in plan.attach)}
    total += hw.launch_us + sum(
        alone_us(graph, stage, hw) for stage in range(len(graph.nodes)) if stage not in inside
    )
    return Estimate(total, compute_us, memory_us, "compute" if compute_us >= memory_us else bound)


def alone_us(graph: TileGraph, stage: int, hw: HardwareModel) -> float:
    """Time of a stage with a kernel of its own: a launch and a pass over its result."""
    size = 2 * graph.tensors[graph.nodes[stage].write.tensor].size_bytes
    return hw.launch_us + through(hw, "dram", size, hw.cores)


def through(hw: HardwareModel, level: str, size_bytes: float, busy: int) -> float:
    """Microseconds that many multiprocessors need to read so many bytes from a level."""
    entry = hw.level(level)
    return size_bytes / (min(entry.gbps * busy, entry.total_gbps or entry.gbps * busy) * 1e3)


def streaming_blocks(graph: TileGraph, hw: HardwareModel, blocks: int) -> Estimate:
    """Time of a group in which every block touches bytes of its own once."""
    busy = min(hw.cores, blocks)
    held = graph.io_bytes <= KEPT * hw.level("l2").size_bytes
    source = "l2" if held else "dram"
    memory_us = through(hw, source, graph.io_bytes, busy)
    compute_us = graph.flops / (hw.peak_gflops["float32"] * busy * 1e3)
    bound = "compute" if compute_us > memory_us else source
    return Estimate(max(compute_us, memory_us) + hw.launch_us, compute_us, memory_us, bound)
