"""Plans for a product by seven products of quarters (Strassen), and their predicted time.

Tasks are parts of the columns, of the rows, or of both, and go through their columns in blocks. The
sums of quarters are made once, by all cores, or in each task: a core then waits for no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import ceil, inf, prod
from typing import NamedTuple

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.company import TOLD_APART, exchange_us
from tvm_ext.picker.perf import TASK_CYCLES, Candidate, Estimate, compute_cycles, task_estimate
from tvm_ext.picker.traffic import USABLE, gathered_us, holding_gbps, overlapped_us, written_gbps
from tvm_ext.picker.weights import wants_prefetch, with_cold_weights
from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import LevelTile, TilePlan
from tvm_ext.tile.remember import remembered
from tvm_ext.tile.strassen import COLUMNS, QUARTER, ROWS, STEPS, Strassen, attached

BLOCKS = 8
"""Register tiles of columns in a block at most."""
TASKS = (1, 2, 4)
"""Parts of the columns for each core, beside all of them."""
PARTS = 16
"""Into so many equal parts pairs of rows are cut at most (4096 rows of 256 by 256: 1.07 to 1.10
times as fast as by 8, whose sums overflow L2)."""
QUARTERS_CYCLES = 9.0
"""Making seven sums of four vectors: seven stores, beside four loads and five additions."""
RESULT_CYCLES = 9.0
"""Making four results of seven vectors: seven loads, eight additions, four stores."""


def strassen_candidates(
    graph: TileGraph,
    found: Strassen,
    registers: list[Tile],
    lanes: int,
    hw: HardwareModel,
    count: int,
) -> list[Candidate]:
    """Plans of the group, best first: `count`, and those that the model does not tell apart from
    the one that is best between other kernels. What would be slower than these even if nothing
    waited for memory is not looked at closer (of DenseNet-121's 417 plans a product one in ten is).
    """
    plans = list(strassen_plans(graph, found, registers, lanes, hw))
    work = [_work(graph, found, plan, hw) for plan in plans]
    kept: list[tuple[float, int, Candidate]] = []
    between_us, slowest_us = inf, inf
    for place in sorted(range(len(plans)), key=lambda place: work[place].least_us):
        if work[place].least_us > max(TOLD_APART * between_us, slowest_us):
            break
        plan = plans[place]
        one = Candidate(plan, _estimate(graph, found, plan, work[place], hw))
        latency_us = one.estimate.latency_us
        kept.append((latency_us, place, one))
        between_us = min(between_us, latency_us + exchange_us(graph, plan, hw))
        if len(kept) >= count:
            slowest_us = sorted(kept)[count - 1][0]
    return [one for _, _, one in sorted(kept)]


def strassen_plans(
    graph: TileGraph, found: Strassen, registers: list[Tile], lanes: int, hw: HardwareModel
) -> Iterator[TilePlan]:
    """For each register tile parts of rows and columns as tasks, and blocks of these, with the sums
    made once or in each."""
    node = graph.nodes[found.product]
    products, rows, columns, steps = node.extents
    for register in registers:
        width, least = register.extents[COLUMNS], register.extents[ROWS]
        parts = [rows // part for part in divisors(rows, PARTS) if rows // part >= least]
        shares = {hw.cores * count for count in TASKS} | {1}
        sides = [columns // share for share in sorted(shares) if columns % (share * width) == 0]
        tasks = [
            (high, side, width * count)
            for high, side in itertools.product(parts, sides)
            for count in divisors(side // width, BLOCKS)
        ]
        for (high, side, block), level in itertools.product(tasks, ("root", "core")):
            held = Tile((products, high, block, steps))
            yield TilePlan(
                rule="strassen",
                anchor=found.product,
                tiles=(
                    LevelTile("core", held.with_extent(COLUMNS, side)),
                    LevelTile("l2", held),
                    LevelTile("register", register),
                ),
                order=(QUARTER, COLUMNS, ROWS, STEPS),
                parallel=int(hw.cores > 1),
                lanes=lanes,
                unroll=register.extents[STEPS],
                attach=attached(found, level),
                prefetch=wants_prefetch(graph, node, held, register),
            )


class _Work(NamedTuple):
    """What a plan has to do, however its data arrive: on so many `cores`, one after another, so
    many `waves` of tasks and `blocks` of columns; the arithmetic of a block's products, its
    results, and all sums of quarters."""

    cores: int
    waves: int
    blocks: int
    compute_us: float
    results_us: float
    quarters_us: float

    @property
    def least_us(self) -> float:
        """The time if the products waited for nothing."""
        return self.blocks * (self.compute_us + self.results_us) + self.quarters_us


def _work(graph: TileGraph, found: Strassen, plan: TilePlan, hw: HardwareModel) -> _Work:
    node, core, held = graph.nodes[found.product], plan.at("core"), plan.at("l2")
    counts = core.counts(node.axes)
    tasks = prod(counts[axis] for axis in node.space)
    cores = min(hw.cores, tasks) if plan.parallel else 1
    waves = ceil(tasks / cores)
    cycles = _product_cycles(graph, node, held, plan.at("register"), plan.lanes, hw)
    return _Work(
        cores,
        waves,
        waves * core.extents[COLUMNS] // held.extents[COLUMNS],
        cycles / hw.clock_ghz / 1e3,
        _results_us(graph, found, plan, cores, hw),
        _quarters_us(graph, found, plan, waves, cores, hw),
    )


_product_cycles = remembered(compute_cycles)
"""Many plans differ in what lies around the products of a block alone."""


def strassen_estimate(
    graph: TileGraph, found: Strassen, plan: TilePlan, hw: HardwareModel
) -> Estimate:
    """Predicted time of such a plan on `hw`."""
    return _estimate(graph, found, plan, _work(graph, found, plan, hw), hw)


def _estimate(
    graph: TileGraph, found: Strassen, plan: TilePlan, work: _Work, hw: HardwareModel
) -> Estimate:
    node, blocks = graph.nodes[found.product], work.blocks
    task = task_estimate(graph, node, plan, plan.at("l2"), hw, work.cores)
    block_us = overlapped_us(task.compute_us, task.memory_us) + task.stall_us + work.results_us
    latency_us = with_cold_weights(graph, node, plan, hw, blocks * block_us) + work.quarters_us
    launch_us = hw.launch_us if plan.parallel else 0.0
    compute_us, memory_us = (blocks * us for us in (task.compute_us, task.memory_us))
    bound = "compute" if compute_us >= memory_us else task.bound
    return Estimate(latency_us + launch_us, compute_us, memory_us, bound, work.quarters_us)


def _results_us(
    graph: TileGraph, found: Strassen, plan: TilePlan, cores: int, hw: HardwareModel
) -> float:
    """Time of writing the products of a block, and of making results of them."""
    core = plan.at("l2")
    written = graph.tensors[graph.nodes[found.last].write.tensor]
    quads = prod(core.extents[axis] for axis in (ROWS, COLUMNS))
    made_bytes = quads * core.extents[QUARTER] * written.dtype_bytes
    near = holding_gbps(hw, made_bytes / USABLE, 1, sharing=cores)
    filled = written_gbps(hw, made_bytes / USABLE, 1, sharing=cores)
    leaving = written_gbps(hw, written.size_bytes, cores) / cores
    cycles = quads / plan.lanes * RESULT_CYCLES + TASK_CYCLES
    memory_ns = made_bytes / near + 4 * quads * written.dtype_bytes / leaving
    results_us = overlapped_us(cycles / hw.clock_ghz / 1e3, memory_ns / 1e3)
    return results_us + made_bytes / filled / 1e3


def _quarters_us(
    graph: TileGraph, found: Strassen, plan: TilePlan, waves: int, cores: int, hw: HardwareModel
) -> float:
    """Time of making the sums of quarters: by all cores, each of which then wants all of them, or
    inside each task."""
    node, product = graph.nodes[found.quarters], graph.nodes[found.product]
    made_bytes = graph.tensors[node.write.tensor].size_bytes
    read_bytes = sum(graph.tensors[t].size_bytes for t in {read.tensor for read in node.reads})
    cycles = prod(node.extents[1:]) / plan.lanes * QUARTERS_CYCLES
    if plan.attach == attached(found, "root"):
        held = (made_bytes + read_bytes) / USABLE
        read, filled = holding_gbps(hw, held, cores), written_gbps(hw, held, cores)
        memory_us = (read_bytes / read + made_bytes / filled) / 1e3
        us = overlapped_us(cycles / cores / hw.clock_ghz / 1e3, memory_us)
        return us + (hw.barrier_us + gathered_us(made_bytes, hw) if cores > 1 else 0.0)
    part = plan.at("core").extents[ROWS] / product.extents[ROWS]
    filled = written_gbps(hw, made_bytes * part / USABLE, 1, sharing=cores)
    read = holding_gbps(hw, read_bytes / USABLE, cores) / cores
    memory_us = part * (made_bytes / filled + read_bytes / read) / 1e3
    return waves * overlapped_us(cycles * part / hw.clock_ghz / 1e3, memory_us)
