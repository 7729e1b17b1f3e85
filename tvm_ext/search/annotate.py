"""Annotation: the holes of a sketch filled at random (Ansor §4.2).

Extents are drawn so that every order of magnitude is as likely as another. Nothing here knows the
machine beyond its vector width; legality is `tile.legal`'s business.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod

from tvm_ext.search.blocks import drawn
from tvm_ext.search.sketch import Sketch
from tvm_ext.tile.amx import INSTRUCTION as AMX
from tvm_ext.tile.amx import SIDE, dot_axis, row_axes
from tvm_ext.tile.attention import COLUMN, ROW, attention_stages, of_queries
from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.chain import INSIDE, PHASES
from tvm_ext.tile.chunk import chunks, with_chunk
from tvm_ext.tile.classify import (
    loops_in_use,
    packed_reads,
    split_axis,
    stageable,
    vector_axis,
)
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.strassen import COLUMNS, QUARTER, ROWS, STEPS, fitted

MAX_WIDTH = 4
"""Vectors side by side in a register tile."""
MAX_ROWS = 16
MAX_UNROLL = 16
IN_CHUNKS = 0.3
"""Part of the plans with a long reduction that take it in chunks."""
AHEAD = 0.25
"""Part of the plans whose reductions ask for what the next epilogue reads and writes: it seldom
pays."""
DRAWS_PER_PLAN = 50
"""Draws after which a sketch is taken to have no more legal plans."""


class Annotator:
    """Draws plans of one group of one sketch. `lanes`: elements in the widest vector."""

    def __init__(self, graph: TileGraph, lanes: int, source: random.Random) -> None:
        self.graph = graph
        self.lanes = lanes
        self._random = source

    def plans(self, sketch: Sketch, count: int) -> Iterator[TilePlan]:
        """Up to `count` distinct legal plans of the sketch."""
        seen: set[TilePlan] = set()
        for _ in range(count * DRAWS_PER_PLAN):
            plan = self.draw(sketch)
            if plan in seen:
                continue
            seen.add(plan)
            if not is_legal(self.graph, plan, self.lanes):
                continue
            yield plan
            count -= 1
            if not count:
                return

    def draw(self, sketch: Sketch) -> TilePlan:
        """One plan, legal or not."""
        node = self.graph.nodes[sketch.anchor]
        match sketch.rule:
            case "tile":
                return self._tile(sketch, node)
            case "block":
                return drawn(self.graph, sketch.anchor, sketch.attach, self._random)
            case "chain":
                return self._chain(sketch, node)
            case "strassen":
                return self._strassen(sketch, node)
            case "attention":
                return self._attention(sketch, node)
            case "rows":
                rows = self._random.randint(0, len(node.space))
                box = row_box(node, rows)
                return self._whole(sketch, node, box, self._random.choice([0, rows]))
            case "split":
                cuts = list(node.extents)
                if (axis := split_axis(node)) is not None:
                    cuts[axis] = self._random.choice(divisors(cuts[axis]))
                return self._whole(sketch, node, tuple(cuts), 1)
            case _:
                cut = self._random.randrange(len(node.axes))
                size = self._log_uniform(node.axes[cut].extent)
                box = (*(1,) * cut, size, *node.extents[cut + 1 :])
                return self._whole(sketch, node, box, self._random.randint(0, 1))

    def _whole(
        self, sketch: Sketch, node: TileNode, box: tuple[int, ...], parallel: int
    ) -> TilePlan:
        """A plan with core tiles only."""
        return TilePlan(
            rule=sketch.rule,
            anchor=sketch.anchor,
            tiles=(LevelTile("core", Tile(box)),),
            order=tuple(range(len(node.axes))),
            parallel=parallel,
            lanes=self._width(),
            attach=sketch.attach,
        )

    def _tile(self, sketch: Sketch, node: TileNode) -> TilePlan:
        """Register tiles, core tiles of whole register tiles, any order, any place of stages."""
        vector = vector_axis(node)
        unit = sketch.instruction == AMX
        lanes = self.lanes if unit else self._width()
        if vector is not None:
            lanes = min(lanes, node.axes[vector].extent)
        register, core = self._extents(node, vector, lanes, unit=unit)
        order = (*self._shuffled(node.space), *self._shuffled(node.reduce))
        parallel = loops_in_use(node, core, order)
        levels = ["root", "register", *(["core"] if parallel else [])]
        places = [(stage, self._random.choice(levels)) for stage in sketch.movable]
        side_by_side = stageable(self.graph, node, core, register) if parallel else ()
        plan = TilePlan(
            rule="tile",
            anchor=sketch.anchor,
            tiles=(LevelTile("core", core), LevelTile("register", register)),
            order=order,
            parallel=parallel,
            lanes=lanes,
            unroll=prod(register.extents[axis] for axis in node.reduce),
            attach=(
                *sketch.attach,
                *(Attach(stage, level) for stage, level in places if level != "root"),
            ),
            prefetch=bool(packed_reads(node)) and self._random.random() < 0.5,
            ahead=bool(node.reduce) and self._random.random() < AHEAD,
            staged=side_by_side if self._random.random() < 0.5 else (),
            instruction=sketch.instruction,
        )
        parts = chunks(node, plan)
        chunked = parts and self._random.random() < IN_CHUNKS
        return with_chunk(node, plan, self._random.choice(parts)) if chunked else plan

    def _chain(self, sketch: Sketch, node: TileNode) -> TilePlan:
        """Register tiles of the product, parts of the image or blocks of channels as core tiles."""
        lanes = self._width()
        register, core = self._extents(node, len(node.axes) - 2, lanes)
        rest = core.extents[2:]
        inside = sketch.attach[0].level == "core"
        form = self._random.choice(INSIDE) if inside else PHASES
        core = Tile((*node.extents[:2], *rest) if inside else (1, 1, *rest))
        register = Tile((1, 1, *register.extents[2:]))
        return TilePlan(
            rule="chain",
            anchor=sketch.anchor,
            tiles=(LevelTile("core", core), LevelTile("register", register)),
            order=form.order,
            parallel=form.tasks,
            lanes=lanes,
            unroll=register.extents[-1],
            attach=sketch.attach,
            prefetch=bool(packed_reads(node)) and self._random.random() < 0.5,
            ahead=inside and self._random.random() < 0.5,
        )

    def _strassen(self, sketch: Sketch, node: TileNode) -> TilePlan:
        """Register tiles of a product, equal parts of the rows and of the columns, in blocks."""
        lanes = self._width()
        register, core = self._extents(node, COLUMNS, lanes)
        rows = self._random.choice(divisors(node.extents[ROWS]))
        core = core.with_extent(QUARTER, node.extents[QUARTER]).with_extent(ROWS, rows)
        register = register.with_extent(QUARTER, 1)
        width = register.extents[COLUMNS]
        block = width * self._log_uniform(max(1, core.extents[COLUMNS] // width))
        plan = TilePlan(
            rule="strassen",
            anchor=sketch.anchor,
            tiles=(
                LevelTile("core", core),
                LevelTile("l2", core.with_extent(COLUMNS, block)),
                LevelTile("register", register),
            ),
            order=(QUARTER, COLUMNS, ROWS, STEPS),
            parallel=1,
            lanes=lanes,
            attach=sketch.attach,
            prefetch=self._random.random() < 0.5,
        )
        return fitted(plan)

    def _attention(self, sketch: Sketch, node: TileNode) -> TilePlan:
        """Register tiles of both products as wide as each other, any number in a block of queries
        and of blocks in a task."""
        found = attention_stages(self.graph)
        assert found is not None
        lanes = self._width()
        columns = node.extents[COLUMN]
        width = lanes * self._random.randint(1, MAX_WIDTH)
        block = width * self._random.choice([1, 1, 2, 4])
        task = block * self._random.choice(divisors(max(1, columns // block)))
        tiles = [
            LevelTile("core", of_queries(node, task)),
            LevelTile("l2", of_queries(node, block)),
        ]
        for level, stage in (("register", found.scores), ("second", found.mixed)):
            own = self.graph.nodes[stage].extents
            rows = self._log_uniform(min(MAX_ROWS, own[ROW]))
            step = self._random.choice(divisors(own[-1], MAX_UNROLL))
            tiles.append(LevelTile(level, Tile((1, 1, rows, width, step))))
        return TilePlan(
            rule="attention",
            anchor=sketch.anchor,
            tiles=tuple(tiles),
            order=tuple(range(len(node.axes))),
            parallel=3,
            lanes=lanes,
            unroll=tiles[2].tile.extents[-1],
            staged=self._random.choice(found.copies),
        )

    def _extents(
        self, node: TileNode, vector: int | None, lanes: int, *, unit: bool = False
    ) -> tuple[Tile, Tile]:
        """A register tile, for a matrix `unit` or not, and a core tile of whole ones or of whole
        axes."""
        register: list[int] = []
        core: list[int] = []
        rows = row_axes(self.graph, node) if unit else ()
        for axis, entry in enumerate(node.axes):
            if entry.kind == "reduce":
                sizes = divisors(entry.extent, MAX_UNROLL)
                step = self._random.choice([1, *sizes])
                if unit:
                    step = sizes[-1] if axis == dot_axis(node) else 1
                register.append(step)
                core.append(entry.extent)
                continue
            if axis == vector:
                size = lanes * self._random.randint(1, MAX_WIDTH)
            elif unit:
                size = self._rows(entry.extent) if axis == rows[-1] else 1
            else:
                size = self._log_uniform(min(MAX_ROWS, entry.extent))
            register.append(min(size, entry.extent))
            tiles = entry.extent // register[-1]
            whole = self._random.random() < 0.5
            core.append(entry.extent if whole else register[-1] * self._log_uniform(tiles))
        return Tile(tuple(register)), Tile(tuple(core))

    def _rows(self, extent: int) -> int:
        """Rows of some matrices: parts of the axis, or as many as a matrix has."""
        parts = self._random.randint(1, MAX_WIDTH)
        sizes = [size for size in divisors(extent, SIDE * parts) if size % parts == 0]
        return self._random.choice([SIDE * parts, *sizes[-2:]])

    def _width(self) -> int:
        """A whole vector most often; narrower ones are seldom right."""
        return max(1, self.lanes // self._random.choice([1, 1, 1, 1, 2, 4]))

    def _log_uniform(self, limit: int) -> int:
        """1 to `limit`, each order of magnitude as likely as another."""
        return max(1, min(limit, int((limit + 1) ** self._random.random())))

    def _shuffled(self, axes: tuple[int, ...]) -> list[int]:
        return self._random.sample(axes, len(axes))


def row_box(node: TileNode, rows: int) -> tuple[int, ...]:
    """One row of a stage of which the leading `rows` space axes count rows."""
    return tuple(1 if i in node.space[:rows] else a.extent for i, a in enumerate(node.axes))
