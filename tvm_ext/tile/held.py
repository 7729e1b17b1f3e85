"""How much of what each stage makes a plan keeps at once: the level of every edge of a tile graph
(Welder §3.2: an edge is lowered to a memory level, or stays in memory).

    h = gelu(x @ w1); y = h @ w2, by strips of 48 rows   →   x @ w1: registers; h: 48 rows of it
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm_ext.tile.attention import COLUMN, Attention, attention_stages, of_queries
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tile.cut import cut_for, parted
from tvm_ext.tile.fuse import tiles_of_row
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.infer import propagate
from tvm_ext.tile.legal import row_count
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.strip import strip


@dataclass(frozen=True)
class Held:
    """What is alive at once of what a stage makes for others of its group.

    size_bytes  0 in registers
    apart       whether it is all of it, seen by all cores
    """

    size_bytes: int
    apart: bool = False


def held(graph: TileGraph, plan: TilePlan, kind: str = "cpu") -> tuple[Held | None, ...]:
    """For each stage what is held of its result; None for one that leaves the group. Raises
    KeyError or PlanError for a plan of another group."""
    found = _held(graph, plan, kind)
    leaves = [graph.tensors[node.write.tensor].role == "output" for node in graph.nodes]
    return tuple(
        None if leaves[stage] else found.get(stage) or _all(graph, stage)
        for stage in range(len(graph.nodes))
    )


def _all(graph: TileGraph, stage: int) -> Held:
    return Held(graph.tensors[graph.nodes[stage].write.tensor].size_bytes, apart=True)


def _held(graph: TileGraph, plan: TilePlan, kind: str) -> dict[int, Held]:
    """Of the stages whose results a plan does not keep whole."""
    if plan.rule == "strips":
        part = strip(graph, plan.at("core"))
        if part is None:
            raise KeyError("plan by strips of another group")
        found = {i: Held(_all(part.graph, i).size_bytes) for i in range(len(graph.nodes) - 1)}
        pieces, pairs = part.pieces, zip(part.pieces, plan.also, strict=True)
        plans = tuple(piece.inside(own) for piece, own in pairs)
    elif plan.also:
        found, pieces = {}, cut_for(kind, graph)
        plans = parted(pieces, plan)
    else:
        return _of_piece(graph, plan)
    for piece, own in zip(pieces, plans, strict=True):
        inside = _of_piece(piece.graph, own)
        found |= {piece.stages[stage]: one for stage, one in inside.items()}
    return found


def _of_piece(graph: TileGraph, plan: TilePlan) -> dict[int, Held]:
    """By attachment: at `register` nothing is stored, at `core` what a tile of the anchor needs."""
    levels = {entry.stage: entry.level for entry in plan.attach}
    if plan.rule == "attention" and (attention := attention_stages(graph)):
        return _of_attention(graph, attention, plan)
    found = {
        stage if stage < plan.anchor else plan.anchor: Held(0)
        for stage, level in levels.items()
        if level == "register"
    }
    if plan.rule == "chain" and (chain := transform_chain(graph)):
        found = {i: Held(0) for i in (chain.rows_in, chain.rows_out) if i is not None}
        if "core" in levels.values():
            tiles = propagate(graph, plan.anchor, plan.at("core"))
            found |= {i: Held(_bytes(graph, i, tiles[i])) for i in (chain.cols_in, chain.product)}
        return found
    inside = [stage for stage, level in levels.items() if level == "core"]
    if plan.rule == "strassen":  # products of a block
        found[plan.anchor] = Held(_bytes(graph, plan.anchor, plan.at("l2")))
    finishes = plan.rule == "tile" and any(stage > plan.anchor for stage in inside)
    if finishes:  # core tiles, whose sums of chunks are kept until then
        found[plan.anchor] = Held(_bytes(graph, plan.anchor, plan.at("core")))
    if inside:
        core = plan.at("core")
        tiles = propagate(graph, plan.anchor, core)
        if plan.rule in ("rows", "block_rows"):
            rows = row_count(graph, plan)
            tiles = tiles_of_row(graph, core, rows) or tiles
        found |= {
            stage: Held(_bytes(graph, stage, tiles[stage])) for stage in inside if stage in tiles
        }
    return found


def _of_attention(graph: TileGraph, stages: Attention, plan: TilePlan) -> dict[int, Held]:
    """All keys of a block of queries, and of the rest what goes with them."""
    block = of_queries(graph.nodes[stages.scores], plan.at("l2").extents[COLUMN])
    count = block.extents[COLUMN] / max(1, graph.nodes[stages.scores].extents[COLUMN])
    heads = prod(graph.nodes[stages.scores].extents[:2])
    return {
        stage: Held(round(_all(graph, stage).size_bytes / heads * count))
        for stage in range(stages.last)
    }


def _bytes(graph: TileGraph, stage: int, tile: Tile) -> int:
    """Of what a stage writes for one tile of it."""
    node = graph.nodes[stage]
    points = prod(tile.extents[axis] for axis in node.space)
    return points * graph.tensors[node.write.tensor].dtype_bytes
