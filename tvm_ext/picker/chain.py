"""Plans for a product between two transforms (Winograd), and their predicted time.

Two forms compete. With every stage inside the core tile, transformed data stays in cache and each
core tile reads all weights, one block of channels after another. With every stage a phase of its
own, weights are read once and the transformed data goes through memory twice. The smaller traffic
wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.perf import (
    USABLE,
    Estimate,
    clock_ghz,
    compute_cycles,
    holding_gbps,
    overlapped_us,
    wants_prefetch,
    with_cold_weights,
)
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import TransformChain, even_lanes
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan

FLOAT_BYTES = 4
EXCHANGE = 0.3
"""Part of the last cache's bandwidth at which a core gets what another one has just written: from
nearly all of it to 0.15, as the cores share a cache or not."""
_SPACE = (2, 3, 4)
"""Axes of the product that count tiles: n, ty, tx."""
_CHANNELS = 5


def chain_plans(
    graph: TileGraph, chain: TransformChain, registers: list[Tile], lanes: int, hw: HardwareModel
) -> Iterator[TilePlan]:
    """Both forms for each register tile, core tiles that leave no tail at the image's border."""
    product, last = graph.nodes[chain.product], graph.nodes[chain.last]
    if product.extents[_CHANNELS] != last.extents[-1]:
        return
    stages = [stage for stage in range(len(graph.nodes)) if stage != chain.product]
    for register in registers:
        for rows in _cuts(product.extents[3], last.extents[1], chain.m):
            for columns in _cuts(product.extents[4], last.extents[2], chain.m):
                if rows % register.extents[3] and rows != product.extents[3]:
                    continue
                if columns % register.extents[4] and columns != product.extents[4]:
                    continue
                for channels in _channel_blocks(product.extents[_CHANNELS], register):
                    core = Tile(
                        (*product.extents[:2], 1, rows, columns, channels, product.extents[6])
                    )
                    orders = [(2, 3, 4, 5, 0, 1, 6)]
                    if channels < product.extents[_CHANNELS]:
                        orders.append((5, 2, 3, 4, 0, 1, 6))
                    for order in orders:
                        yield _plan(graph, chain, core, register, order, lanes, stages, "core")
        for blocks in (1, 2, 4):
            if product.extents[_CHANNELS] % (register.extents[_CHANNELS] * blocks) == 0:
                channels = register.extents[_CHANNELS] * blocks
                core = Tile((1, 1, *product.extents[2:5], channels, product.extents[6]))
                yield _plan(
                    graph, chain, core, register, (0, 1, 5, 2, 3, 4, 6), lanes, stages, "root"
                )


def _cuts(tiles: int, outputs: int, m: int) -> list[int]:
    """Tile counts of a core tile along one side of the image: no tail, or all of it."""
    return [n for n in range(1, tiles + 1) if n == tiles or outputs % (n * m) == 0]


def _channel_blocks(extent: int, register: Tile) -> list[int]:
    """Channels whose products a core tile holds at a time: all, or an even share."""
    width = register.extents[_CHANNELS]
    return sorted({extent, *(size for size in (width, 2 * width) if extent % size == 0)})


def _plan(
    graph: TileGraph,
    chain: TransformChain,
    core: Tile,
    register: Tile,
    order: tuple[int, ...],
    lanes: int,
    stages: list[int],
    level: str,
) -> TilePlan:
    return TilePlan(
        rule="chain",
        anchor=chain.product,
        tiles=(LevelTile("core", core), LevelTile("register", register)),
        order=order,
        parallel=3,
        lanes=lanes,
        unroll=register.extents[-1],
        attach=tuple(Attach(stage, level) for stage in stages),
        prefetch=wants_prefetch(graph, graph.nodes[chain.product], core, register),
    )


