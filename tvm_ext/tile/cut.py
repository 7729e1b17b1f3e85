"""Cutting a group with several stages worth tiling into pieces, each with a plan of its own.

    matmul; scale; max; exp; sum; divide; matmul
        →   matmul, scale | max, exp, sum, divide | matmul
    mean of columns; squares about it of columns; root
        →   mean of columns | squares about it of columns, root
    matmul; add; mean of a row; squares about it; root
        →   matmul, add | mean of a row, squares about it, root

The kernel stays one: a plan's `also` holds the plans of the other pieces (Ansor §4.1 tiles every
stage with data reuse; here each such stage is the anchor of a piece).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec

from tvm_ext.tile.attention import attention_stages
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tile.classify import (
    has_reuse,
    pads_window,
    reuses_both,
    vectorisable,
)
from tvm_ext.tile.fuse import in_vectors, row_tiles
from tvm_ext.tile.graph import Access, Tensor, TileGraph, TileNode
from tvm_ext.tile.plan import Attach, TilePlan
from tvm_ext.tile.strassen import products_of_quarters


class Piece(msgspec.Struct, frozen=True):
    """Some stages of a group as a group of their own; `stages[i]` is what stage i is there."""

    graph: TileGraph
    stages: tuple[int, ...]

    def outside(self, plan: TilePlan) -> TilePlan:
        """A plan of the piece with the stage numbers of the whole group."""
        return _renumbered(plan, dict(enumerate(self.stages)))

    def inside(self, plan: TilePlan) -> TilePlan:
        """A plan of the whole group's numbers with those of the piece. KeyError for another's."""
        return _renumbered(plan, {stage: place for place, stage in enumerate(self.stages)})


def cut(graph: TileGraph, least: int = 2) -> tuple[Piece, ...]:
    """The pieces of a group in the order of their stages; the group itself if fewer than `least`
    stages are worth tiling, or if its stages belong together (Winograd, attention).

    Worth it are stages with reuse, and a product alone beside other reductions; where there is
    none, and vectors lie across what is added up, so that no rule takes stages together row by row,
    all reductions are, if there are several (a variance over columns: 1105 us with a plan for one
    of two, with one for each 43) and no rows that several results share.
    """
    anchors = [place for place, node in enumerate(graph.nodes) if has_reuse(node)]
    if not anchors and least > 1 and not _by_rows(graph):
        reductions = [place for place, node in enumerate(graph.nodes) if node.kind == "reduce"]
        if all(vectorisable(graph, graph.nodes[place]) for place in reductions):
            anchors = reductions
    others = [n for place, n in enumerate(graph.nodes) if place not in anchors]
    if any(map(reuses_both, graph.nodes)) and any(n.kind == "reduce" for n in others):
        least = 1
    if len(anchors) < least or transform_chain(graph) or attention_stages(graph):
        return _whole(graph)
    owner: dict[int, int] = {anchor: anchor for anchor in anchors}
    for found in products_of_quarters(graph):
        owner |= dict.fromkeys(found, found.product)
    for place, node in enumerate(graph.nodes):
        if place not in owner and node.kind == "map":
            own = _beside(graph, place, owner)
            if own is not None:
                owner[place] = own
    runs: list[list[int]] = []
    for place in range(len(graph.nodes)):
        own = owner.get(place)
        if own is not None:
            home = next((run for run in runs if any(owner.get(s) == own for s in run)), None)
        else:
            before = runs[-1][-1] if runs else place
            between = any(anchor in range(before, place) for anchor in anchors)
            home = runs[-1] if runs and owner.get(before) is None and not between else None
        if home is None:
            runs.append([place])
        else:
            home.append(place)
    return tuple(_piece(graph, tuple(run)) for run in runs)


def handed_on_bytes(graph: TileGraph, pieces: Sequence[Piece]) -> int:
    """Bytes of what lies between the pieces of a group."""
    home = {stage: place for place, piece in enumerate(pieces) for stage in piece.stages}
    between = {
        access.tensor
        for stage, node in enumerate(graph.nodes)
        for access in node.reads
        if (source := graph.producer(access.tensor)) is not None and home[source] != home[stage]
    }
    return sum(graph.tensors[tensor].size_bytes for tensor in between)


def _by_rows(graph: TileGraph) -> bool:
    """Whether several results share rows enough that one task takes a row of each."""
    if len(graph.results) == 1 or not in_vectors(graph):
        return False
    last = graph.nodes[-1].extents
    return any(prod(last[:rows]) > 1 for _, rows, _ in row_tiles(graph))


def cut_for(kind: str, graph: TileGraph) -> tuple[Piece, ...]:
    """The pieces of a group on a kind of machine: a plan for GPUs is one of the whole group."""
    return _whole(graph) if kind == "cuda" else cut(graph)


def _whole(graph: TileGraph) -> tuple[Piece, ...]:
    return (Piece(graph, tuple(range(len(graph.nodes)))),)


def joined(pieces: tuple[Piece, ...], plans: tuple[TilePlan, ...]) -> TilePlan:
    """One plan of the group from one for each piece."""
    first, *rest = (piece.outside(plan) for piece, plan in zip(pieces, plans, strict=True))
    return msgspec.structs.replace(first, also=tuple(rest))


def parted(pieces: tuple[Piece, ...], plan: TilePlan) -> tuple[TilePlan, ...]:
    """The plan of each piece, in the piece's own numbers. KeyError for a plan cut otherwise."""
    plans = plan.parts()
    if len(plans) != len(pieces):
        raise KeyError(f"{len(plans)} plans, {len(pieces)} pieces")
    return tuple(piece.inside(part) for piece, part in zip(pieces, plans, strict=True))


