"""The micro performance model for GPUs: time of a block plan from tile numbers alone (Roller §3.3).

A multiprocessor goes through the steps of the blocks it holds at the pace of the slowest of three:
instructions that its warps issue, shared memory's ports, and the way from one barrier of a block to
the next, which only its other blocks hide. Beside that go the bytes through L2 and of DRAM.
"""

from __future__ import annotations

from math import ceil, prod

import msgspec

from tvm_ext.hardware.catalog import capability
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.perf import Estimate
from tvm_ext.picker.traffic import KEPT, overlapped_us
from tvm_ext.tile.block import (
    STATIC_BYTES,
    copied,
    copy_box,
    copy_bytes,
    fetch_width,
    is_skewed,
    made_inside,
    step_counts,
    thread_count,
    unrolled_steps,
    vector_elements,
)
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.footprint import access_bytes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import TilePlan

RESIDENT_THREADS = 2048
"""Threads a multiprocessor keeps at once (1024 on some; their registers end there too)."""
RESIDENT_BLOCKS = 32
BLOCK_BYTES = 1 << 10
"""Shared memory of a block that the system takes."""
ASYNC_CAPABILITY = 80
"""The first architecture with asynchronous copies to shared memory."""
ADDRESS_REGISTERS = 32
"""Registers of a thread that hold addresses, loop counters and fetched elements on their way."""

# Cycles, fitted to 690 kernels of products and convolutions on an H200 (docs/gpu_results.md). They
# explain latencies to a quarter, and what the model chooses among them is 1.12 from the best.
MADD_CYCLES = 1.6
"""To issue a multiply-add of a warp, with what a loop needs besides."""
LOAD_CYCLES = 1.9
"""To issue a load of an operand."""
FETCH_CYCLES = 12.0
"""To issue a fetch from global to shared memory."""
MADE_CYCLES = 40.0
"""The same, beyond that, of what is made while it is fetched: the conditions of padding."""
SINGLE_CYCLES = 45.0
"""The same of single elements."""
PORT_CYCLES = 0.65
"""Of shared memory's ports, for an element that a warp's threads read."""
FETCH_PORT_CYCLES = 1.8
"""The same for a fetch of all threads of a warp."""
GLOBAL_CYCLES = 3.7
"""To read an element that is not staged."""
WAIT_CYCLES = 30.0
"""Until operands of the next multiply-adds are there."""
MEMORY_CYCLES = 390.0
"""From a fetch to the barrier behind it."""
MADE_WAITS, FETCH_WAITS = 1.25, 0.06
"""How often that is waited for in a block's only copy: conditions keep fetches apart."""
BARRIER_CYCLES = 26.0
START_CYCLES = 260.0
"""A block's first and last steps beyond what others take."""
REPEATED = 0.7
"""Part of what blocks fetch that comes from L2: others fetch the same at the same time."""
SCHEDULERS = 4
"""Warps that issue at once."""
BANK_VECTORS = 8
"""Vectors that one access to shared memory reads."""
SOFT = 3.0
"""How soft the maximum of what overlaps is: nothing hides entirely behind what is as slow."""


class Limits(msgspec.Struct, frozen=True):
    """What one thread block may use of a GPU (CUDA programming guide, compute capabilities)."""

    threads: int
    shared_bytes: int
    """Declared statically; more needs an opt-in at every launch."""
    registers: int
    """32-bit registers of all threads together."""
    registers_per_thread: int
    warp: int
    ahead: bool
    """Whether copies to shared memory can be under way beside other work (cp.async)."""


def limits(hw: HardwareModel) -> Limits:
    """The limits in the model's target, or CUDA's common ones where it does not say."""
    target, preset = hw.target, hw.name.removeprefix("cuda/")
    return Limits(
        threads=int(target.get("max_threads_per_block", 1024)),
        shared_bytes=int(target.get("max_shared_memory_per_block", STATIC_BYTES)),
        registers=int(target.get("registers_per_block", 65536)),
        registers_per_thread=hw.vector_registers,
        warp=int(target.get("thread_warp_size", 32)),
        ahead=capability(target.get("arch", preset)) >= ASYNC_CAPABILITY,
    )


def shared_bytes(graph: TileGraph, plan: TilePlan) -> int:
    """Shared memory of a block of the `block` rule."""
    return (2 if plan.ahead else 1) * copy_bytes(graph, plan)


