"""The time of groups that touch each byte once: element-wise ones, and chains of reductions."""

from __future__ import annotations

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.perf import USABLE, Estimate
from tvm_ext.picker.traffic import holding_gbps
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.infer import propagate
from tvm_ext.tile.plan import TilePlan


def streaming(graph: TileGraph, hw: HardwareModel, lanes: int, cores: int) -> Estimate:
    """Time of a group that touches each byte once: arithmetic against the level that holds it."""
    total = graph.io_bytes
    source = next((x for x in hw.levels[1:] if total <= x.size_bytes * cores), hw.levels[-1])
    memory_us = total / (holding_gbps(hw, total, cores) * 1e3)
    per_core = hw.peak_gflops.get("float32", 1.0) * lanes / max(1, hw.lanes(4)) / 2
    compute_us = graph.flops / (per_core * cores * 1e3)
    launch = hw.launch_us if cores > 1 else 0.0
    bound = "compute" if compute_us > memory_us else source.name
    return Estimate(max(compute_us, memory_us) + launch, compute_us, memory_us, bound)


def row_by_row(graph: TileGraph, hw: HardwareModel, plan: TilePlan) -> Estimate:
    """Time of a group whose stages are computed for one row after another: what lies between them
    is written and read in the caches that hold a row of it."""
    cores = hw.cores if plan.parallel else 1
    whole = streaming(graph, hw, plan.lanes, cores)
    tiles = propagate(graph, plan.anchor, plan.at("core"))
    inner = {i: graph.tensors[graph.nodes[i].write.tensor] for i in tiles if i != plan.anchor}
    row_bytes = sum(tiles[i].points * tensor.dtype_bytes for i, tensor in inner.items())
    if not row_bytes:
        return whole
    between = 2 * sum(tensor.size_bytes for tensor in inner.values())
    rate = holding_gbps(hw, row_bytes / USABLE, 1, sharing=cores) * cores
    memory_us = whole.memory_us + between / (rate * 1e3)
    launch_us = hw.launch_us if cores > 1 else 0.0
    latency_us = max(whole.compute_us, memory_us) + launch_us
    bound = "compute" if whole.compute_us > memory_us else whole.bound
    return Estimate(latency_us, whole.compute_us, memory_us, bound)
