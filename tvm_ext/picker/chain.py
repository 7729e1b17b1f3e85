"""Plans for a product between two transforms (Winograd), and their predicted time.

Two forms compete. With every stage inside the core tile, transformed data stays in cache and each
core tile reads all weights. With every stage a phase of its own, weights are read once and the
transformed data goes through memory twice. The smaller traffic wins.
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
                core = Tile((*product.extents[:2], 1, rows, columns, *product.extents[5:]))
                order = (2, 3, 4, 0, 1, 5, 6)
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
    whole = Tile(product.extents)
    tasks = prod(n for axis, n in enumerate(core.counts(product.axes)) if axis in product.space)
    cores = min(hw.cores, tasks) if plan.parallel else 1
    waves = ceil(tasks / cores)
    inside = plan.attach[0].level == "core"
    cycles = compute_cycles(graph, product, core, plan.at("register"), plan.lanes, hw) * waves
    transforms = sum(
        node.flops / even_lanes(node.extents[-1], plan.lanes) / hw.fma_per_cycle
        for stage, node in enumerate(graph.nodes)
        if stage != chain.product
    )
    data = graph.tensors[graph.nodes[chain.cols_in].write.tensor].size_bytes
    results = graph.tensors[product.write.tensor].size_bytes
    weight = sum(graph.tensors[read.tensor].size_bytes for read in product.reads) - data
    outside = graph.io_bytes - weight
    if inside:
        share = waves / tasks
        part = core.points / prod(whole.extents) * product.extents[-1] / core.extents[-1]
        held = (data + results) * part
        near = holding_gbps(hw, held / USABLE, 1, sharing=cores)
        far = holding_gbps(hw, (held + weight) / USABLE, 1, sharing=cores)
        multiply = (cycles, waves * (weight / far + held / near))
        move = (transforms * share, waves * (held + outside * part) / near)
        launch_us = hw.launch_us
    else:
        rate = holding_gbps(hw, (data + results + graph.io_bytes) / USABLE, cores)
        multiply = (cycles, (weight + data + results) / rate)
        move = (transforms / cores, (data + results + outside) / rate)
        launch_us = 3 * hw.launch_us
    latency_us, compute_us, memory_us = launch_us, 0.0, 0.0
    for phase_cycles, phase_ns in (multiply, move):
        busy_us, wait_us = phase_cycles / clock_ghz(hw) / 1e3, phase_ns / 1e3
        latency_us += overlapped_us(busy_us, wait_us)
        compute_us, memory_us = compute_us + busy_us, memory_us + wait_us
    latency_us = with_cold_weights(graph, product, plan, hw, latency_us)
    bound = "compute" if compute_us >= memory_us else "memory"
    return Estimate(latency_us, compute_us, memory_us, bound)


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
