"""Split axes: where quotients and remainders of one axis index different tensors, it becomes two.

    y[h] += x[h // 2 + k] * w[h % 2, k]     a transposed convolution
        →
    y[h, phase] += x[h + k] * w[phase, k]

Indices are affine then, and a tile is free to take outputs of one phase alone.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

from tvm_ext.tile.graph import AffineDim, TileGraph, TileNode
from tvm_ext.tir.affine import divisions, loads
from tvm_ext.tir.read import sources
from tvm_ext.tvm_api import (
    Analyzer,
    PrimFunc,
    SBlockRV,
    Schedule,
    ScheduleError,
    s_tir,
    structural_map,
    tirx,
)


def _phased_axes(node: TileNode) -> dict[int, int]:
    """Space axes whose quotient and remainder by one number index different tensors (`x[h // 2]`
    and `w[h % 2]`, a transposed convolution), with that number."""
    found: dict[int, int] = {}
    for read in node.reads:
        for dim in read.dims:
            steps = [axis for axis, step in enumerate(dim.coeffs) if step] if dim else []
            if dim is None or not dim.mod or dim.div > 1 or len(steps) != 1:
                continue
            (axis,) = steps
            whole = node.axes[axis].kind == "space" and node.axes[axis].extent % dim.mod == 0
            quotients = [
                other
                for other in node.reads
                if any(d and d.div == dim.mod and d.coeffs[axis] == 1 for d in other.dims)
            ]
            if whole and quotients and read not in quotients:
                found[axis] = dim.mod
    return found


def _joined_axes(graph: TileGraph, node: TileNode) -> dict[int, int]:
    """Axes of an epilogue whose quotient and remainder by one number index two axes of what a
    reduction makes (`conv[c // 34, c % 34]`, groups side by side), with that number."""
    found = {}
    for read in node.reads:
        maker = graph.producer(read.tensor)
        if maker is None or graph.nodes[maker].kind != "reduce":
            continue
        for outer, inner in pairwise(read.dims):
            if outer is None or inner is None or outer.coeffs != inner.coeffs:
                continue
            steps = [axis for axis, step in enumerate(inner.coeffs) if step]
            alone = len(steps) == 1 and inner.coeffs[steps[0]] == 1 and not inner.offset
            if alone and inner.div == 1 and outer.div == inner.mod > 1 and not outer.mod:
                found[steps[0]] = inner.mod
    return {axis: size for axis, size in found.items() if node.axes[axis].extent % size == 0}


def _joined_whole(graph: TileGraph, index: int) -> int | None:
    """The reduction whose axes an epilogue joins, if it reads all of it and nothing else does: the
    epilogue may then follow those axes."""
    makers = list(graph.sources(index))
    if len(makers) > 1:
        return None
    (maker,) = makers
    made = graph.tensors[graph.nodes[maker].write.tensor].shape
    whole = prod(made) == prod(graph.nodes[index].extents)
    return maker if whole and graph.consumers(maker) == (index,) else None


def _blocked_axes(
    schedule: Schedule, graph: TileGraph, node: TileNode, block: SBlockRV
) -> dict[int, int]:
    """Space axes in blocks of which a non-affine index moves on (`o // 32 * 16 + c`, the channels
    of a group), and those of `_phased_axes` and `_joined_axes`, with the size of the blocks."""
    if all(d is not None for a in node.reads for d in a.dims):
        return _phased_axes(node) if node.kind == "reduce" else _joined_axes(graph, node)
    body = schedule.get(block)
    bounds = _bounds(body)
    tensors = list(dict.fromkeys(access.tensor for access in node.reads))
    places = dict(zip(sources(body.body), tensors, strict=True))
    unclear = [
        index
        for load in loads(body.body.value)
        for place, index in enumerate(load.indices)
        if any(
            access.tensor == places.get(load.source) and access.dims[place] is None
            for access in node.reads
        )
    ]
    found: dict[int, set[int]] = {}
    for size, variable in divisions(map(bounds.simplify, unclear)):
        for place, iv in enumerate(body.iter_vars):
            if iv.var.same_as(variable):
                found.setdefault(place, set()).add(size)
    sizes = {place: choice.pop() for place, choice in found.items() if len(choice) == 1}
    return {
        place: size
        for place, size in sizes.items()
        if node.axes[place].kind == "space" and node.axes[place].extent % size == 0
    }


def split_blocked(schedule: Schedule, graph: TileGraph, blocks: list[SBlockRV], kind: str) -> bool:
    """Makes of every blocked axis two, of blocks and inside one, so that indices become affine."""
    changed = False
    for index, (node, block) in enumerate(zip(graph.nodes, blocks, strict=True)):
        sizes = _blocked_axes(schedule, graph, node, block) if node.kind == kind else {}
        if not sizes:
            continue
        every = [sizes.get(place, 0) for place in range(len(node.axes))]
        joins = node.kind == "map" and sizes == _joined_axes(graph, node)
        maker = _joined_whole(graph, index) if joins else None
        try:
            if maker is None:
                schedule.transform_block_layout(block, _quotients(every))
            else:
                schedule.reindex(blocks[maker], ("write", 0))
                schedule.reverse_compute_inline(block)
            changed = True
        except ScheduleError:
            continue
    return changed


def split_written(schedule: Schedule, graph: TileGraph, blocks: list[SBlockRV]) -> bool:
    """Lays what a reduction writes at sums of axes (`y[2 * h + phase]`) out by those axes, if one
    epilogue reads it whole, element for element: a tile of it is then free to leave gaps. Whether
    the schedule is another."""
    changed = False
    for index, (node, block) in enumerate(zip(graph.nodes, blocks, strict=True)):
        sizes = [_inner_extent(node, dim) for dim in node.write.dims]
        readers = [graph.nodes[other] for other in graph.consumers(index)]
        if node.kind != "reduce" or not any(sizes) or len(readers) != 1:
            continue
        whole = graph.tensors[node.write.tensor].shape
        reads = [read for read in readers[0].reads if read.tensor == node.write.tensor]
        plain = all(dim is not None and dim.is_axis() for read in reads for dim in read.dims)
        all_of_it = all(read.box(readers[0].extents, whole) == whole for read in reads)
        if readers[0].kind != "map" or not plain or not all_of_it:
            continue
        schedule.transform_layout(block, ("write", 0), _quotients(sizes))
        changed = True
    return changed


def _quotients(sizes: list[int]) -> Any:
    """Each index as its quotient and remainder by its size; those of size 0 stay."""
    before = [tirx.Var(f"i{place}", "int32") for place in range(len(sizes))]
    after: list[Any] = []
    for index, size in zip(before, sizes, strict=True):
        after += [index // size, index % size] if size else [index]
    return tirx.IndexMap(before, after, None)


def _inner_extent(node: TileNode, dim: AffineDim | None) -> int:
    """Extent of the inner one of two axes that an index counts (`2 * h + phase`), 0 of others."""
    steps = {step: axis for axis, step in enumerate(dim.coeffs if dim else ()) if step}
    outer = max(steps, default=0)
    if dim is None or len(steps) != 2 or 1 not in steps or dim.div > 1 or dim.mod or dim.offset:
        return 0
    return outer if node.axes[steps[1]].extent == outer else 0


def _bounds(block: Any) -> Analyzer:
    """What is known of the axes of a block. Those of one element keep their name."""
    bounds = Analyzer()
    for axis in block.iter_vars:
        if not isinstance(axis.dom.extent, tirx.IntImm) or int(axis.dom.extent) > 1:
            bounds.bind(axis.var, axis.dom)
    return bounds


def with_simple_quotients(func: PrimFunc) -> PrimFunc:
    """The function with quotients and remainders worked out that axes of blocks leave no choice."""

    def simplify(block: Any) -> Any:
        simple = _bounds(block).simplify
        return structural_map(block, [(tirx.FloorDiv, simple), (tirx.FloorMod, simple)])

    return func.with_body(structural_map(func.body, [(s_tir.SBlock, simplify)], order="post"))
