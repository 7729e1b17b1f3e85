"""Functions of extents that are not known which cannot be cut into tiles: their loops as they are,
on all cores.

    for b, h, j, d: t[b, h, j, d] = 2 * x[b, j, h, d]        parallel b, h:
    for b, h, j, d: y[b, h, j, d] = select(j < n, t, z)   →      for j, d: y[b, h, j, d] = ..

What they are made of is not read, so TVM itself says what is legal.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_ext.tir.stages import SPACE
from tvm_ext.tvm_api import (
    Call,
    PrimFunc,
    SBlockRV,
    Schedule,
    ScheduleError,
    mark_scheduled,
    schedule_of,
    tirx,
)

TASKS = 2
"""A core has so many at least: what is not known counts as one, and loops further in are left alone
once there are enough, since the place in fused loops costs divisions."""


def write_open(func: PrimFunc, cores: int) -> PrimFunc | None:
    """The function with stages that cost nothing taken into others and outer loops in parallel,
    marked as scheduled; None if TVM takes no such loop."""
    schedule = schedule_of(func)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except ScheduleError:  # of what is written loop by loop
        return None
    left = [block for block in blocks if not _is_inlined(schedule, block)]
    shared = [_is_shared_out(schedule, block, cores) for block in left]
    return mark_scheduled(schedule.mod["main"]) if any(shared) else None


def _is_inlined(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a stage has been taken into those that read it: it moves, compares or adds, and they
    do not sum."""
    found = schedule.get(block)
    value = getattr(found.body, "value", None)
    if value is None or isinstance(value, Call) or found.init is not None:
        return False
    try:
        readers = [schedule.get(reader) for reader in schedule.get_consumers(block)]
        if any(reader.init is not None for reader in readers):
            return False
        schedule.compute_inline(block)
    except ScheduleError:  # of what is a result, or is read by one that cannot take it
        return False
    return True


def _is_shared_out(schedule: Schedule, block: SBlockRV, cores: int) -> bool:
    """Whether the outer loops of a stage are one parallel loop: all but the innermost at most."""
    try:
        loops = schedule.get_loops(block)
        kinds = [variable.iter_type for variable in schedule.get(block).iter_vars]
        space = next((i for i, kind in enumerate(kinds) if kind != SPACE), len(kinds))
        outer = loops[: min(space, len(loops) - 1)] if len(kinds) == len(loops) else []
        known = [_extent(schedule, loop) for loop in outer]
        enough = (i for i in range(1, len(outer)) if prod(known[:i]) >= TASKS * cores)
        outer = outer[: next(enough, len(outer))]
        if not outer:
            return False
        schedule.parallel(schedule.fuse(*outer) if len(outer) > 1 else outer[0])
    except ScheduleError:
        return False
    return True


def _extent(schedule: Schedule, loop: Any) -> int:
    extent = schedule.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else 1
