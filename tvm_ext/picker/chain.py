"""Plans for a product between two transforms (Winograd), and their predicted time.

Four forms compete. With every stage inside the core tile, transformed data stays in cache and
each core tile reads all weights, one block of channels after another. Where cores cannot share
core tiles out evenly, blocks of theirs are tasks, each of which transforms the input anew. With
blocks of channels first, each core has weights of its own as well. With every stage a phase of its
own, weights are read once and the transformed data goes through memory twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import ceil, prod
from typing import NamedTuple

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.perf import Estimate, compute_cycles
from tvm_ext.picker.traffic import USABLE, handed_on_us, holding_gbps, overlapped_us, written_gbps
from tvm_ext.picker.weights import wants_prefetch, with_cold_weights
from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.chain import (
    CHANNELS_FIRST,
    IMAGE_FIRST,
    IMAGE_IN_BLOCKS,
    INSIDE,
    PHASES,
    ChainForm,
    TransformChain,
    chain_form,
    transform_chain,
)
from tvm_ext.tile.classify import even_lanes
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import can_ask_ahead
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.remember import remembered

_SPACE = (2, 3, 4)
"""Axes of the product that count tiles: n, ty, tx."""
_CHANNELS = 5
CUT_ROWS = 2
"""Rows of tiles of a core tile that is narrower than the image."""
SHARED_TERMS = {6: 0.45}
"""Operations of a transform of so many points, beside those that each of its results takes by
itself: six take 6 each and 14 together, four 6 and 13, a multiply-add counted as one."""
TRIED_AHEAD = 12
"""Plans of which it is also tried to ask for the next task's data ahead, where the cores' own
caches together do not hold it: from the last one it comes sooner as well (two models 1.02)."""


def chain_plans(
    graph: TileGraph, chain: TransformChain, registers: list[Tile], lanes: int, hw: HardwareModel
) -> Iterator[TilePlan]:
    """All forms for each register tile, core tiles that leave no tail at the image's border."""
    product, last = graph.nodes[chain.product], graph.nodes[chain.last]
    a, b, *images, width, depth = product.extents
    if width * chain.groups != last.extents[-1]:
        return
    stages = [stage for stage in range(len(graph.nodes)) if stage != chain.product]

    def plan(core: Tile, register: Tile, form: ChainForm) -> TilePlan:
        level = "core" if form in INSIDE else "root"
        return TilePlan(
            rule="chain",
            anchor=chain.product,
            tiles=(LevelTile("core", core), LevelTile("register", register)),
            order=form.order,
            parallel=form.tasks,
            lanes=lanes,
            unroll=register.extents[-1],
            attach=tuple(Attach(stage, level) for stage in stages),
            prefetch=wants_prefetch(graph, product, core, register),
        )

    for register in registers:
        step = register.extents[_CHANNELS]
        blocks = [step * count for count in (1, 2, 4) if width % (step * count) == 0]
        for rows, columns in _boxes(images[1], images[2], register.extents[4]):
            for channels in sorted({*blocks[:2], width}):
                core = Tile((a, b, 1, rows, columns, channels, depth))
                yield plan(core, register, IMAGE_FIRST)
                if channels == width if chain.groups > 1 else channels < width:
                    yield plan(core, register, CHANNELS_FIRST)
                    parts = _parts(core, product, chain)
                    if parts > hw.cores and parts % hw.cores:
                        yield plan(core, register, IMAGE_IN_BLOCKS)
        for channels in blocks:
            core = Tile((1, 1, *images, channels, depth))
            yield plan(core, register, PHASES)


