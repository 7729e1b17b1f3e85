"""Plans for functions with extents that are not known.

[n, 64, 56, 56] convolved     →   tiles of 4 images, and of one: each has a plan
[n, 768] x [768, 3072]        →   tiles of 256 rows, and for the rest a kernel for any number
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from tvm_ext.elastic import elastic
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.planner import Option, Planned, Task, make_task, plan_task
from tvm_ext.records import Database
from tvm_ext.shield import shield
from tvm_ext.symbolic_attention import plan_attention, typical
from tvm_ext.tir.slices import of_rows, with_slices
from tvm_ext.tir.symbolic import (
    Cut,
    Sized,
    Varying,
    cuts,
    in_tiles,
    symbols,
    tile_of,
)
from tvm_ext.tir.write_open import write_open
from tvm_ext.tvm_api import PrimFunc, written_cycles

GROWTH = 4
"""A tile has so many times the slices of the next smaller one, which does what is left; the largest
is one from which on that does not pay."""
GAIN = 0.95
"""What the time of a slice must come down to for a tile to grow."""
LARGEST = 1024
"""Slices of a tile at most."""
MANY = 16
"""Slices from which on a tile is one of rows rather than of images: what is left of such takes a
kernel for any number of them, since small tiles would read the same weights again and again."""
WIDE, NARROW = (6, 8), (4, 5)
"""Rows of its register tiles: wide ones take less time for many rows, narrow ones are filled by
more numbers of few. Fewer rows still have kernels of their own."""


def plan(
    task: Task, hardware: HardwareModel, database: Database | None = None, *, alone: bool = False
) -> Planned:
    """The kernel for a task, whether or not its extents are known, to run between others of a model
    or `alone`."""
    func = task.original
    if attention := plan_attention(task, hardware, database):
        return attention
    if not symbols(func) or written_cycles(func):
        return plan_task(task, hardware, database, alone=alone)
    tiles = _tiles(func, hardware)
    if not tiles:
        reason = "extents: not known, and what has one place depends on others or on the place"
        return _as_it_is(task, hardware, [reason])
    planned = tiles
    if database is not None or alone:
        planned = {
            size: plan_task(tile.task, hardware, database, alone=alone)
            for size, tile in tiles.items()
        }
    reasons = [f"tile of {size}: {r}" for size, each in planned.items() for r in each.reasons]
    kernels = _kernels(func, planned, hardware, database, reasons)
    chosen = planned[1].option  # what is reported is of one slice
    whole = in_tiles(func, kernels, task.slices)
    return Planned(task, whole, chosen, [Option("none", None)], reasons)


def _as_it_is(task: Task, hardware: HardwareModel, reasons: list[str]) -> Planned:
    """A function without tiles: its loops on all cores where that is legal."""
    with shield("loose plan", reasons):
        func = write_open(task.func, hardware.cores)
        if func is not None:
            rest = [Option("none", None)]
            return Planned(task, of_rows(func, task.slices), Option("loose", None), rest, reasons)
    func = with_slices(task.original, task.slices)
    return Planned(task, func, Option("none", None), [], reasons)


def _kernels(
    func: PrimFunc,
    planned: Mapping[int, Planned],
    hardware: HardwareModel,
    database: Database | None,
    reasons: list[str],
) -> list[Sized | Varying]:
    """Those of all tiles, largest first; or of the largest and, for what is left, some for any
    number of slices and one for each number that fills none of their tiles."""
    found = cuts(func) or ()
    sizes, each_us = list(planned), [each.option.predicted_us for each in planned.values()]

    def varying(filled: tuple[int, int]) -> Varying | None:
        option = planned[sizes[1]].option
        own = option.plan if option.source == "log" else None
        with shield("kernel for any number of slices", reasons):
            return elastic(func, found, sizes[1], filled, hardware, own)
        return None

    if sizes[0] > MANY:
        wide, narrow = map(varying, (WIDE, NARROW))
        if narrow:
            many = [wide._replace(beside=narrow), narrow] if wide else [narrow]
            fewest = max(1, min(ceil(each_us[0] / many[0].slice_us), sizes[0]))
            few = (
                (size, planned.get(size) or plan_task(_tile(func, found, size), hardware, database))
                for size in range(narrow.least - 1, 0, -1)
            )
            largest = Sized(sizes[0], fewest, planned[sizes[0]].func)
            return [largest, *many, *(Sized(size, size, each.func) for size, each in few)]
    least = _least(sizes, each_us)
    return [
        Sized(size, fewest, each.func)
        for (size, each), fewest in zip(planned.items(), least, strict=True)
    ]


def parts(task: Task, hardware: HardwareModel) -> list[Task]:
    """What has plans of its own: the task itself, or its tiles if its extents are not known."""
    if attention := typical(task, hardware):
        return [attention]
    if not symbols(task.original) or written_cycles(task.original):
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
    if MANY <= size < LARGEST:
        tiles[size * GROWTH] = more
    return dict(sorted(tiles.items(), reverse=True))


def _tile(func: PrimFunc, found: tuple[Cut, ...], size: int, name: str = "tile") -> Task:
    """What a tile of so many slices computes."""
    return make_task(tile_of(func, found, size), name)


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
