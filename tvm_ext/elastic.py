"""Kernels for any number of slices from some on: what smaller tiles would do one after another.

    37 rows times a matrix, in tiles of 16, 16, 4 and 1     the matrix is read four times
    one kernel for as many rows as there are                once

Its plan is one for a typical number: what covers all slices there does so for others, what is a
tile of a few stays one. Kernels of it for several numbers are generalised (`tir.generalise`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from msgspec import structs

from tvm_ext.compute.plain_calls import with_vector_maths
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import pick, predict
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import STEAL_FLOPS
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import LevelTile, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tir.generalise import generalised
from tvm_ext.tir.symbolic import Cut, Varying, tile_of
from tvm_ext.tvm_api import PrimFunc, tirx

RULES = ("tile", "rows", "flat")
"""Of plans that may be for any number."""
CANDIDATES = 1000
"""Plans to look among: few have small tiles of slices."""
FAR = 7
"""How many times as many slices the kernel has that shows whether the others tell the truth."""
LOOPLESS = 33
"""Tiles from which on no tail has a loop of its own (`tile.shift.WORTH_A_LOOP`)."""


def elastic(
    func: PrimFunc,
    found: Sequence[Cut],
    typical: int,
    filled: tuple[int, int],
    hardware: HardwareModel,
    preferred: TilePlan | None = None,
) -> Varying | None:
    """A kernel of a function for any number of slices along the last of its cuts that fills a tile
    of its plan, so many slices at least and at most as are to be `filled`; None if no plan is for
    others than the number that it was made for.

    found      its cuts
    typical    what plans are made for; of those the best is taken if half of the last tile is
               missing
    preferred  one that comes before those of the picker, if it is one for any number
    """
    graphs = [_graph(func, found, slices) for slices in (typical, typical + 1)]
    if graphs[0] is None or graphs[1] is None:
        return None
    growth = _growth(graphs[0], graphs[1])
    shared_out = ceil(STEAL_FLOPS * typical / max(graphs[0].flops, 1))
    ranked: list[tuple[float, float, _Grown]] = []
    for candidate in pick(graphs[0], hardware, CANDIDATES):
        grown = _Grown.of(candidate.plan, growth, typical, shared_out)
        if grown is not None and filled[0] <= grown.slices <= filled[1]:
            us = candidate.estimate.latency_us
            ranked.append((us * (1 + grown.slices / 2 / typical), us, grown))
    ranked.sort(key=lambda each: each[0])
    own = preferred and _Grown.of(preferred, growth, typical, shared_out)
    if preferred and own and filled[0] <= own.slices <= filled[1]:
        ranked.insert(0, (0.0, predict(graphs[0], preferred, hardware).latency_us, own))
    made = (_varying(func, found, own, us) for _, us, grown in ranked for own in grown.forms())
    return next((one for one in made if one), None)


def _graph(func: PrimFunc, found: Sequence[Cut], slices: int) -> TileGraph | None:
    prepared = prepare(tile_of(func, found, slices))
    return prepared.graph if prepared else None


def _growth(one: TileGraph, more: TileGraph) -> list[dict[int, int]]:
    """For each stage how many elements a slice has along each axis that grows."""
    return [
        {axis: n - m for axis, (m, n) in enumerate(zip(a.extents, b.extents, strict=True)) if m < n}
        for a, b in zip(one.nodes, more.nodes, strict=True)
    ]


@dataclass(frozen=True)
class _Grown:
    """A plan for some number of slices, as one for any."""

    plan: TilePlan
    growth: Sequence[dict[int, int]]
    typical: int
    tiles: tuple[int, ...]
    """Elements of tiles along what grows that do not cover all, the largest first."""
    unit: int
    """Elements of a slice along that axis."""
    shared_out: int
    """Slices from which on cores help each other, with loops that are others."""

    @property
    def slices(self) -> int:
        """The least number that it is for: fewer do not fill a tile."""
        return -(-max(self.tiles, default=1) // self.unit)

    @classmethod
    def of(
        cls, plan: TilePlan, growth: Sequence[dict[int, int]], typical: int, shared_out: int
    ) -> _Grown | None:
        """None of a plan that is for this number only."""
        if any(part.rule not in RULES for part in plan.parts()):
            return None
        tiles = {
            (entry.tile.extents[axis], unit)
            for part in plan.parts()
            for axis, unit in growth[part.anchor].items()
            for entry in part.tiles
            if entry.tile.extents[axis] > 1
            and (entry.level == "register" or entry.tile.extents[axis] < typical * unit)
        }
        units = {unit for _, unit in tiles}
        if len(units) > 1:
            return None
        sizes = sorted((size for size, _ in tiles), reverse=True)
        return cls(plan, growth, typical, tuple(sizes), next(iter(units), 1), shared_out)

    def forms(self) -> Iterator[_Grown]:
        """It, and where it asks for memory ahead the same without: how much it asks for in a tile
        depends on how many tiles there are."""
        yield self
        first, *rest = (
            structs.replace(part, also=(), prefetch=False, ahead=False)
            for part in self.plan.parts()
        )
        plain = structs.replace(first, also=tuple(rest))
        if plain != self.plan:
            yield replace(self, plan=plain)

    def at(self, slices: int) -> TilePlan:
        """The plan for so many."""
        first, *rest = (self._part(part, slices) for part in self.plan.parts())
        return structs.replace(first, also=tuple(rest))

    def _part(self, part: TilePlan, slices: int) -> TilePlan:
        def grown(entry: LevelTile) -> LevelTile:
            extents = list(entry.tile.extents)
            for axis, unit in self.growth[part.anchor].items():
                if entry.level != "register" and extents[axis] == self.typical * unit:
                    extents[axis] = slices * unit
            return LevelTile(entry.level, Tile(tuple(extents)))

        return structs.replace(part, also=(), tiles=tuple(map(grown, part.tiles)))

    def counts(self, slices: Any) -> tuple[Any, ...]:
        """What numbers in a kernel for so many slices depend on: these, and for each size of tile
        how many they take, the last one perhaps not whole."""
        return slices, *((slices * self.unit + (tile - 1)) // tile for tile in self.tiles)

    def _has_tails(self, slices: int) -> bool:
        return all(slices * self.unit % tile for tile in self.tiles)

    def points(self) -> list[int]:
        """Numbers of slices that tell how kernels depend on all that is counted, each with last
        tiles that are not whole, and one far from them to see that they do; none if there are no
        such."""
        loopless = LOOPLESS * max(self.tiles, default=1) // self.unit
        first = max(FAR, loopless)
        if (FAR + 1) * first >= self.shared_out:  # or cores do not, however many there are
            first = max(first, self.shared_out)
        chosen: list[int] = []
        rank = 0
        for slices in filter(self._has_tails, range(first, 2 * first)):
            basis = np.array([(*self.counts(one), 1) for one in (*chosen, slices)])
            more = int(np.linalg.matrix_rank(basis))
            if more > rank:
                chosen, rank = [*chosen, slices], more
            elif rank == len(self.tiles) + 2:
                far = next(filter(self._has_tails, range(FAR * first, (FAR + 1) * first)))
                return [*chosen, far]
        return []


def _varying(
    func: PrimFunc, found: Sequence[Cut], grown: _Grown, predicted_us: float
) -> Varying | None:
    points = grown.points()
    made = [
        write(with_vector_maths(tile_of(func, found, slices)), grown.at(slices))
        for slices in points
    ]
    symbol = tirx.Var("slices", "int64")
    counts = [grown.counts(slices) for slices in points]
    kernel = generalised(made, counts, grown.counts(symbol)) if made else None
    if kernel is None:
        return None
    return Varying(grown.slices, kernel, symbol, predicted_us / grown.typical)
