"""Indices that are one again: `x[i // 7, i % 7]` of a tensor of 5 x 7 is `x[i]` of 35 elements."""

from __future__ import annotations

from msgspec import structs

from tvm_ext.tile.graph import Access, AffineDim, TileGraph


def merge_indices(graph: TileGraph) -> TileGraph:
    """The graph with neighbouring indices of a tensor as one wherever an access to it goes from the
    end of a row to the start of the next; its tensors then have fewer dimensions."""
    for number in range(len(graph.tensors)):
        place = 0
        while place + 1 < len(graph.tensors[number].shape):
            merged = _merged(graph, number, place)
            graph, place = (graph, place + 1) if merged is None else (merged, max(0, place - 1))
    return graph


def _merged(graph: TileGraph, number: int, place: int) -> TileGraph | None:
    """The graph with indices `place` and the next of a tensor as one; None where they are two."""
    tensor = graph.tensors[number]
    extent = tensor.shape[place + 1]
    accesses = {a for node in graph.nodes for a in (*node.reads, node.write) if a.tensor == number}
    found = {a: _one(a.dims[place], a.dims[place + 1], extent) for a in accesses}
    if any(found.values()):
        rest = [access for access, dim in found.items() if dim is None]
        found |= {a: _counted(a.dims[place], a.dims[place + 1], extent) for a in rest}
    if None in found.values():
        return None

    def of(access: Access) -> Access:
        dim = found.get(access)
        if dim is None:
            return access
        return Access(number, (*access.dims[:place], dim, *access.dims[place + 2 :]))

    nodes = tuple(
        structs.replace(node, reads=tuple(map(of, node.reads)), write=of(node.write))
        for node in graph.nodes
    )
    shape = (*tensor.shape[:place], tensor.shape[place] * extent, *tensor.shape[place + 2 :])
    tensors = list(graph.tensors)
    tensors[number] = structs.replace(tensor, shape=shape)
    return structs.replace(graph, tensors=tuple(tensors), nodes=nodes)


def _one(outer: AffineDim | None, inner: AffineDim | None, extent: int) -> AffineDim | None:
    """The index whose quotient by the extent is the outer one, and whose remainder the inner."""
    if outer is None or inner is None or inner.mod != extent:
        return None
    same = (outer.coeffs, outer.offset) == (inner.coeffs, inner.offset)
    if not same or outer.div != inner.div * extent:
        return None
    return AffineDim(inner.coeffs, inner.offset, inner.div, outer.mod * extent)


def _counted(outer: AffineDim | None, inner: AffineDim | None, extent: int) -> AffineDim | None:
    """Two indices without quotients, counted by one: `x[h, w]` of rows of 56 is `x[56 * h + w]`."""
    for dim in (outer, inner):
        if dim is None or dim.div > 1 or dim.mod:
            return None
    assert outer is not None
    assert inner is not None
    steps = zip(outer.coeffs, inner.coeffs, strict=True)
    return AffineDim(tuple(extent * a + b for a, b in steps), extent * outer.offset + inner.offset)
