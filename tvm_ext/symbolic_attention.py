"""Plans for attention of lengths that are not known: one of a typical length, for all.

    a kernel for 5 tiles of keys and 3 of queries, one for 7 and 3, ..  →  one for any numbers

Tiles of keys and of queries are whole, so the kernels of one plan for several lengths differ by
numbers only, and these by affine functions of the lengths: they are generalised. What is beyond the
last key and the last query is left out by the kernel (`compute.open_attention`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, lcm

from msgspec import structs

from tvm_ext.compute.open_attention import SPARE_ROWS, Lengths, OpenAttention
from tvm_ext.compute.plain_calls import with_vector_maths
from tvm_ext.errors import PlanError
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import PICKED
from tvm_ext.picker.attention import attention_candidates
from tvm_ext.planner import Option, Planned, Task, logged, make_task
from tvm_ext.records import Database
from tvm_ext.shield import shield
from tvm_ext.tile.attention import COLUMN, ROW, attention_stages
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.plan import LevelTile, TilePlan
from tvm_ext.tir import write
from tvm_ext.tir.generalise import generalised
from tvm_ext.tir.slices import of_rows, with_slices
from tvm_ext.tir.symbolic import of_tensors, substituted, tensors
from tvm_ext.tvm_api import PrimFunc, mark_scheduled, tirx

KEYS = ((5, 1), (7, 2), (11, 1))
QUERIES = ((3, 1), (5, 2), (7, 1))
"""Tiles of lengths that kernels are made for, and what is missing from the last."""
BIAS = (1 << 20, 1 << 21)
"""Elements of a bias."""
BATCHES = (2, 3, 5)
"""Texts, where their number is open: one would leave no loop over them."""


@dataclass(frozen=True)
class _Plan:
    """A plan of typical lengths, in tiles."""

    plan: TilePlan
    keys: int
    """Of a tile: whole register tiles of the first product, whole steps of the second."""
    queries: int
    whole: bool
    """Whether a task is all queries of a head, not a tile of them."""

    @classmethod
    def of(cls, plan: TilePlan, columns: int) -> _Plan | None:
        """None of a plan that is not for any number of tiles."""
        if plan.rule != "attention":
            return None
        block, size = (plan.at(level).extents[COLUMN] for level in ("l2", "core"))
        if block > SPARE_ROWS or size not in (block, columns):
            return None
        keys = lcm(plan.at("register").extents[ROW], plan.at("second").extents[-1])
        return cls(plan, keys, block, size == columns)

    def lengths(self, point: Lengths) -> Lengths:
        """Counted in keys and queries, not in tiles."""
        return point._replace(rows=point.rows * self.keys, columns=point.columns * self.queries)

    def at(self, point: Lengths, depth: int) -> TilePlan:
        """That of so many tiles."""
        rows, columns, *_ = self.lengths(point)
        size = columns if self.whole else self.queries
        tiles = {"core": Tile((1, 1, rows, size, depth))}
        tiles["l2"] = Tile((1, 1, rows, self.queries, depth))
        own = (LevelTile(t.level, tiles.get(t.level, t.tile)) for t in self.plan.tiles)
        return structs.replace(self.plan, tiles=tuple(own))


def typical(task: Task, hardware: HardwareModel) -> Task | None:
    """What has the plan of an attention of lengths that are not known; None for any other task."""
    found = OpenAttention.of(task.original)
    return make_task(found.typical(hardware.lanes(4)), task.name) if found else None


def plan_attention(
    task: Task, hardware: HardwareModel, database: Database | None
) -> Planned | None:
    """The kernel of an attention for any lengths; None for any other task."""
    found, one = OpenAttention.of(task.original), typical(task, hardware)
    if found is None or one is None:
        return None
    reasons: list[str] = []
    found_plans = _options(one, hardware, database, reasons)
    for option, tiles in islice(found_plans, PICKED):
        with shield(f"{option.source} plan", reasons):
            func = _for_any_lengths(task, found, tiles)
            share = task.flops / one.flops  # what is reported is of a length of one
            own = replace(option, predicted_us=option.predicted_us * share)
            return Planned(task, func, own, [Option("none", None)], reasons)
    return Planned(task, with_slices(task.original, task.slices), Option("none", None), [], reasons)


def _options(
    one: Task,
    hardware: HardwareModel,
    database: Database | None,
    reasons: list[str],
) -> Iterator[tuple[Option, _Plan]]:
    """Plans of typical lengths that are for others too: a record, then the picker's, by the time
    they take if half of the last tiles is missing."""
    graph = one.graph
    stages = attention_stages(graph) if graph else None
    if graph is None or stages is None:
        return
    _, _, keys, columns, _ = graph.nodes[stages.scores].extents
    if database is not None:

        def beside_us(plan: TilePlan) -> float:
            return 0.0 if _Plan.of(plan, columns) else inf

        for option in logged(one, hardware, database, beside_us, reasons):
            if option.plan and (tiles := _Plan.of(option.plan, columns)):
                yield option, tiles
    ranked: list[tuple[float, Option, _Plan]] = []
    for candidate in attention_candidates(graph, stages, hardware):
        if tiles := _Plan.of(candidate.plan, columns):
            guess = candidate.estimate
            option = Option("picker", candidate.plan, guess.bound, guess.latency_us)
            missing = (1 + tiles.keys / 2 / keys) * (1 + tiles.queries / 2 / columns)
            ranked.append((guess.latency_us * missing, option, tiles))
    for _, option, tiles in sorted(ranked, key=lambda each: each[0]):
        yield option, tiles


def _for_any_lengths(task: Task, found: OpenAttention, tiles: _Plan) -> PrimFunc:
    """The kernel of a plan. Raises PlanError."""
    own = of_tensors(task.original, task.slices)
    depth = int(found.q[3])
    texts, *others = BATCHES if found.has_batch else (int(found.q[0]),)
    points = [_point(tiles, keys, QUERIES[0], texts) for keys in KEYS]
    points += [_point(tiles, KEYS[0], queries, texts) for queries in QUERIES[1:]]
    points += [points[0]._replace(bias=BIAS[1]), _point(tiles, KEYS[1], QUERIES[2], texts)]
    points += [_point(tiles, KEYS[0], *each) for each in zip(QUERIES[1:], others, strict=False)]
    made = []
    for point in points:
        func = with_vector_maths(found.at(tiles.lengths(point)))
        made.append(of_rows(write(func, tiles.at(point, depth)), own))
    batch, queries, keys = (one.astype("int32") for one in (*found.q[:2], found.k[1]))
    blocks = (queries + (tiles.queries - 1)) // tiles.queries
    lengths = Lengths(
        (keys + (tiles.keys - 1)) // tiles.keys,
        blocks,
        keys,
        queries,
        found.bias[2] * found.bias[3] if found.bias else keys,
        batch,
        batch * blocks,
    )
    told = len(lengths) if found.has_batch else Lengths._fields.index("batch")
    kernel = generalised(made, [point[:told] for point in points], lengths[:told])
    if kernel is None:
        raise PlanError("lengths", "plan: kernels for several lengths differ by more than those")
    whole = with_slices(task.original, task.slices)
    given = dict(zip(kernel.params, tensors(whole), strict=True))
    declared = []
    if found.has_columns:
        flat = kernel.params[3]
        view = tirx.decl_buffer(flat.shape, flat.dtype, "bias", layout=None)
        declared = [tirx.DeclBuffer(view, data=given[flat].data)]
        given[flat] = view
    body = substituted(kernel.body, given)
    whole = PrimFunc(whole.params, tirx.SeqStmt([*declared, body]) if declared else body)
    return mark_scheduled(whole.with_attr(dict(task.original.attrs.items())))


def _point(tiles: _Plan, keys: tuple[int, int], queries: tuple[int, int], texts: int) -> Lengths:
    """So many tiles of keys and of queries, the last ones not whole, for so many texts."""
    (rows, no_keys), (columns, no_queries) = keys, queries
    lengths = rows * tiles.keys - no_keys, columns * tiles.queries - no_queries
    return Lengths(rows, columns, *lengths, BIAS[0], texts, texts * columns)
