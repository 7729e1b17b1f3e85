"""Where what is handed on lies until it is read: the memory level of every edge of a model's tile
graph, inside its kernels by their plans, between them by what is touched in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from tvm_ext.errors import PlanError
from tvm_ext.graph.steps import INPUT, steps
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.traffic import holding_level
from tvm_ext.records.manifest import Read, Stage, Step
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.held import held
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import IRModule

REGISTER = "register"


def stage_levels(
    graph: TileGraph | None, plan: TilePlan | None, hw: HardwareModel
) -> tuple[Stage, ...]:
    """The stages of a kernel with the levels of their results; none for what has no plan."""
    if graph is None or plan is None:
        return ()
    try:
        found = held(graph, plan, hw.kind)
    except (KeyError, PlanError):
        return ()
    cores = hw.cores if plan.parallel else 1
    stages = []
    for node, own in zip(graph.nodes, found, strict=True):
        level = ""
        if own is not None and not own.size_bytes:
            level = REGISTER
        elif own is not None:
            sharing = 0 if own.apart else cores
            level = holding_level(hw, own.size_bytes, cores if own.apart else 1, sharing).name
        stages.append(Stage(node.name, level, graph.tensors[node.write.tensor].size_bytes))
    return tuple(stages)


def step_levels(mod: IRModule, io_bytes: Mapping[str, int], hw: HardwareModel) -> tuple[Step, ...]:
    """The calls of a model's kernels with the levels of what they read; `io_bytes` are those of a
    call of each kernel."""
    calls = steps(mod)
    touched = [0, *accumulate(io_bytes.get(call.kernel, 0) for call in calls)]

    def read(source: int, size: int, number: int) -> Read:
        """By its bytes and what is touched between the call that makes it and the one that reads
        it."""
        since = size + touched[number] - touched[source + 1]
        known = source != INPUT
        level = holding_level(hw, since, hw.cores) if known else hw.levels[-1]
        return Read(source, size, level.name)

    return tuple(
        Step(call.kernel, tuple(read(source, size, number) for source, size in call.reads))
        for number, call in enumerate(calls)
    )
