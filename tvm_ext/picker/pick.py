"""The analytical picker: from a tile graph and a hardware model to ranked plans (Roller §3).

Nothing is measured and nothing of TVM is needed: aligned register tiles are ranked by the micro
performance model, then core tiles are grown around the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import prod

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import (
    core_extents,
    lanes_for,
    packed_divisor,
    tile_lanes,
)
from tvm_ext.picker.amx import amx_tiles
from tvm_ext.picker.anchor import (
    choose_anchor,
    hidden_work,
    widest_bytes,
)
from tvm_ext.picker.attention import attention_candidates
from tvm_ext.picker.chain import rank_chains
from tvm_ext.picker.chunk import in_chunks, needs_chunks
from tvm_ext.picker.company import exchange_us, in_company
from tvm_ext.picker.cycles import REGISTER_TILES, product_tiles, whole_cycles
from tvm_ext.picker.gpu import pick_blocks
from tvm_ext.picker.halves import product_lanes
from tvm_ext.picker.issue import picks
from tvm_ext.picker.order import loop_order, square_order
from tvm_ext.picker.perf import (
    Candidate,
    estimate,
    together,
)
from tvm_ext.picker.register import register_tiles
from tvm_ext.picker.split import split_plan
from tvm_ext.picker.strassen import strassen_candidates
from tvm_ext.picker.stream import flat_plan, rows_plan
from tvm_ext.picker.strip import strip_candidates
from tvm_ext.picker.traffic import between_us, overlapped_us, wants_results_ahead
from tvm_ext.picker.weights import wants_prefetch
from tvm_ext.tile.amx import INSTRUCTION as AMX
from tvm_ext.tile.attention import attention_stages
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chain import TransformChain, transform_chain
from tvm_ext.tile.classify import (
    has_no_gaps,
    has_reuse,
    is_flat,
    is_square,
    loops_in_use,
    pads_whole_vectors,
    producers,
    shares_index,
    stageable,
    vector_axis,
    vectorisable,
)
from tvm_ext.tile.cut import Piece, cut, joined
from tvm_ext.tile.fuse import along_rows, epilogue_of, in_vectors
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.shift import is_parted, shifts
from tvm_ext.tile.strassen import strassen_stages
from tvm_ext.tile.strip import repeats

CoreTiles = Callable[[TileGraph, TileNode, Tile, int, HardwareModel], Iterator[Tile]]
"""Core tiles for a stage and its register tile, with vectors of so many elements."""
PICKED = 3
"""Plans that a kernel is given to try; they are picked together, whoever asks for one."""
KEPT = 1024
"""Groups whose plans are kept: DenseNet-121 has 233, of which its kernels are asked for twice."""
ATTACHED = 24
"""Plans for which it is also tried to compute earlier stages inside the core tile."""


def pick(
    graph: TileGraph, hardware: HardwareModel, count: int = 1, *, alone: bool = False
) -> list[Candidate]:
    """The best `count` plans for a group, best first; empty if no stage can be planned.

    alone  whether the kernel will run by itself, not between others of a model
    """
    nameless = msgspec.structs.replace(graph, name="", signature="")
    return list(_picked(nameless, hardware, max(count, PICKED), alone)[:count])


@lru_cache(maxsize=KEPT)
def _picked(graph: TileGraph, hardware: HardwareModel, count: int, alone: bool) -> list[Candidate]:
    """Kept, since passes ask for the time of a kernel before a plan for it is asked for."""
    if hardware.kind == "cuda":
        return pick_blocks(graph, hardware, count)
    strips = pick_strips(graph, hardware)
    if strips and repeats(graph, strips[0].plan.at("core")):
        return strips[:count]  # times of pieces know nothing of what a window waits for
    pieces = cut(graph)
    if len(pieces) > 1:
        found = pick_pieces(graph, pieces, hardware, count, alone=alone)
    if len(pieces) == 1 or not found:  # or a piece without any plan
        found = pick_piece(graph, hardware, count, alone=alone)
    if len(pieces) > 1 and found:
        first = min([*strips[:1], found[0]], key=_latency)
        others = (one for one in (*strips, *found) if one is not first)
        return [first, *sorted(others, key=_latency)][:count]
    return [*strips, *found][:count]  # other plans' times are those of the stage that they tile


def pick_strips(graph: TileGraph, hardware: HardwareModel) -> list[Candidate]:
    """Plans that compute a group strip by strip, best first; none if it has no such."""
    nameless = msgspec.structs.replace(graph, name="", signature="")
    return list(_picked_strips(nameless, hardware))


@lru_cache(maxsize=KEPT)
def _picked_strips(graph: TileGraph, hardware: HardwareModel) -> list[Candidate]:
    """Kept, since passes ask for their time, and whether they can be written, before their plan."""
    return strip_candidates(
        graph, hardware, partial(pick_piece, count=1, alone=True, core_tiles=_whole)
    )


def pick_pieces(
    graph: TileGraph,
    pieces: tuple[Piece, ...],
    hardware: HardwareModel,
    count: int,
    *,
    alone: bool = False,
) -> list[Candidate]:
    """The best plan of every piece together, then those with another plan for one piece."""
    found = [pick_piece(piece.graph, hardware, count, alone=alone) for piece in pieces]
    if not all(found):
        return []
    best = [candidates[0] for candidates in found]
    choices = [best]
    for place, candidates in enumerate(found):
        choices += [[*best[:place], other, *best[place + 1 :]] for other in candidates[1:]]
    whole = []
    for choice in choices:
        plans = tuple(one.plan for one in choice)
        passing_us = between_us(graph, pieces, plans, hardware)
        all_us = together([one.estimate for one in choice], passing_us)
        whole.append(Candidate(joined(pieces, plans), all_us))
    first, *others = whole  # each piece has the plan that is best between other kernels
    return [first, *sorted(others, key=_latency)][:count]


def pick_piece(
    graph: TileGraph,
    hardware: HardwareModel,
    count: int,
    *,
    alone: bool = False,
    core_tiles: CoreTiles | None = None,
    whole: bool = False,
) -> list[Candidate]:
    """The best plans for a group of which one stage, or one chain of stages, is tiled, with the
    `core_tiles` given or all that are worth a look; of products between other stages with `whole`
    register tiles alone, if asked for."""
    anchor = choose_anchor(graph)
    if anchor is None or hidden_work(graph) > prod(graph.nodes[anchor].extents):
        return []
    node = graph.nodes[anchor]
    attention = attention_stages(graph)
    if attention and (candidates := attention_candidates(graph, attention, hardware)):
        return candidates[:count]
    if chain := transform_chain(graph):
        found = chain_candidates(graph, chain, hardware, whole=whole)
        return in_company(graph, found, hardware, alone=alone)[:count]
    if seven := strassen_stages(graph):
        width, registers = product_tiles(graph, seven.product, 1, hardware, whole=whole)
        by_quarters = strassen_candidates(graph, seven, registers, width, hardware, count)
        return in_company(graph, by_quarters, hardware, alone=alone)[:count]
    if together_by_rows := several_results(graph, hardware):
        found = [together_by_rows]
    elif is_flat(graph, node):
        found = [flat_plan(graph, anchor, hardware)]
    elif vectorisable(graph, node):
        found = list(tile_plans(graph, anchor, hardware, max(count, 1), core_tiles))
    else:
        rows = rows_plan(graph, hardware)
        found = [rows] if rows else []
        lanes = hardware.lanes(widest_bytes(graph, node))
        if not (rows and along_rows(graph)) or picks(graph, node, lanes):
            tiles = list(tile_plans(graph, anchor, hardware, max(count, 1), core_tiles))
            found = [*tiles, *(found if along_rows(graph) or not tiles else [])]
    if split := split_plan(graph, anchor, hardware):
        found.append(split)
    ranked = in_company(graph, sorted(found, key=_latency), hardware, alone=alone)
    inside = [other for best in ranked[:ATTACHED] for other in attached(graph, best, hardware)]
    ranked = sorted([*inside, *ranked], key=_latency)
    held_up = [one for one in ranked if _unhindered(one) < _latency(ranked[0])]
    side = [other for one in held_up for other in side_by_side(graph, one, hardware)]
    ranked = sorted([*side, *ranked], key=_latency)
    return in_company(graph, ranked, hardware, alone=alone)[:count]


def several_results(graph: TileGraph, hw: HardwareModel) -> Candidate | None:
    """The plan by rows of a group without reuse that has several results; None for other groups."""
    if len(graph.results) == 1 or any(map(has_reuse, graph.nodes)) or not in_vectors(graph):
        return None
    return rows_plan(graph, hw)


def chain_candidates(
    graph: TileGraph, chain: TransformChain, hw: HardwareModel, *, whole: bool
) -> list[Candidate]:
    """Plans of a product between two transforms, best first."""
    lanes, tiles = product_tiles(graph, chain.product, 3, hw, whole=whole)
    return [Candidate(plan, guess) for plan, guess in rank_chains(graph, chain, tiles, lanes, hw)]


def attached(graph: TileGraph, candidate: Candidate, hw: HardwareModel) -> Iterator[Candidate]:
    """The plan with the stages before its anchor (padding) moved into the core tile, or, where they
    are read in vectors, into the reads."""
    plan = candidate.plan
    before = producers(graph, plan.anchor)
    own = {plan.anchor, *before}
    shared = any(not own.issuperset(graph.consumers(stage)) for stage in before)
    if plan.rule != "tile" or not before or shared:
        return
    levels = ["core"] if plan.parallel else []
    if all(masks(graph, plan.anchor, stage) for stage in before):
        levels.append("register")
    for level in levels:
        attach = (*plan.attach, *(Attach(stage, level) for stage in before))
        inside = msgspec.structs.replace(plan, attach=attach)
        if is_legal(graph, inside, inside.lanes):
            yield Candidate(inside, estimate(graph, inside, hw))


def masks(graph: TileGraph, anchor: int, stage: int) -> bool:
    """Whether a stage before the anchor needs no buffer: padding costs a vector that is read no
    more than a mask (`traffic.masks_us`)."""
    alone = graph.consumers(stage) == (anchor,)
    return alone and pads_whole_vectors(graph, graph.nodes[anchor], graph.nodes[stage])


def side_by_side(graph: TileGraph, candidate: Candidate, hw: HardwareModel) -> Iterator[Candidate]:
    """The plan with the reads whose rows lie apart copied side by side for each core tile."""
    plan = candidate.plan
    if plan.rule == "tile" and plan.parallel:
        node = graph.nodes[plan.anchor]
        reads = stageable(graph, node, plan.at("core"), plan.at("register"))
        if reads:
            copied = msgspec.structs.replace(plan, staged=reads)
            if is_legal(graph, copied, copied.lanes):
                yield Candidate(copied, estimate(graph, copied, hw))


def _latency(candidate: Candidate) -> float:
    return candidate.estimate.latency_us


def _unhindered(candidate: Candidate) -> float:
    """The time if nothing but arithmetic and traffic took any."""
    return overlapped_us(candidate.estimate.compute_us, candidate.estimate.memory_us)


def tile_plans(
    graph: TileGraph,
    anchor: int,
    hw: HardwareModel,
    count: int,
    core_tiles: CoreTiles | None = None,
) -> Iterator[Candidate]:
    """Register tiles ranked by cycles, each with the core tiles that share the work out, or those
    given."""
    node = graph.nodes[anchor]
    dtype_bytes = widest_bytes(graph, node)
    vector = vector_axis(node)
    lanes = 1
    if vector is not None:
        divisor = packed_divisor(node, vector)
        fitting = tile_lanes if node.kind == "reduce" else lanes_for
        lanes = fitting(node.axes[vector].extent, hw, dtype_bytes, divisor)
        lanes = product_lanes(node, lanes, hw, dtype_bytes)
    epilogue = epilogue_of(graph, anchor)
    attach = (Attach(epilogue, "register"),) if epilogue is not None else ()
    last = graph.nodes[epilogue] if epilogue is not None else None
    intertwined = any(shares_index(node, axis) for axis in node.space)
    inner = [
        *((tile, "fma") for tile in register_tiles(graph, node, vector, lanes, hw)),
        *((tile, AMX) for tile in amx_tiles(graph, node, lanes, hw)),
    ]
    cycles = {
        (tile, instruction): whole_cycles(graph, node, tile, lanes, hw, instruction)
        for tile, instruction in inner
        if has_no_gaps(node, tile)
    }
    best: list[float] = []
    choices = sorted(cycles, key=cycles.__getitem__)
    if core_tiles is not None:
        choices = [
            one for one in choices if any(True for _ in core_tiles(graph, node, one[0], lanes, hw))
        ]
    first = [tile for tile, _ in choices[:REGISTER_TILES]]
    chunked = core_tiles is None and needs_chunks(graph, node, first, hw)
    few = choices[: max(REGISTER_TILES, count // 4)]
    # of matrices cycles alone say little: what they wait for depends on the loops around them
    for register, instruction in [*few, *(one for one in choices[len(few) :] if one[1] == AMX)]:
        least_us = cycles[register, instruction] / hw.cores / hw.clock_ghz / 1e3
        if len(best) >= count and least_us > best[count - 1]:
            continue
        ahead = last is not None and wants_results_ahead(graph, node, last, register, hw)
        for core in (core_tiles or cut_core_tiles)(graph, node, register, lanes, hw):
            if not has_no_gaps(node, core):
                continue
            order = loop_order(graph, node, vector, core, hw)
            if is_square(node, register, lanes):
                order = square_order(graph, node, register, hw)
            plan = TilePlan(
                rule="tile",
                anchor=anchor,
                tiles=(LevelTile("core", core), LevelTile("register", register)),
                order=order,
                parallel=loops_in_use(node, core, order),
                lanes=lanes,
                unroll=prod(register.extents[axis] for axis in node.reduce),
                attach=attach,
                instruction=instruction,
                prefetch=wants_prefetch(graph, node, core, register),
                ahead=ahead,
            )
            sure = instruction != AMX and not intertwined
            plans = [plan] if sure or is_legal(graph, plan, lanes) else []
            if chunked:
                plans += in_chunks(graph, plan, hw)
            for one in plans:
                found = Candidate(one, estimate(graph, one, hw))
                best.append(_latency(found) + exchange_us(graph, one, hw))
                yield found
        best.sort()


def cut_core_tiles(
    graph: TileGraph, node: TileNode, register: Tile, lanes: int, hw: HardwareModel
) -> Iterator[Tile]:
    """Core tiles that cut one axis, with a tail of whole register tiles or not, or two axes without
    one; and those whose tails are moved back."""
    full = node.extents
    yield Tile(full)

    def whole(core: Tile) -> bool:
        return shifts(graph, node, core, register, lanes) is not None

    space = [axis for axis in node.space if full[axis] > register.extents[axis]]
    for axis in space:
        for size in core_extents(full[axis], register.extents[axis], hw.cores):
            if size == full[axis]:
                continue
            cut = Tile(full).with_extent(axis, size)
            if full[axis] % size % register.extents[axis] == 0 or whole(cut):
                yield cut
            for other in space:
                if other >= axis:
                    continue
                both = cut.with_extent(other, register.extents[other])
                even = full[axis] % size == 0 == full[other] % register.extents[other]
                if even or whole(both):
                    yield both


def _whole(
    _graph: TileGraph, node: TileNode, register: Tile, lanes: int, _hw: HardwareModel
) -> Iterator[Tile]:
    """The core tile that is the whole stage, if no tail would have a loop of its own."""
    core = Tile(node.extents)
    if not any(is_parted(node, axis, core, register, lanes) for axis in node.space):
        yield core
