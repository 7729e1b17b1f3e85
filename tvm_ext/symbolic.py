"""Plans for functions with extents that are not known: a plan for each of a few sizes of tile.

[n, 768] x [768, 3072]   →   tiles of 64 rows, of 16, of 4, of one; each has a plan
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.planner import Option, Planned, Task, make_task, plan_task
from tvm_ext.records import Database
from tvm_ext.tir.symbolic import Cut, Sized, cuts, in_tiles, instance, symbols
from tvm_ext.tvm_api import PrimFunc

GROWTH = 4
"""A tile has so many times the slices of the next smaller one, which does what is left; the largest
is one from which on that does not pay."""
GAIN = 0.95
"""What the time of a slice must come down to for a tile to grow."""
LARGEST = 1024
"""Slices of a tile at most."""


def plan(task: Task, hardware: HardwareModel, database: Database | None = None) -> Planned:
    """The kernel for a task, to run between others of a model, whether or not its extents are
    known."""
    func = task.original
    if not symbols(func):
        return plan_task(task, hardware, database)
    found = cuts(func)
    if found is None:
        reason = "extents: not known, and what has one place depends on others or on the place"
        return Planned(task, func, Option("none", None), [], [reason])
    largest = _largest(func, found, hardware, database)
    sizes = list(_sizes(largest))
    tiles = [_tile(func, found, size, hardware, database) for size in sizes]
    least = _least(sizes, [tile.option.predicted_us for tile in tiles])
    kernels = [Sized(s, m, tile.func) for s, m, tile in zip(sizes, least, tiles, strict=True)]
    reasons = [f"tile of {s}: {r}" for s, t in zip(sizes, tiles, strict=True) for r in t.reasons]
    chosen = tiles[0].option
    return Planned(task, in_tiles(func, kernels), chosen, [Option("none", None)], reasons)


def _tile(
    func: PrimFunc,
    found: tuple[Cut, ...],
    size: int,
    hardware: HardwareModel,
    database: Database | None,
) -> Planned:
    """The kernel for a tile of so many slices."""
    sizes = {symbol: 1 for cut in found for symbol in cut.symbols} | found[-1].sizes(size)
    tile = instance(func, sizes)
    assert tile is not None  # what has cuts has instances
    return plan_task(make_task(tile, "tile"), hardware, database)


def _largest(
    func: PrimFunc, found: tuple[Cut, ...], hardware: HardwareModel, database: Database | None
) -> int:
    """The size of tile from which on larger ones take no less time a slice."""
    size, best_us = 1, _tile(func, found, 1, hardware, database).option.predicted_us
    while size * GROWTH <= LARGEST:
        more = _tile(func, found, size * GROWTH, hardware, database)
        if more.option.predicted_us > GAIN * GROWTH * best_us:
            break
        size, best_us = size * GROWTH, more.option.predicted_us
    return size


def _sizes(largest: int) -> Iterator[int]:
    """The largest tile, smaller ones, and a single slice."""
    while largest > 1:
        yield largest
        largest //= GROWTH
    yield 1


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
