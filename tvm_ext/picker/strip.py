"""Plans for groups computed strip by strip, and their predicted time.

A strip is a group of its own that one core computes: its pieces are planned as for a machine of one
core whose memory is the last cache. What lies between them counts as the small group says, in the
core's caches; the group's inputs and results come and go as if nothing were fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil, prod

import msgspec

from tvm_ext.hardware.model import HardwareModel, MemoryLevel
from tvm_ext.picker.perf import EVEN_TASKS, TASK_CYCLES, Candidate, Estimate, together
from tvm_ext.picker.traffic import USABLE, holding_gbps, overlapped_us, spilled_us
from tvm_ext.picker.weights import STREAMED, arriving_us
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import is_shared_out, packed_reads, pads_window
from tvm_ext.tile.cut import Piece, cut, handed_on_bytes
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.strip import PIECE_RULES, Strip, repeats, strip, strip_tiles

LATE = 0.05
"""Part of its time by which a long kernel waits for its slower core where none can take over, or
for weights that no core holds: apart, products are cut into tasks that are handed out (BERT, CLIP
and Swin by as many strips as there are cores: 0.93 to 0.97 times as fast; T5 by 16 strips, for each
3 to 4 MiB of weights: 0.94 to 0.97)."""

Pick = Callable[[TileGraph, HardwareModel], Sequence[Candidate]]
Predict = Callable[[TileGraph, TilePlan, HardwareModel], Estimate]


def strip_candidates(graph: TileGraph, hw: HardwareModel, pick: Pick) -> list[Candidate]:
    """Plans by strips of several heights, best first; none for groups of a single piece, or whose
    pieces are computed neither by tiles nor by rows."""
    found: list[Candidate] = []
    if len(cut(graph, least=1)) < 2:
        return found
    for tile in _tiles(graph, hw):
        part = _strip(graph, tile)
        own = one_core(hw, part)
        best = [pick(piece.graph, own)[:1] for piece in part.pieces]
        plans = [candidates[0].plan for candidates in best if candidates]
        fit = len(plans) == len(part.pieces) and all(p.rule in PIECE_RULES for p in plans)
        if fit and all(map(partial(_keeps_rows, graph, part), part.pieces, plans)):
            plan = strip_plan(graph, tile, part, plans, hw)
            estimates = [candidates[0].estimate for candidates in best]
            found.append(Candidate(plan, _estimate(graph, part, plan, estimates, hw)))
    return sorted(found, key=lambda one: one.estimate.latency_us)


def _strip(graph: TileGraph, tile: Tile) -> Strip:
    """The strip of one of the tiles that there are."""
    part = strip(graph, tile)
    assert part is not None
    return part


def _keeps_rows(graph: TileGraph, part: Strip, piece: Piece, plan: TilePlan) -> bool:
    """Whether rows of neighbours cost a piece no more than their own time: padding between stages
    is read in place (of a copy TVM cannot tell how few rows are wanted), and register tiles of what
    reaches into the next strip, which is asked row by row whether it is inside, have one row (of
    14 the main loop has a question for each: 366 us for 121)."""
    for place, stage in enumerate(piece.stages):
        inner = graph.sources(stage) and pads_window(graph, stage)
        if inner and Attach(place, "register") not in plan.attach:
            return False
    own, whole = piece.graph.nodes[plan.anchor], graph.nodes[piece.stages[plan.anchor]]
    if plan.rule != "tile" or prod(own.extents) * part.tasks <= prod(whole.extents):
        return True
    return not any(
        1 < before < after and rows > 1
        for before, after, rows in zip(
            own.extents, whole.extents, plan.at("register").extents, strict=True
        )
    )


def strip_plan(
    graph: TileGraph, tile: Tile, part: Strip, plans: Sequence[TilePlan], hw: HardwareModel
) -> TilePlan:
    """The plan of a group from those of the pieces of one strip."""
    last = len(graph.nodes) - 1
    return TilePlan(
        rule="strips",
        anchor=last,
        tiles=(LevelTile("core", tile),),
        order=tuple(range(len(graph.nodes[last].axes))),
        parallel=1 if hw.cores > 1 else 0,
        lanes=max(plan.lanes for plan in plans),
        also=tuple(
            piece.outside(msgspec.structs.replace(plan, parallel=0))
            for piece, plan in zip(part.pieces, plans, strict=True)
        ),
    )


def strip_estimate(
    graph: TileGraph, plan: TilePlan, hw: HardwareModel, predict: Predict
) -> Estimate:
    """Predicted time of a plan by strips."""
    part = strip(graph, plan.at("core"))
    if part is None or len(part.pieces) != len(plan.also):
        raise KeyError(f"plan by strips of {len(plan.also)} pieces for another group")
    own = one_core(hw, part)
    pairs = zip(part.pieces, plan.also, strict=True)
    return _estimate(
        graph,
        part,
        plan,
        [predict(piece.graph, piece.inside(one), own) for piece, one in pairs],
        hw,
    )


def one_core(hw: HardwareModel, part: Strip) -> HardwareModel:
    """A core of the machine with its share of what cores share; the last cache is its memory, if
    what lies between the stages of a strip has room there."""

    def share(level: MemoryLevel) -> MemoryLevel:
        if not level.shared:
            return level
        rate = min(level.gbps, level.total_gbps / hw.cores) if level.total_gbps else level.gbps
        size = level.size_bytes // hw.cores
        return msgspec.structs.replace(level, size_bytes=size, gbps=rate, total_gbps=rate)

    levels = tuple(map(share, hw.levels))
    held = _held(part) <= levels[-2].size_bytes
    return msgspec.structs.replace(hw, cores=1, levels=levels[:-1] if held else levels)


def _held(part: Strip) -> int:
    return handed_on_bytes(part.graph, part.pieces)


def _touched(part: Strip) -> int:
    """Bytes that a core reads and writes for a strip."""
    return _held(part) + part.graph.io_bytes


def _tiles(graph: TileGraph, hw: HardwareModel) -> Iterator[Tile]:
    """Strips that the cores share evenly: the highest, the highest that have room in a core's
    caches, the highest that make enough tasks to be handed out, and the lowest (of a batch single
    images). Where low ones repeat work, the highest that have room, or the lowest."""
    axes = graph.nodes[-1].axes
    room = hw.own_cache_bytes * USABLE
    counts = {tile: prod(tile.counts(axes)) for tile in strip_tiles(graph)}
    many = EVEN_TASKS * hw.cores
    even = [tile for tile, count in counts.items() if count % hw.cores == 0 or count >= many]
    fit = [tile for tile in even if _touched(_strip(graph, tile)) <= room]
    handed = [tile for tile in even if counts[tile] >= many]
    if even and repeats(graph, even[-1]):
        yield from (*fit, *even[-1:])[:1]
    else:
        yield from dict.fromkeys((*even[:1], *fit[:1], *handed[:1], *even[-1:]))


def _weight_bytes(graph: TileGraph) -> int:
    """Bytes of the inputs that every strip reads whole."""
    packed = {access.tensor for node in graph.nodes for access in packed_reads(node)}
    inputs = [tensor for place, tensor in enumerate(graph.tensors) if place in packed]
    return sum(tensor.size_bytes for tensor in inputs if tensor.role == "input")


def _estimate(
    graph: TileGraph,
    part: Strip,
    plan: TilePlan,
    pieces: Sequence[Estimate],
    hw: HardwareModel,
) -> Estimate:
    cores = hw.cores if plan.parallel else 1
    waves = ceil(part.tasks / cores)
    one = together(pieces)
    weights = _weight_bytes(graph)
    outside = graph.io_bytes - weights
    memory_us = outside / (holding_gbps(hw, outside, cores) * 1e3)
    busy_us = (one.latency_us + TASK_CYCLES / hw.clock_ghz / 1e3) * waves
    again = weights > hw.own_cache_bytes  # each strip fetches them anew
    if is_shared_out(graph) and (again or part.tasks < EVEN_TASKS * cores):
        busy_us *= 1 + LATE
    reading_us = weights / (hw.levels[-1].gbps * STREAMED * 1e3)
    busy_us += spilled_us(_held(part) * cores, cores, hw)
    latency_us = arriving_us(overlapped_us(busy_us, memory_us), reading_us, waves, hw, weights)
    launch_us = hw.launch_us if plan.parallel else 0.0
    return Estimate(latency_us + launch_us, one.compute_us * waves, memory_us, one.bound)
