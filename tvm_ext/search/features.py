"""Features of a plan: what the learned cost model sees, one row for each piece that has a plan.

All is worked out from the tile graph, the plan and the hardware model, without TVM: thousands of
plans a second. Quantities of a machine enter as ratios, so that records of one machine say
something about another. Counts and bytes are on a logarithmic scale, `slog` below.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil, log2, prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chunk import at_once, chunk_count
from tvm_ext.tile.classify import slides, vector_axis, whole_reduction
from tvm_ext.tile.footprint import access_bytes, touched
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.infer import region
from tvm_ext.tile.nest import Nest
from tvm_ext.tile.plan import TilePlan

FEATURES: dict[str, str] = {
    "reduce": "1 if the stage that is tiled, the anchor, is a reduction, 0 for a map",
    "points": "slog of its iterations",
    "flops_per_point": "floating-point operations of one iteration, as slog",
    "write_bytes": "slog of the bytes of what it writes",
    "share": "part of the group's operations that are its",
    "before_core": "stages before it that are computed inside its core tile",
    "before_register": "stages before it that are computed where they are read",
    "before_apart": "stages before it that are computed first, as a whole",
    "before_points": "slog of the iterations of the largest stage before it",
    "intensity": "operations of the group for each byte in and out, over the machine's, as slog",
    "io_in_l2": "slog of the group's bytes over all second-level caches",
    "io_in_last": "slog of the group's bytes over the last cache",
    "rule": "number of the plan's rule in `RULES`",
    "lanes": "part of the widest vector that is used",
    "parallel": "1 if tasks are shared out over the cores",
    "tasks": "slog of the number of core tiles",
    "idle": "part of the cores' time that whole waves of tasks leave idle",
    "core_tails": "part of the iterations of full core tiles that lie outside the axes",
    "register_tails": "the same for register tiles in a core tile",
    "cut_vectors": "1 if the register tile holds vectors that are not whole",
    "width": "vectors of the register tile side by side",
    "height": "slog of its rows",
    "accumulators": "vectors of results over the registers of the machine",
    "spilled": "vectors of results and operands beyond the registers, over them",
    "unroll": "slog of the iterations of the reduction in one loop body",
    "taps": "slog of the taps of a window in one loop body",
    "taps_inner": "1 if the innermost loop of the reduction goes over taps",
    "body": "slog of the vector operations in one loop body",
    "loads": "loads for each vector multiply-add of the register tile",
    "chains": "multiply-adds in flight over those the machine needs to hide their latency",
    "sweeps": "slog of the passes of the reduction over a register tile",
    "chunks": "slog of the chunks that the reduction is cut into",
    "panel_in_l1": "slog of what one register tile reads over the first cache",
    "core_in_l1": "slog of what one core tile touches over the first cache",
    "core_in_l2": "the same over the second cache",
    "core_in_last": "the same over the last cache, shared by the cores",
    "l1_time": "time of what goes into the first cache over the roofline's time, as slog",
    "l2_time": "the same for the second cache",
    "last_time": "the same for the last cache",
    "crowded": "part of that traffic in short rows, times what overfills their sets",
    "write_run": "slog of the bytes of a core tile written side by side",
    "read_run": "slog of the bytes a register tile reads side by side in vectors",
    "row_step": "slog of the bytes between rows of the register tile in what is read element-wise",
    "inner_axis": "slog of the register tiles along the innermost space loop",
    "inner_reuse": "part of the reads that stay in place along that loop",
    "outer_reuse": "part of the reads that stay in place along the outermost loop",
    "prefetch": "1 if panels are asked for ahead",
    "ahead": "1 if the data of what comes next is asked for ahead",
    "staged": "slog of the bytes copied side by side for one core tile",
    "predicted": "the performance model's time over the roofline's, as slog",
    "predicted_compute": "its time of arithmetic over the roofline's, as slog",
    "predicted_memory": "its time of traffic over the roofline's, as slog",
    "predicted_aside": "its time of stages before the anchor, masks and copies, likewise",
}
"""Every feature with its meaning; none has a unit but where it says bytes."""

RULES = (
    *("tile", "chain", "rows", "split", "flat", "loose", "attention"),
    *("block", "block_rows", "block_flat", "block_loose"),
    "strassen",
)
_PLACE = {name: place for place, name in enumerate(FEATURES)}


class Estimate(Protocol):
    """What the performance model says of a plan."""

    @property
    def latency_us(self) -> float: ...
    @property
    def compute_us(self) -> float: ...
    @property
    def memory_us(self) -> float: ...
    @property
    def aside_us(self) -> float: ...


Predict = Callable[[TileGraph, TilePlan], Estimate]
Rows = NDArray[np.float32]


def slog(value: float) -> float:
    """log2(1 + value), with the sign of the value."""
    return log2(1 + value) if value >= 0 else -log2(1 - value)


def ratio(value: float) -> float:
    """log2 of a ratio, no lower than that of 2^-12."""
    return log2(max(value, 2.0**-12))


class Features:
    """Rows of features of plans of one group (of one piece: see `tile.cut`) on one machine."""

    def __init__(self, graph: TileGraph, hardware: HardwareModel) -> None:
        self._graph = graph
        self._hw = hardware
        caches = hardware.levels[1:-1]
        dram = hardware.levels[-1]
        gbps = dram.total_gbps or dram.gbps * hardware.cores
        gflops = hardware.peak_gflops.get("float32", 1.0) * hardware.cores
        flops, size = max(1.0, graph.flops), max(1, graph.io_bytes)
        self._roof_us = max(flops / gflops, size / gbps) / 1e3
        self._static = [self._of_stage(node) for node in graph.nodes]
        self._group = {
            "intensity": ratio(flops / size / (gflops / gbps)),
            "io_in_l2": ratio(size / (caches[min(1, len(caches) - 1)].size_bytes * hardware.cores)),
            "io_in_last": ratio(size / caches[-1].size_bytes),
        }

    def rows(self, plan: TilePlan, estimate: Estimate) -> Rows:
        """The plan's row, float32; `estimate` is what the performance model says of it.

        Ansor has a row for each stage and adds their scores up. Here what another stage costs
        hangs on the anchor's tile that it is in, which a sum cannot say: with one row for all 86 %
        of pairs are in order where it was 85 (2381 random plans of 30 operators).
        """
        row = {
            **self._group,
            **self._static[plan.anchor],
            **self._before(plan),
            "rule": float(RULES.index(plan.rule)) if plan.rule in RULES else -1.0,
            "lanes": plan.lanes / self._hw.lanes(4),
            "parallel": float(plan.parallel > 0),
            "prefetch": float(plan.prefetch),
            "ahead": float(plan.ahead),
            "predicted": ratio(estimate.latency_us / self._roof_us),
            "predicted_compute": ratio(estimate.compute_us / self._roof_us),
            "predicted_memory": ratio(estimate.memory_us / self._roof_us),
            "predicted_aside": ratio(estimate.aside_us / self._roof_us),
            **self._of_anchor(plan),
        }
        found = np.zeros((1, len(FEATURES)), np.float32)
        for name, value in row.items():
            found[0, _PLACE[name]] = value
        return found

    def _before(self, plan: TilePlan) -> dict[str, float]:
        """Where the stages before the anchor are computed."""
        levels = {entry.stage: entry.level for entry in plan.attach}
        before = range(plan.anchor)
        inside = [levels.get(stage) for stage in before]
        points = [prod(self._graph.nodes[stage].extents) for stage in before]
        core, register = inside.count("core"), inside.count("register")
        return {
            "before_core": float(core),
            "before_register": float(register),
            "before_apart": float(plan.anchor - core - register),
            "before_points": slog(max(points, default=0)),
        }

    def _of_stage(self, node: TileNode) -> dict[str, float]:
        """What does not depend on the plan."""
        written = self._graph.tensors[node.write.tensor]
        return {
            "reduce": float(node.kind == "reduce"),
            "points": slog(prod(node.extents)),
            "flops_per_point": slog(node.flops_per_point),
            "write_bytes": slog(written.size_bytes),
            "share": node.flops / max(1.0, self._graph.flops),
        }

    def _of_anchor(self, plan: TilePlan) -> dict[str, float]:
        node, hw = self._graph.nodes[plan.anchor], self._hw
        core = next((entry.tile for entry in plan.tiles if entry.level == "core"), None)
        if core is None or len(core.extents) != len(node.axes):
            return {}
        tasks = prod(core.counts(node.axes)[axis] for axis in node.space)
        waves = ceil(tasks / hw.cores)
        held = sum(
            access_bytes(self._graph, access, at_once(node, plan, core), hw.levels[1].line_bytes)
            for access in (*node.reads, node.write)
        )
        row = {
            "tasks": slog(tasks),
            "idle": 1 - tasks / (waves * hw.cores) if plan.parallel else 1 - 1 / hw.cores,
            "core_tails": core.waste(node.axes),
            "core_in_l1": ratio(held / hw.levels[1].size_bytes),
            "core_in_l2": ratio(held / hw.levels[min(2, len(hw.levels) - 2)].size_bytes),
            "core_in_last": ratio(held * hw.cores / hw.levels[-2].size_bytes),
            "write_run": slog(self._run_bytes(node, core)),
        }
        register = next((entry.tile for entry in plan.tiles if entry.level == "register"), None)
        if register is not None:
            row |= self._of_register(node, core, register, plan)
            row |= self._of_nest(node, core, plan, waves)
        return row

    def _of_register(
        self, node: TileNode, core: Tile, register: Tile, plan: TilePlan
    ) -> dict[str, float]:
        graph, hw = self._graph, self._hw
        vector = vector_axis(node)
        across = register.extents[vector] if vector is not None else 1
        width = ceil(across / plan.lanes)
        points = prod(register.extents[axis] for axis in node.space)
        height = points // max(1, across)
        unroll = prod(register.extents[axis] for axis in node.reduce)
        taps = prod(register.extents[axis] for axis in node.reduce if slides(node, axis))
        inner = next((axis for axis in reversed(plan.order) if axis in node.reduce), None)
        results = width * height
        whole = whole_reduction(node, core).extents
        covered = prod(ceil(w / r) * r for w, r in zip(whole, register.extents, strict=True))
        loads, panel, read_run, row_step = 0.0, 0, 0.0, 0.0
        for access in node.reads:
            tensor = graph.tensors[access.tensor]
            box = touched(access, register, tensor.shape)
            in_vectors = vector is not None and access.stride(vector, tensor.shape) == 1
            loads += prod(box) / (plan.lanes if in_vectors else 1)
            panel += access_bytes(graph, access, at_once(node, plan, register), 64)
            if in_vectors:
                read_run = max(read_run, slog(box[-1] * tensor.dtype_bytes))
            else:
                steps = [access.stride(axis, tensor.shape) or 0 for axis in node.space]
                rows = [
                    s
                    for s, axis in zip(steps, node.space, strict=True)
                    if register.extents[axis] > 1 and axis != vector
                ]
                row_step = max(row_step, slog(max(rows, default=0) * tensor.dtype_bytes))
        needed = hw.fma_latency_cycles * hw.fma_per_cycle
        return {
            "register_tails": 1 - prod(whole) / covered,
            "cut_vectors": float(across % plan.lanes != 0),
            "width": float(width),
            "height": slog(height),
            "accumulators": results / hw.vector_registers,
            "spilled": max(0, results + width + 1 - hw.vector_registers) / hw.vector_registers,
            "unroll": slog(unroll),
            "taps": slog(taps),
            "taps_inner": float(inner is not None and slides(node, inner)),
            "body": slog(results * unroll),
            "loads": loads / max(1, results * unroll),
            "chains": min(4.0, results / needed),
            "sweeps": slog(
                prod(ceil(node.axes[axis].extent / register.extents[axis]) for axis in node.reduce)
            ),
            "chunks": slog(chunk_count(node, plan)),
            "panel_in_l1": ratio(panel / hw.levels[1].size_bytes),
            "read_run": read_run,
            "row_step": row_step,
        }

    def _of_nest(self, node: TileNode, core: Tile, plan: TilePlan, waves: int) -> dict[str, float]:
        """Traffic of the loops around the register tile, and what stays in place along them."""
        hw, register = self._hw, plan.at("register")
        nest = Nest(self._graph, node, plan, core, hw.levels[1].line_bytes)
        row: dict[str, float] = {}
        shares = []
        names = ("l1_time", "l2_time", "last_time")
        for name, (level, source) in zip(names, pairwise(hw.levels[1:]), strict=False):
            moved, crowded = nest.bytes_into(level.size_bytes * 0.8)
            time_us = waves * moved / source.gbps / 1e3
            row[name] = ratio(time_us / self._roof_us)
            shares.append(crowded / max(1.0, moved))
        loops = [
            axis
            for axis in plan.order
            if axis in node.space and core.extents[axis] > register.extents[axis]
        ]
        staged = 0
        for place in plan.staged:
            tensor = self._graph.tensors[node.reads[place].tensor]
            panel = region(node.reads[place], whole_reduction(node, core), tensor.shape)
            staged += prod(panel) * tensor.dtype_bytes
        row["crowded"] = max(shares)
        row["staged"] = slog(staged)
        if loops:
            row["inner_axis"] = slog(core.extents[loops[-1]] / register.extents[loops[-1]])
            row["inner_reuse"] = _in_place(node, loops[-1])
            row["outer_reuse"] = _in_place(node, loops[0])
        return row

    def _run_bytes(self, node: TileNode, tile: Tile) -> int:
        run = self._graph.tensors[node.write.tensor].dtype_bytes
        for axis in reversed(node.space):
            run *= tile.extents[axis]
            if tile.extents[axis] < node.axes[axis].extent:
                break
        return run


def _in_place(node: TileNode, axis: int) -> float:
    reads = max(1, len(node.reads))
    return sum(not access.uses(axis) for access in node.reads) / reads
