"""Traffic: the bytes a tiled operator pulls into a memory level (Roller §3.3, Welder §3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, prod

from msgspec.structs import replace

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chunk import at_once, chunk_of
from tvm_ext.tile.classify import (
    is_padding,
    is_window,
    packed_reads,
    vector_axis,
    whole_reduction,
)
from tvm_ext.tile.footprint import access_bytes, touched
from tvm_ext.tile.graph import Access, Tensor, TileGraph, TileNode
from tvm_ext.tile.infer import region
from tvm_ext.tile.plan import Attach, TilePlan
from tvm_ext.tile.remember import remembered

WAY_BYTES = 4096
"""Addresses that differ by a multiple of this fall into one set of any cache: a page, which is also
one way of the first level."""
WAYS = 8
"""Lines that one set holds at least, on the cores of today."""


SHORT_ROW = 5
"""Taps of a window's row up to which one vector of channels side by side is best by AVX2. Of seven
two are, in models (28 x 56 of 96 channels: 12 points by one vector 760 us, 6 by two 690)."""


@remembered
def has_short_rows(node: TileNode) -> bool:
    """Whether the reduction is a window with few taps in a row."""
    return is_window(node) and node.axes[node.reduce[-1]].extent <= SHORT_ROW


class Nest:
    """The loops of one core tile, with the data each sub-nest touches.

    Depth d is the sub-nest inside the first d loops; the innermost body is the register tile.
    Loops of one iteration are none. Chunks of the reduction are the outermost loop.
    """

    def __init__(
        self, graph: TileGraph, node: TileNode, plan: TilePlan, core: Tile, line_bytes: int
    ) -> None:
        graph = _as_read(graph, plan.anchor, plan.attach)
        self._graph = graph
        self._reduce, self._short = node.reduce, has_short_rows(node)
        self._accesses = (*node.reads, node.write)
        register = plan.at("register").extents
        space, reduce = set(node.space), set(node.reduce)
        order = [axis for axis in plan.order if axis in space]
        order += [axis for axis in plan.order if axis in reduce]
        full = whole_reduction(node, core).extents
        ends = [(axis, full[axis]) for axis in order]
        if chunk := chunk_of(node, plan):
            ends[order.index(chunk.axis)] = chunk
            ends.insert(0, (chunk.axis, full[chunk.axis]))
        self._tiles, self._loops, self._counts = [Tile(register)], list[int](), list[int]()
        extents = list(register)
        for axis, end in reversed(ends):
            if end > extents[axis]:
                self._loops.append(axis)
                self._counts.append(-(-end // extents[axis]))
                extents[axis] = end
                self._tiles.append(Tile(tuple(extents)))
        self._loops.reverse()
        self._counts.reverse()
        self._tiles.reverse()
        self._sizes = [
            [access_bytes(graph, access, tile, line_bytes) for tile in self._tiles]
            for access in self._accesses
        ]
        self._held = [sum(sizes) for sizes in zip(*self._sizes, strict=True)]
        self._coming = [0] * len(self._tiles)
        panel = at_once(node, plan, plan.at("register"))
        for access in packed_reads(node) if plan.prefetch else ():
            more = access_bytes(graph, access, panel, line_bytes)
            sizes = self._sizes[node.reads.index(access)]
            coming = zip(self._coming, sizes, strict=True)
            self._coming = [held + more if size >= more else held for held, size in coming]
        self._rooms: list[Sequence[float]] = list(self._sizes)
        self._by_vectors = [False] * len(self._sizes)
        vector = vector_axis(node)
        inner = [graph.nodes[one.stage].write.tensor for one in plan.attach if one.level == "core"]
        for place, access in enumerate(node.reads):
            tensor = graph.tensors[access.tensor]
            step = None if vector is None else access.stride(vector, tensor.shape)
            if step not in (0, 1):
                continue
            self._by_vectors[place] = step == 1
            shape = tensor.shape
            if place in plan.staged or access.tensor in inner:
                shape = region(access, whole_reduction(node, core), shape)
            crowded = [crowding(access, tile, tensor, shape, line_bytes) for tile in self._tiles]
            if max(crowded) > 1:
                pairs = zip(self._sizes[place], crowded, strict=True)
                self._rooms[place] = [size * times for size, times in pairs]

    def bytes_into(
        self, capacity_bytes: float, *, hashed: bool = False, ahead_bytes: float = inf
    ) -> tuple[float, float]:
        """Bytes one core tile pulls into a level of that capacity, and those of them in short rows
        that crowd few of the level's sets, as many times as these are overfilled; none where a
        `hashed` level spreads addresses over its sets. What a plan asks for ahead of its use
        comes into this level, and has room in `ahead_bytes` together with what is in use.

        The largest sub-nest whose data fits is fetched once; what a loop outside it advances over
        is fetched again, except where the loops right outside it leave an access in place. A line
        of which one step of a reduction, or of a window of short rows, takes a part is still there
        for the next (7 x 7 of 960 channels under 3 x 3: by 8 channels 14 us, by 16 18); elsewhere
        it may be gone (maps of 256 channels by 8 instead of 16: 220 → 413 us). Crowded rows fit as
        if they were as many times larger. Of what goes to every lane they count as crowded where it
        is only for them that it does not fit.
        """
        total, crowded = 0.0, 0.0
        both = [now + coming for now, coming in zip(self._held, self._coming, strict=True)]
        fits = max(self._depth(self._held, capacity_bytes), self._depth(both, ahead_bytes))
        all_rooms = self._sizes if hashed else self._rooms
        places = zip(self._accesses, self._sizes, all_rooms, self._by_vectors, strict=True)
        for access, sizes, rooms, by_vectors in places:
            depth = max(fits, self._depth(rooms, capacity_bytes))
            outside = depth
            while outside and not access.uses(self._loops[outside - 1]):
                outside -= 1
            loads = prod(self._counts[:outside])
            fetched = loads * sizes[depth]
            if outside and (self._short or self._loops[outside - 1] in self._reduce):
                steps = self._counts[outside - 1]
                exact = steps * access_bytes(self._graph, access, self._tiles[depth])
                fetched = min(fetched, loads // steps * max(sizes[outside - 1], exact))
            total += fetched
            if by_vectors or depth > fits:
                crowded += fetched * max(0.0, rooms[depth] / max(1, sizes[depth]) / WAYS - 1)
        return total, crowded

    def _depth(self, rooms: Sequence[float], capacity_bytes: float) -> int:
        """The first sub-nest that fits; the innermost if none does."""
        for depth, room in enumerate(rooms):
            if room <= capacity_bytes:
                return depth
        return len(self._loops)


@remembered
def _as_read(graph: TileGraph, anchor: int, attach: tuple[Attach, ...]) -> TileGraph:
    """The graph in which a tensor that is padded where it is read has no padding: none is loaded.

    Of 7 x 7 points under 7 x 7 taps a row would be 13 elements.
    """
    tensors = list(graph.tensors)
    for entry in attach:
        node = graph.nodes[entry.stage]
        if entry.level == "register" and entry.stage < anchor and is_padding(graph, node):
            shape = tensors[node.reads[0].tensor].shape
            tensors[node.write.tensor] = replace(tensors[node.write.tensor], shape=shape)
    return replace(graph, tensors=tuple(tensors))


def most_crowded(line_bytes: int) -> float:
    """What `crowding` is at most: of rows of a line each."""
    return max(1.0, WAY_BYTES / line_bytes)


@remembered
def crowding(
    access: Access, tile: Tile, tensor: Tensor, shape: tuple[int, ...], line_bytes: int
) -> float:
    """How much more of a cache's sets than its bytes need the region of a tile takes, in a buffer
    of that shape: rows that lie a power of two apart share few sets (Roller §3.2, alignment).

    Packed operands and indices that are not affine count as 1.
    """
    if any(dim is None or dim.mod for dim in access.dims):
        return 1.0
    box = touched(access, tile, shape)
    run, row, whole = 1, 1, True
    for dim, size, extent in zip(*map(reversed, (access.dims, box, shape)), strict=True):
        taken = zip(dim.coeffs, tile.extents, strict=True)
        steps = [abs(each) for each, count in taken if each and count > 1]
        step = max(1, min(steps, default=1) // dim.div)
        if size > 1 and not (whole and step == 1):
            run_bytes = -(-run * tensor.dtype_bytes // line_bytes) * line_bytes
            return max(1.0, gcd(row * step * tensor.dtype_bytes, WAY_BYTES) / run_bytes)
        run *= size
        whole = whole and size == extent
        row *= extent
    return 1.0
