"""Whether a group computes each slice of its outputs from the same slice of its inputs, and every
slice alike: rows of a product, sentences of a batch. Such a group is one tile, repeated, however
many slices there are.

    y[i, j] = sum over k of x[i, k] * w[k, j]      slices along i
    y[i, j] = x[i + 1, j] - x[i, j]                none: a slice needs its neighbour

A group with an extent that is not known is read twice, as if it were 2 and 3: what differs is what
is cut (regions that propagate with their positions; Welder §3.2 asks for their sizes only).
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_ext.tile.graph import Access, AffineDim, TileGraph, TileNode

Units = Mapping[int, int]
"""Elements of a slice along each axis of a node that is cut."""


def is_independent(two: TileGraph, three: TileGraph) -> bool:
    """Whether slices need nothing of each other, for a group of two slices and of three."""
    if len(two.tensors) != len(three.tensors) or len(two.nodes) != len(three.nodes):
        return False
    cuts: dict[int, tuple[int, int]] = {}
    for place, (a, b) in enumerate(zip(two.tensors, three.tensors, strict=True)):
        units = _units(a.shape, b.shape)
        if units is None or len(units) > 1:
            return False
        for cut in units.items():
            cuts[place] = cut
    outputs = [place for place, tensor in enumerate(three.tensors) if tensor.role == "output"]
    return all(place in cuts for place in outputs) and all(
        _is_local(a, b, cuts) for a, b in zip(two.nodes, three.nodes, strict=True)
    )


def _units(two: tuple[int, ...], three: tuple[int, ...]) -> dict[int, int] | None:
    """By place, how much extents grow with a slice; None if some are not multiples of that."""
    pairs = list(zip(two, three, strict=True))
    units = {place: b - a for place, (a, b) in enumerate(pairs) if a != b}
    return units if all(pairs[place][0] == 2 * unit for place, unit in units.items()) else None


def _is_local(two: TileNode, three: TileNode, cuts: Mapping[int, tuple[int, int]]) -> bool:
    units = _units(two.extents, three.extents)
    if two.kind == "opaque" or units is None or any(axis in three.reduce for axis in units):
        return False
    accesses = zip((*two.reads, two.write), (*three.reads, three.write), strict=True)
    return all(a == b and _stays(b, units, three, cuts.get(b.tensor)) for a, b in accesses)


def _stays(access: Access, units: Units, node: TileNode, cut: tuple[int, int] | None) -> bool:
    """Whether the next slice of a node touches the same of the next slice of the tensor, or of the
    whole of one that has none, and the first slice nothing but the first."""
    for place, dim in enumerate(access.dims):
        own = cut[1] if cut is not None and cut[0] == place else 0
        if dim is None:
            if own:
                return False
            continue
        moved = sum(dim.coeffs[axis] * unit for axis, unit in units.items())
        steps, left = divmod(moved, dim.div)
        if left or ((steps - own) % dim.mod if dim.mod else steps - own):
            return False
        if own and (dim.mod or not _within(dim, units, node, own)):
            return False
    return True


def _within(dim: AffineDim, units: Units, node: TileNode, own: int) -> bool:
    """Whether an index stays in the first slice while the cut axes do."""
    first, last = dim.ends([units.get(axis, size) for axis, size in enumerate(node.extents)])
    return first >= 0 and last < own
