"""Sketches: what is tiled by which rule; everything that has a size is left open (Ansor §4.1).

A sketch is a TilePlan with holes. It is derived stage by stage, from the last to the first, by
rules with conditions; each rule that applies gives a state of its own. `annotate` fills the holes.

    rule            condition                                     effect
    skip            the stage is decided, or another is tiled   nothing
    inline          a map stage that the tiled one reads        its place is left open
    tile            data reuse, no consumer to fuse             multi-level tiling, a write cache
    tile_and_fuse   data reuse, a consumer element by element   the same, with that epilogue
    amx             the same, of dots of bytes                  its register tiles of matrices
    factor          fewer results than cores                    the reduction shared out (rfactor)
    rows            stages that share the work row by row       all of them, one row after another
    chain           a product between two transforms            all stages together (Winograd)
    strassen        seven products of quarters                  with the sums before and behind them
    attention       a softmax between two products              all stages, blocks of queries
    flat            a map in memory order                       contiguous boxes
    block           on a GPU: data reuse                        tiles of a block and a thread

Ansor's inlining of what costs nothing to recompute has happened before (`tir.prepare`), and what it
calls adding a cache stage is part of the `tile` rule: accumulators live in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import msgspec

from tvm_ext.tile.amx import INSTRUCTION as AMX
from tvm_ext.tile.amx import row_axes
from tvm_ext.tile.attention import attention_stages
from tvm_ext.tile.block import free_producers
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tile.classify import (
    has_reuse,
    is_flat,
    producers,
    split_axis,
    vectorisable,
)
from tvm_ext.tile.fuse import epilogue_of, row_tile
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import Attach
from tvm_ext.tile.strassen import attached, strassen_stages


class Sketch(msgspec.Struct, frozen=True):
    """The structure of a plan of one piece of a group."""

    rule: str
    """Which writer lowers it."""
    anchor: int
    attach: tuple[Attach, ...] = ()
    """Stages whose place follows from the structure."""
    movable: tuple[int, ...] = ()
    """Stages before the anchor whose place is a hole: `root`, `core` or `register`."""
    derivation: tuple[str, ...] = ()
    """The rules that led here, in order."""
    instruction: str = "fma"
    """What its innermost loops are for."""


class State(msgspec.Struct, frozen=True):
    """A partial sketch and the stage to be decided next (Ansor's sigma = (S, i))."""

    stage: int
    sketch: Sketch | None = None


SketchRule = Callable[[TileGraph, State, int], Iterator[State]]
"""From (group, state, cores) to the states after it; yields nothing where it does not apply."""


def sketches(
    graph: TileGraph, cores: int, rules: Sequence[SketchRule] = (), kind: str = "cpu"
) -> list[Sketch]:
    """Every sketch of a group (of one piece: see `tile.cut`) on a `kind` of machine, those of
    `rules`, a user's own, first. Under ten for any usual operator; empty if no rule claims a
    stage."""
    found: dict[Sketch, None] = {}
    states = [State(len(graph.nodes) - 1)]
    while states:
        state = states.pop(0)
        if state.stage < 0:
            if state.sketch is not None:
                found[state.sketch] = None
            continue
        for rule in (*rules, *(BLOCK_RULES if kind == "cuda" else RULES)):
            states += rule(graph, state, cores)
    return list(found)


def _next(state: State, name: str, sketch: Sketch) -> State:
    named = msgspec.structs.replace(sketch, derivation=(*sketch.derivation, name))
    return State(state.stage - 1, named)


def _is_worth(graph: TileGraph, stage: int) -> bool:
    """Whether a stage is worth a plan: one with data reuse; without any, a reduction; without any,
    every map."""
    node = graph.nodes[stage]
    if any(has_reuse(other) for other in graph.nodes):
        return has_reuse(node)
    if any(other.kind == "reduce" for other in graph.nodes):
        return node.kind == "reduce"
    return node.kind == "map"


def skip(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A stage that is decided already, or is left as it is because another one gets the plan."""
    movable = state.sketch.movable if state.sketch else ()
    decided = state.sketch is not None and state.stage not in movable
    another = any(_is_worth(graph, place) for place in range(state.stage))
    another = another and strassen_stages(graph) is None
    if decided or (state.sketch is None and another):
        yield State(state.stage - 1, state.sketch)


def inline(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A map stage that the anchor reads: where it is computed is left open."""
    sketch = state.sketch
    if sketch is not None and state.stage in sketch.movable:
        yield _next(state, "inline", sketch)


def tile(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """Multi-level tiling; with an epilogue in registers where the one consumer allows it."""
    node = graph.nodes[state.stage]
    if state.sketch is not None or not node.space or not _is_worth(graph, state.stage):
        return
    if is_flat(graph, node):
        return
    epilogue = epilogue_of(graph, state.stage)
    attach = (Attach(epilogue, "register"),) if epilogue is not None else ()
    before = producers(graph, state.stage)
    name = "tile" if epilogue is None else "tile_and_fuse"
    sketch = Sketch("tile", state.stage, attach, before)
    yield _next(state, name, sketch)
    if row_axes(graph, node):
        yield _next(state, AMX, msgspec.structs.replace(sketch, instruction=AMX))


def factor(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A reduction to fewer results than there are cores: its iterations are shared out."""
    node = graph.nodes[state.stage]
    if state.sketch is not None or node.kind != "reduce" or split_axis(node) is None:
        return
    results = prod(node.axes[axis].extent for axis in node.space)
    others = [place for place in range(len(graph.nodes)) if place != state.stage]
    if (
        results < cores
        and all(graph.producer(access.tensor) is None for access in node.reads)
        and all(prod(graph.nodes[place].extents) <= results for place in others)
    ):
        attach = tuple(Attach(place, "core") for place in others)
        sketch = Sketch("split", state.stage, attach)
        yield _next(state, "factor", sketch)


def rows(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """The last stage one row at a time, with all before it."""
    last = len(graph.nodes) - 1
    reduces = any(node.kind == "reduce" and not has_reuse(node) for node in graph.nodes)
    several = len(graph.results) > 1 and not any(map(has_reuse, graph.nodes))
    wanted = state.sketch is None and state.stage == last and (reduces or several)
    if wanted and row_tile(graph):
        attach = tuple(Attach(place, "core") for place in range(last))
        sketch = Sketch("rows", last, attach)
        yield _next(state, "rows", sketch)


def chain(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A product between two transforms, all inside the core tile or each a phase of its own."""
    found = transform_chain(graph)
    if state.sketch is not None or found is None or state.stage != found.last:
        return
    others = [place for place in range(len(graph.nodes)) if place != found.product]
    for level in ("core", "root"):
        sketch = Sketch("chain", found.product, tuple(Attach(place, level) for place in others))
        yield _next(state, f"chain at {level}", sketch)


def strassen(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """Seven products of quarters, with the sums of quarters made once or in each task."""
    found = strassen_stages(graph)
    if state.sketch is not None or found is None or state.stage != found.last:
        return
    for level in ("root", "core"):
        sketch = Sketch("strassen", found.product, attached(found, level))
        yield _next(state, f"strassen at {level}", sketch)


def attention(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A softmax between two products: everything for a block of queries at a time."""
    found = attention_stages(graph)
    if state.sketch is None and found is not None and state.stage == found.last:
        yield _next(state, "attention", Sketch("attention", found.scores))


def block(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """On a GPU: a reduction with reuse, tiled for blocks and threads, what only moves data to it
    done while it is fetched, and an epilogue in registers where the one consumer allows it."""
    node = graph.nodes[state.stage]
    if state.sketch is not None or not _is_worth(graph, state.stage):
        return
    if not (node.kind == "reduce" and node.space and vectorisable(graph, node)):
        return
    epilogue = epilogue_of(graph, state.stage)
    attach = [Attach(epilogue, "register")] if epilogue is not None else []
    attach += [Attach(stage, "shared") for stage in free_producers(graph, state.stage)]
    yield _next(state, "block", Sketch("block", state.stage, tuple(attach)))


def flat(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A map that walks its tensors in memory order."""
    flat_map = is_flat(graph, graph.nodes[state.stage])
    if state.sketch is None and flat_map and _is_worth(graph, state.stage):
        yield _next(state, "flat", Sketch("flat", state.stage))


RULES: tuple[SketchRule, ...] = (
    attention,
    strassen,
    chain,
    rows,
    factor,
    flat,
    tile,
    inline,
    skip,
)
BLOCK_RULES: tuple[SketchRule, ...] = (block, skip)
"""Those for GPUs. Rows and boxes of a block have no holes but what the picker's plans differ in."""
