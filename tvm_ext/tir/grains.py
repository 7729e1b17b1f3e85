"""Tasks small enough to be shared out among cores that are not equally fast (`tvm_steal`).

A plan cuts a function into as many tasks as there are cores, or few more. Here the loops that
follow are taken into the loop over tasks, in their order, so that every core still runs through the
same elements one after another, and others can take over what it is late with:

    parallel for t < 2: for j < 8: for i < 43: ..  →  parallel for u < 16: for i < 43: ..
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ext.tile.classify import is_shared_out
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tvm_api import Schedule

GRAIN_FLOPS = 5e5
"""Least operations of a task, some 5 us: what handing it out costs is then lost in them."""
GRAINS = 16
"""Tasks at which a kernel needs no more."""


def with_grains(schedule: Schedule, task: Any, rest: Sequence[Any], graph: TileGraph) -> Any:
    """The loop over tasks with as many of the loops that follow it as are needed, none if tasks
    are not handed out."""
    tasks = int(schedule.get(task).extent)
    for loop in rest if is_shared_out(graph) else ():
        finer = tasks * int(schedule.get(loop).extent)
        if tasks >= GRAINS or graph.flops < finer * GRAIN_FLOPS:
            break
        task, tasks = schedule.fuse(task, loop), finer
    return task
