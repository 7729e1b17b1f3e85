"""Plans for functions with extents that are not known: a plan for each of a few sizes of tile.

[n, 768] x [768, 3072]   →   tiles of 64 rows, of 16, of 4, of one; each has a plan
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.planner import Option, Planned, Task, make_task, plan_task
from tvm_ext.records import Database
from tvm_ext.symbolic_attention import plan_attention, typical
from tvm_ext.tir.slices import with_slices
from tvm_ext.tir.symbolic import Cut, Sized, cuts, in_tiles, instance, symbols
from tvm_ext.tvm_api import PrimFunc

GROWTH = 4
"""A tile has so many times the slices of the next smaller one, which does what is left; the largest
is one from which on that does not pay."""
GAIN = 0.95
"""What the time of a slice must come down to for a tile to grow."""
LARGEST = 1024
"""Slices of a tile at most."""


def plan(
    task: Task, hardware: HardwareModel, database: Database | None = None, *, alone: bool = False
) -> Planned:
    """The kernel for a task, whether or not its extents are known, to run between others of a model
    or `alone`."""
    func = task.original
    if attention := plan_attention(task, hardware, database, alone=alone):
        return attention
    if not symbols(func):
        return plan_task(task, hardware, database, alone=alone)
    tiles = _tiles(func, hardware)
    if not tiles:
        reason = "extents: not known, and what has one place depends on others or on the place"
        return Planned(task, with_slices(func, task.slices), Option("none", None), [], [reason])
    planned = tiles
    if database is not None or alone:
        planned = {
            size: plan_task(tile.task, hardware, database, alone=alone)
            for size, tile in tiles.items()
        }
    least = _least(list(tiles), [each.option.predicted_us for each in planned.values()])
    kernels = [
        Sized(size, fewest, each.func)
        for (size, each), fewest in zip(planned.items(), least, strict=True)
    ]
    reasons = [f"tile of {size}: {r}" for size, each in planned.items() for r in each.reasons]
    chosen = planned[1].option  # what is reported is of one slice
    whole = in_tiles(func, kernels, task.slices)
    return Planned(task, whole, chosen, [Option("none", None)], reasons)


def parts(task: Task, hardware: HardwareModel) -> list[Task]:
    """What has plans of its own: the task itself, or its tiles if its extents are not known."""
    if attention := typical(task, hardware):
        return [attention]
    if not symbols(task.original):
        return [task]
    return [tile.task for tile in _tiles(task.original, hardware, task.name).values()]


def _tiles(func: PrimFunc, hardware: HardwareModel, name: str = "tile") -> dict[int, Planned]:
    """The picker's kernels by the slices of a tile, from that size down of which larger ones take
    no less time a slice; none if the function cannot be cut."""
    found = cuts(func)
    if found is None:
        return {}
    size, tiles = 1, {1: plan_task(_tile(func, found, 1, name), hardware)}
    while size * GROWTH <= LARGEST:
        more = plan_task(_tile(func, found, size * GROWTH, name), hardware)
        if more.option.predicted_us > GAIN * GROWTH * tiles[size].option.predicted_us:
            break
        size *= GROWTH
        tiles[size] = more
    return dict(sorted(tiles.items(), reverse=True))


def _tile(func: PrimFunc, found: tuple[Cut, ...], size: int, name: str) -> Task:
    """What a tile of so many slices computes."""
    sizes = {symbol: 1 for cut in found for symbol in cut.symbols} | found[-1].sizes(size)
    tile = instance(func, sizes)
    assert tile is not None  # what has cuts has instances
    return make_task(tile, name)


def _least(sizes: Sequence[int], each_us: Sequence[float]) -> list[int]:
    """For each size of tile, the largest first, the least number of slices left that one more such
    tile does in less time than smaller ones."""
    found: list[int] = []
    rest_us = [0.0] * sizes[0]
    """Of so many slices by the tiles seen so far, the smallest first."""
    for size, us in zip(reversed(sizes), reversed(each_us), strict=True):
        least = next((left for left in range(1, size) if us <= rest_us[left]), size)
        found.append(least)
        rest_us = [
            count // size * us + (us if count % size >= least else rest_us[count % size])
            for count in range(sizes[0])
        ]
    return found[::-1]