def chain_estimate(
    graph: TileGraph, chain: TransformChain, plan: TilePlan, hw: HardwareModel
) -> Estimate:
    """Predicted time of a chain plan on `hw`."""
    product = graph.nodes[chain.product]
    core = plan.at("core")
    inside = plan.attach[0].level == "core"
    counts = core.counts(product.axes)
    blocks = counts[_CHANNELS]
    apart = inside and plan.order[0] != _CHANNELS
    tasks = prod(counts[axis] for axis in product.space) // (blocks if apart else 1)
    cores = min(hw.cores, tasks) if plan.parallel else 1
    waves = ceil(tasks / cores)
    register = plan.at("register")
    tiles = waves * (blocks if apart else 1)
    cycles = tiles * compute_cycles(graph, product, core, register, plan.lanes, hw)
    before = _transform_cycles(graph, (chain.rows_in, chain.cols_in), plan, hw)
    after = _transform_cycles(graph, (chain.rows_out, chain.last), plan, hw)
    data = graph.tensors[graph.nodes[chain.cols_in].write.tensor].size_bytes
    results = graph.tensors[product.write.tensor].size_bytes
    weight = sum(graph.tensors[read.tensor].size_bytes for read in product.reads) - data
    outside = graph.io_bytes - weight
    if inside:
        part = prod(core.extents[axis] / product.extents[axis] for axis in _SPACE)
        again = 1 if apart else blocks
        read = weight if apart else weight / blocks
        held = (data + results / blocks) * part
        near = holding_gbps(hw, held / USABLE, 1, sharing=cores)
        far = holding_gbps(hw, (held + read) / USABLE, 1, sharing=cores)
        used = (data * blocks + results) * part / again
        moved = (data + (results + outside) / again) * part
        multiply = (cycles, waves * (read / far + used / near))
        move = ((before * again + after) * waves / tasks, waves * moved / near)
        launch_us = hw.launch_us
    else:
        rate = holding_gbps(hw, (data + results + outside) / USABLE, cores)
        multiply = (cycles, (data + results) / rate)
        move = ((before + after) / cores, (data + results + outside) / rate)
        handed_on = (data + results) * (cores - 1) / cores**2
        launch_us = 3 * hw.launch_us + handed_on / (EXCHANGE * hw.levels[-2].gbps * 1e3)
    multiply = (cycles, max(multiply[1], tiles * _first_level_ns(core, register, hw)))
    latency_us, compute_us, memory_us = launch_us, 0.0, 0.0
    for phase_cycles, phase_ns in (multiply, move):
        busy_us, wait_us = phase_cycles / clock_ghz(hw) / 1e3, phase_ns / 1e3
        latency_us += overlapped_us(busy_us, wait_us)
        compute_us, memory_us = compute_us + busy_us, memory_us + wait_us
    latency_us = with_cold_weights(graph, product, plan, hw, latency_us)
    bound = "compute" if compute_us >= memory_us else "memory"
    return Estimate(latency_us, compute_us, memory_us, bound)


def _first_level_ns(core: Tile, register: Tile, hw: HardwareModel) -> float:
    """Time of what the product of a core tile pulls into the first level: a panel of weights for
    the rows of each register tile, once if both have room there."""
    steps = [-(-c // r) for c, r in zip(core.extents, register.extents, strict=True)]
    panels = prod(steps[axis] for axis in (0, 1, _CHANNELS))
    passes = panels * prod(steps[axis] for axis in _SPACE)
    depth_bytes = core.extents[-1] * FLOAT_BYTES
    panel_bytes = register.extents[_CHANNELS] * depth_bytes
    rows_bytes = prod(register.extents[axis] for axis in _SPACE) * depth_bytes
    first, second = hw.levels[1], hw.levels[2]
    stays = panel_bytes + rows_bytes <= first.size_bytes * USABLE
    return ((panels if stays else passes) * panel_bytes + passes * rows_bytes) / second.gbps


def _transform_cycles(
    graph: TileGraph, stages: tuple[int, ...], plan: TilePlan, hw: HardwareModel
) -> float:
    """Cycles of the arithmetic of transforms, on one core."""
    nodes = [graph.nodes[stage] for stage in stages]
    return sum(
        node.flops / even_lanes(node.extents[-1], plan.lanes) / hw.fma_per_cycle for node in nodes
    )


def rank_chains(
    graph: TileGraph,
    chain: TransformChain,
    registers: list[Tile],
    lanes: int,
    hw: HardwareModel,
) -> list[tuple[TilePlan, Estimate]]:
    """All chain plans with their estimates, best first."""
    plans = chain_plans(graph, chain, registers, lanes, hw)
    if hw.cores == 1:
        plans = (msgspec.structs.replace(plan, parallel=0) for plan in plans)
    scored = [(plan, chain_estimate(graph, chain, plan, hw)) for plan in plans]
    return sorted(scored, key=lambda entry: entry[1].latency_us)