def by_channels(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> bool:
    """Whether cores share out a chain's channels, and not its image."""
    chain, form = transform_chain(graph), chain_form(plan)
    if chain is None or not plan.parallel:
        return False
    few = _parts(plan.at("core"), graph.nodes[chain.product], chain) < hw.cores
    return form == CHANNELS_FIRST or (form == IMAGE_IN_BLOCKS and few)


def _parts(core: Tile, product: TileNode, chain: TransformChain) -> int:
    """How many parts of the image there are, of all channels."""
    counts = core.counts(product.axes)
    return prod(counts[axis] for axis in _SPACE) // chain.groups


def _boxes(down: int, along: int, step: int) -> Iterator[tuple[int, int]]:
    """Tiles of a core tile down and along the image: whole rows of tiles, or parts of one or two
    that are no shorter than `step`, a register tile."""
    for rows, columns in itertools.product(divisors(down), divisors(along)):
        if columns == along or (rows <= CUT_ROWS and columns >= step):
            yield rows, columns


class _Work(NamedTuple):
    """What a chain has to do, however it is cut: bytes, and vectors of arithmetic."""

    data: int
    results: int
    weight: int
    outside: int
    before: float
    """Transforming the input."""
    after: float
    """Transforming the products."""


class _Phases(NamedTuple):
    """Nanoseconds that the busiest core's traffic takes, beside the product and beside the
    transforms: within its caches, and with what lies outside; cycles of the transforms; what
    launches and handing data over add."""

    product_ns: float
    transforms_ns: float
    outside_ns: float
    transforms_cycles: float
    launch_us: float


def chain_estimate(
    graph: TileGraph, chain: TransformChain, plan: TilePlan, hw: HardwareModel
) -> Estimate:
    """Predicted time of a chain plan on `hw`."""
    product = graph.nodes[chain.product]
    core, register = plan.at("core"), plan.at("register")
    counts = core.counts(product.axes)
    tiles = prod(counts[axis] for axis in product.space)
    form = chain_form(plan)
    image_first = form == IMAGE_FIRST
    blocks = counts[_CHANNELS] * chain.groups if image_first else 1
    tasks = tiles // blocks
    cores = min(hw.cores, tasks) if plan.parallel else 1
    waves = ceil(tasks / cores)
    work = _work(graph, chain, plan.lanes)
    if form in INSIDE:
        part = prod(core.extents[axis] / product.extents[axis] for axis in _SPACE)
        reads, again = (counts[_CHANNELS], 1) if image_first else (1, counts[_CHANNELS])
        seen = (0, work.weight)
        if image_first:
            part *= chain.groups
        else:
            work = work._replace(weight=work.weight // chain.groups)
        if form == CHANNELS_FIRST:
            seen = (work.weight // again, 0)
        phases = _inside(work, part, blocks, reads, again, seen, waves, cores, hw)
    else:
        phases = _at_root(work, cores, hw)
    if plan.ahead:
        phases = _with_ahead(phases, waves)
    element_bytes = graph.tensors[product.write.tensor].dtype_bytes
    near_ns = waves * blocks * _first_level_ns(core, register, element_bytes, hw)
    cycles = waves * blocks * compute_cycles(graph, product, core, register, plan.lanes, hw)
    latency_us, compute_us, memory_us = 0.0, 0.0, 0.0
    for phase_cycles, phase_ns in (
        (cycles, max(phases.product_ns, near_ns)),
        (phases.transforms_cycles, phases.transforms_ns + phases.outside_ns),
    ):
        busy_us, wait_us = phase_cycles / hw.clock_ghz / 1e3, phase_ns / 1e3
        latency_us += overlapped_us(busy_us, wait_us)
        compute_us, memory_us = compute_us + busy_us, memory_us + wait_us
    latency_us = with_cold_weights(graph, product, plan, hw, latency_us) + phases.launch_us
    bound = "compute" if compute_us >= memory_us else "memory"
    return Estimate(latency_us, compute_us, memory_us, bound)


@remembered
def _work(graph: TileGraph, chain: TransformChain, lanes: int) -> _Work:
    product = graph.nodes[chain.product]
    data = graph.tensors[graph.nodes[chain.cols_in].write.tensor].size_bytes
    weight = sum(graph.tensors[read.tensor].size_bytes for read in product.reads) - data
    points = max(product.extents[:2])
    return _Work(
        data=data,
        results=graph.tensors[product.write.tensor].size_bytes,
        weight=weight,
        outside=graph.io_bytes - weight,
        before=_vectors(graph, (chain.rows_in, chain.cols_in), points, lanes),
        after=_vectors(graph, (chain.rows_out, chain.last), points, lanes),
    )


def _inside(
    work: _Work,
    part: float,
    blocks: int,
    reads: int,
    again: int,
    seen: tuple[int, int],
    waves: int,
    cores: int,
    hw: HardwareModel,
) -> _Phases:
    """Every stage inside the core tile. A task takes `part` of the image and `blocks` blocks of
    channels, for which it `reads` transformed data so many times; the input is transformed `again`
    and again for the others. A core has `seen` so many bytes of weights before the same come, of
    its own and in common with the others."""
    weight = work.weight / again
    held = (work.data + work.results / again / blocks) * part
    near = holding_gbps(hw, held / USABLE, 1, sharing=cores)
    filled = written_gbps(hw, held / USABLE, 1, sharing=cores)
    beyond = holding_gbps(hw, work.outside / USABLE, cores) / cores
    own, common = (held + seen[0]) / USABLE, seen[1] / USABLE
    far = holding_gbps(hw, own, 1, cores, common)
    results = work.results / again * part
    data, outside_ns = work.data * part, work.outside / again * part / beyond
    return _Phases(
        product_ns=waves * (weight / far + data * reads / near + results / filled),
        transforms_ns=waves * (data + results) / filled,
        outside_ns=waves * outside_ns,
        transforms_cycles=(work.before + work.after / again) * waves * part / hw.fma_per_cycle,
        launch_us=hw.launch_us,
    )


def _at_root(work: _Work, cores: int, hw: HardwareModel) -> _Phases:
    """Every stage a phase of its own: of what a core reads others have written their share."""
    through = work.data + work.results
    held = (through + work.outside) / USABLE
    rate, filled = holding_gbps(hw, held, cores), written_gbps(hw, held, cores)
    return _Phases(
        product_ns=work.data / rate + work.results / filled,
        transforms_ns=work.data / filled + work.results / rate,
        outside_ns=work.outside / rate,
        transforms_cycles=(work.before + work.after) / cores / hw.fma_per_cycle,
        launch_us=hw.launch_us + 2 * hw.barrier_us + handed_on_us(through, cores, hw),
    )


def _with_ahead(phases: _Phases, waves: int) -> _Phases:
    """What lies outside arrives during the product, which uses other levels meanwhile, but for what
    the first of its tasks reads, some half of it."""
    first_ns = phases.outside_ns / waves / 2
    product_ns = max(phases.product_ns, phases.outside_ns - first_ns)
    return phases._replace(product_ns=product_ns, outside_ns=first_ns)


def _first_level_ns(core: Tile, register: Tile, element_bytes: int, hw: HardwareModel) -> float:
    """Time of what the product of a core tile pulls into the first level: a panel of weights for
    the rows of each register tile, once if both have room there."""
    steps = [-(-c // r) for c, r in zip(core.extents, register.extents, strict=True)]
    panels = prod(steps[axis] for axis in (0, 1, _CHANNELS))
    passes = panels * prod(steps[axis] for axis in _SPACE)
    depth_bytes = core.extents[-1] * element_bytes
    panel_bytes = register.extents[_CHANNELS] * depth_bytes
    rows_bytes = prod(register.extents[axis] for axis in _SPACE) * depth_bytes
    first, second = hw.levels[1], hw.levels[2]
    stays = panel_bytes + rows_bytes <= first.size_bytes * USABLE
    return ((panels if stays else passes) * panel_bytes + passes * rows_bytes) / second.gbps


def _vectors(graph: TileGraph, stages: tuple[int | None, int], points: int, lanes: int) -> float:
    """Vectors of arithmetic of a transform's stages, of which the second may be all there is."""
    found = [graph.nodes[stage] for stage in stages if stage is not None]
    behind = found[-1].flops_per_point - found[0].flops_per_point
    own = found[0].flops_per_point * SHARED_TERMS.get(points, 1.0)
    vectors = [prod(node.extents) / even_lanes(node.extents[-1], lanes) for node in found]
    return sum(vectors) * own + vectors[-1] * behind


def rank_chains(
    graph: TileGraph,
    chain: TransformChain,
    registers: list[Tile],
    lanes: int,
    hw: HardwareModel,
) -> list[tuple[TilePlan, Estimate]]:
    """All chain plans with their estimates, best first."""
    plans = chain_plans(graph, chain, registers, lanes, hw)
    scored = [(plan, chain_estimate(graph, chain, plan, hw)) for plan in plans]
    scored.sort(key=lambda entry: entry[1].latency_us)
    if _work(graph, chain, lanes).outside <= hw.own_cache_bytes * hw.cores:
        return scored
    best = [plan for plan, _ in scored[:TRIED_AHEAD] if can_ask_ahead(graph, plan)]
    asking = [msgspec.structs.replace(plan, ahead=True) for plan in best]
    scored += [(plan, chain_estimate(graph, chain, plan, hw)) for plan in asking]
    return sorted(scored, key=lambda entry: entry[1].latency_us)
