"""Random legal plans: what the picker's first choice is held against.

Extents are drawn so that every order of magnitude is as likely as another; a plan counts as legal
if `tir.write` accepts it. Nothing here knows the hardware beyond its vector width.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import prod

from tvm_ext.errors import PlanError
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import is_flat, packed_reads, producers, stageable, vector_axis
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc

DRAWS_PER_PLAN = 50  # draws before an operator is taken to have no more plans
MAX_WIDTH = 4  # vectors side by side in a register tile
MAX_ROWS = 16
MAX_UNROLL = 16

Draw = Callable[[], TilePlan]


def random_plans(
    func: PrimFunc, graph: TileGraph, first: TilePlan, lanes: int, count: int, seed: int
) -> Iterator[tuple[TilePlan, PrimFunc]]:
    """Up to `count` distinct legal plans of `func`, each with its scheduled function.

    first  the picker's plan: the random ones tile the same stage, and keep the same stage in
           registers
    lanes  elements in the widest vector
    """
    dice = Dice(graph, first, lanes, random.Random(seed))
    draws = dice.rules()
    seen: set[TilePlan] = set()
    found = 0
    for turn in range(count * DRAWS_PER_PLAN if draws else 0):
        plan = draws[turn % len(draws)]()
        if plan in seen:
            continue
        seen.add(plan)
        try:
            scheduled = write(func, plan)
        except PlanError:
            continue
        yield plan, scheduled
        found += 1
        if found == count:
            return


class Dice:
    """Draws plans of one group."""

    def __init__(
        self, graph: TileGraph, first: TilePlan, lanes: int, source: random.Random
    ) -> None:
        self._graph = graph
        self._anchor = first.anchor
        self._kept = tuple(entry for entry in first.attach if entry.stage > first.anchor)
        self._lanes = lanes
        self._random = source

    def rules(self) -> list[Draw]:
        """The rules that could lower the group."""
        node = self._graph.nodes[self._anchor]
        found: list[Draw] = []
        if node.space:
            found.append(self.tile)
        if is_flat(self._graph, node):
            found.append(self.flat)
        if any(other.kind == "reduce" for other in self._graph.nodes):
            found.append(self.rows)
        return found

    def tile(self) -> TilePlan:
        """Register tiles, core tiles of whole register tiles, any order, any vector width."""
        node = self._graph.nodes[self._anchor]
        vector = vector_axis(node)
        lanes = self._width()
        register: list[int] = []
        core: list[int] = []
        for axis, entry in enumerate(node.axes):
            if entry.kind == "reduce":
                divisors = [n for n in range(1, MAX_UNROLL + 1) if entry.extent % n == 0]
                register.append(self._random.choice([1, *divisors]))
                core.append(entry.extent)
                continue
            if axis == vector:
                size = lanes * self._random.randint(1, MAX_WIDTH)
            else:
                size = self._log_uniform(min(MAX_ROWS, entry.extent))
            register.append(min(size, entry.extent))
            tiles = entry.extent // register[-1]
            whole = self._random.random() < 0.5
            core.append(entry.extent if whole else register[-1] * self._log_uniform(tiles))
        order = [*self._shuffled(node.space), *self._shuffled(node.reduce)]
        counts = Tile(tuple(core)).counts(node.axes)
        cut = [place for place, axis in enumerate(order[: len(node.space)]) if counts[axis] > 1]
        levels = ["root", "register", *(["core"] if cut else [])]
        before = [(s, self._random.choice(levels)) for s in producers(self._graph, self._anchor)]
        tiles = (LevelTile("core", Tile(tuple(core))), LevelTile("register", Tile(tuple(register))))
        side_by_side = stageable(self._graph, node, tiles[0].tile, tiles[1].tile) if cut else ()
        return TilePlan(
            rule="tile",
            anchor=self._anchor,
            tiles=tiles,
            order=tuple(order),
            parallel=cut[-1] + 1 if cut else 0,
            lanes=lanes,
            unroll=prod(register[axis] for axis in node.reduce),
            attach=(
                *self._kept,
                *(Attach(stage, level) for stage, level in before if level != "root"),
            ),
            prefetch=bool(packed_reads(node)) and self._random.random() < 0.5,
            staged=side_by_side if self._random.random() < 0.5 else (),
        )

    def flat(self) -> TilePlan:
        """A contiguous box: ones, one axis cut anywhere, whole axes."""
        axes = self._graph.nodes[self._anchor].axes
        cut = self._random.randrange(len(axes))
        size = self._log_uniform(axes[cut].extent)
        box = (*(1,) * cut, size, *(axis.extent for axis in axes[cut + 1 :]))
        return TilePlan(
            rule="flat",
            anchor=self._anchor,
            tiles=(LevelTile("core", Tile(box)),),
            order=tuple(range(len(axes))),
            parallel=self._random.randint(0, 1),
            lanes=self._width(),
        )

    def rows(self) -> TilePlan:
        """Any number of leading axes as rows, all stages on a row."""
        anchor = len(self._graph.nodes) - 1
        node = self._graph.nodes[anchor]
        rows = self._random.randint(0, len(node.space))
        box = tuple(1 if i in node.space[:rows] else a.extent for i, a in enumerate(node.axes))
        return TilePlan(
            rule="rows",
            anchor=anchor,
            tiles=(LevelTile("core", Tile(box)),),
            order=tuple(range(len(node.axes))),
            parallel=self._random.choice([0, rows]),
            lanes=self._width(),
            attach=tuple(Attach(stage, "core") for stage in range(anchor)),
        )

    def _width(self) -> int:
        """A whole vector most often; narrower ones are seldom right."""
        return max(1, self._lanes // self._random.choice([1, 1, 1, 1, 2, 4]))

    def _log_uniform(self, limit: int) -> int:
        """1 to `limit`, each order of magnitude as likely as another."""
        return max(1, min(limit, int((limit + 1) ** self._random.random())))

    def _shuffled(self, axes: tuple[int, ...]) -> list[int]:
        return self._random.sample(axes, len(axes))