def register_count(graph: TileGraph, node: TileNode, plan: TilePlan) -> int:
    """32-bit registers one thread needs: accumulators, addresses, and operands, of which those that
    lie along the reduction are loaded for several steps at once."""
    register = plan.at("register")
    depth = unrolled_steps(node, plan)
    operands = [
        (access_bytes(graph, access, register) // 4 or 1)
        * (depth if is_skewed(graph, node, access.tensor) else 1)
        for access in node.reads
    ]
    own = access_bytes(graph, node.write, register) // 4 or 1
    return own + sum(operands) + ADDRESS_REGISTERS


def resident_blocks(graph: TileGraph, node: TileNode, plan: TilePlan, hw: HardwareModel) -> int:
    """Blocks one multiprocessor holds at once; 0 if not even one fits."""
    limit, threads = limits(hw), thread_count(node, plan)
    rounded = -(-threads // limit.warp) * limit.warp
    shared = shared_bytes(graph, plan)
    needed = register_count(graph, node, plan)
    if threads > limit.threads or shared > limit.shared_bytes:
        return 0
    if needed > limit.registers_per_thread:
        return 0
    by_shared = hw.level("shared").size_bytes // (shared + BLOCK_BYTES)
    by_registers = limit.registers // (rounded * needed)
    by_threads = max(1, RESIDENT_THREADS // rounded)
    return min(by_shared, by_registers, by_threads, RESIDENT_BLOCKS)


class Step(msgspec.Struct, frozen=True):
    """What one step of a block costs, in cycles."""

    issued: float
    """Instructions of all warps."""
    ports: float
    """Shared memory, for all warps."""
    chain: float
    """From one barrier to the next, if nothing else ran."""


def step_cycles(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Step:
    """Cycles of one step of a `block` plan."""
    node = graph.nodes[plan.anchor]
    core, step, register = plan.at("core"), plan.at("shared"), plan.at("register")
    threads, vector = thread_count(node, plan), vector_axis(node)
    several = [a for a in node.space if a != vector and core.extents[a] > register.extents[a]]
    iterations = prod(step.extents[axis] for axis in node.reduce)
    depth = unrolled_steps(node, plan)
    kept, made = copied(graph, plan), made_inside(graph, plan)
    loads, ports, apart = 0.0, 0.0, 0.0
    for access in node.reads:
        dtype_bytes = graph.tensors[access.tensor].dtype_bytes
        elements = access_bytes(graph, access, register) / dtype_bytes
        if access.tensor not in kept:
            apart += elements
        elif is_skewed(graph, node, access.tensor):
            loads += elements / depth
            ports += elements
        else:
            # threads of other rows read from the same banks
            crowd = max(1.0, BANK_VECTORS / plan.lanes) if any(map(access.uses, several)) else 0.0
            loads += elements / vector_elements(dtype_bytes)
            ports += elements * (1.0 + crowd)
    points = prod(register.extents[axis] for axis in node.space)
    madds = points * max(1.0, node.flops_per_point / 2) * SCHEDULERS / hw.fma_per_cycle
    warp = iterations * (madds * MADD_CYCLES + (loads + apart) * LOAD_CYCLES)
    fetches, waits = 0, 1.0
    for tensor in kept:
        width = fetch_width(graph, plan, tensor)
        count = ceil(prod(copy_box(graph, plan, tensor)) / (width * threads))
        fetches += count
        warp += count * (FETCH_CYCLES + (width == 1) * SINGLE_CYCLES)
        warp += count * MADE_CYCLES if tensor in made else 0.0
        waits += count * (MADE_WAITS if tensor in made else FETCH_WAITS)
    warps = -(-threads // limits(hw).warp)
    shared = iterations * (ports * PORT_CYCLES + apart * GLOBAL_CYCLES)
    shared += fetches * FETCH_PORT_CYCLES
    chain = warp + iterations / depth * WAIT_CYCLES
    if plan.ahead:
        chain = max(chain, MEMORY_CYCLES)
    else:
        chain += waits * MEMORY_CYCLES
    return Step(warps * warp, warps * shared, chain + BARRIER_CYCLES)


def estimate_block(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Estimate:
    """Predicted time of a `block` plan; partial tiles are charged as whole ones."""
    node = graph.nodes[plan.anchor]
    core, step = plan.at("core"), plan.at("shared")
    counts = core.counts(node.axes)
    blocks = prod(counts[axis] for axis in node.space)
    entered, steps = step_counts(node, plan)
    mine = ceil(blocks / hw.cores)
    resident = min(mine, max(1, resident_blocks(graph, node, plan, hw)))
    once = step_cycles(graph, plan, hw)
    issued = resident * once.issued / SCHEDULERS
    first = MEMORY_CYCLES if plan.ahead else 0.0
    paces = (issued * steps, resident * once.ports * steps, once.chain * steps + first)
    pace = sum(each**SOFT for each in paces) ** (1 / SOFT)
    compute_us = mine / resident * (entered * pace + START_CYCLES) / hw.clock_ghz / 1e3
    moved = blocks * (
        sum(access_bytes(graph, access, step, 32) for access in node.reads) * entered * steps
        + access_bytes(graph, node.write, core, 32)
    )
    busy = min(hw.cores, blocks)
    memory_us, bound = through(hw, "l2", moved * REPEATED, busy), "l2"
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