def _beside(graph: TileGraph, place: int, owner: dict[int, int]) -> int | None:
    """The anchor a map stage goes with: the one that alone reads what it makes of inputs, or whose
    window slides over what it pads, or whose result it alone takes."""
    consumers = graph.consumers(place)
    sources = graph.sources(place)
    alone = len(consumers) == 1 and owner.get(consumers[0]) == consumers[0]
    if alone and (not sources or pads_window(graph, place)):
        return consumers[0]
    source = sources.pop() if len(sources) == 1 else None
    if source is not None and source in owner and graph.consumers(source) == (place,):
        return owner[source]
    return None


def _piece(graph: TileGraph, stages: tuple[int, ...]) -> Piece:
    written = {graph.nodes[stage].write.tensor for stage in stages}
    read_outside = {
        access.tensor
        for place, node in enumerate(graph.nodes)
        if place not in stages
        for access in node.reads
    }
    tensors: list[Tensor] = []
    numbers: dict[int, int] = {}

    def number(tensor: int) -> int:
        if tensor not in numbers:
            entry = graph.tensors[tensor]
            role = entry.role
            if role == "inner" and tensor not in written:
                role = "input"
            elif role == "inner" and tensor in read_outside:
                role = "output"
            numbers[tensor] = len(tensors)
            tensors.append(msgspec.structs.replace(entry, role=role))
        return numbers[tensor]

    def access(one: Access) -> Access:
        return Access(number(one.tensor), one.dims)

    def node(one: TileNode) -> TileNode:
        reads = tuple(access(read) for read in one.reads)
        return msgspec.structs.replace(one, reads=reads, write=access(one.write))

    nodes = tuple(node(graph.nodes[stage]) for stage in stages)
    name = f"{graph.name}[{','.join(map(str, stages))}]"
    return Piece(TileGraph(name, tuple(tensors), nodes, graph.signature), stages)


def _renumbered(plan: TilePlan, numbers: dict[int, int]) -> TilePlan:
    attach = tuple(Attach(numbers[entry.stage], entry.level) for entry in plan.attach)
    return msgspec.structs.replace(plan, anchor=numbers[plan.anchor], attach=attach, also=())
