"""What kind of work a node is: the questions the picker and the writer ask before they choose."""

from __future__ import annotations

from math import prod

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import Access, TileGraph, TileNode
from tvm_ext.tile.infer import region
from tvm_ext.tile.remember import remembered

STEAL_FLOPS = 2e7
"""Operations of a kernel, some 100 us on two cores, from which its tasks are handed out. What a
core takes over it finds in the other's cache, and leaves in its own for the next kernel: with short
kernels and those that mostly move data as well, ShuffleNet was 3 % slower, MobileNetV2 2 %."""


def is_shared_out(graph: TileGraph) -> bool:
    """Whether cores are to help each other with a function."""
    return graph.flops >= STEAL_FLOPS


@remembered
def vector_axis(node: TileNode) -> int | None:
    """The space axis whose neighbours lie side by side in the written tensor; None if none does."""
    last = node.write.dims[-1] if node.write.dims else None
    if last is None or last.div > 1:
        return None
    extents = [(node.axes[axis].extent, axis) for axis in node.space if last.coeffs[axis] == 1]
    return max(extents)[1] if extents else None


@remembered
def group_size(node: TileNode) -> int:
    """Neighbours along the vector axis that read one element of some input, where vectors of packed
    weights hold several times as many (`x[o // 4, c] * w[o // 16, c, o % 16]`); 0 for others."""
    vector = vector_axis(node)
    if vector is None:
        return 0
    packed = [
        dim.mod
        for read in node.reads
        for dim in read.dims
        if dim is not None and dim.uses(vector) and dim.div == 1 and dim.mod
    ]
    alone = [size for read in node.reads if (size := _divides(read, vector))]
    return min(alone) if packed and alone and min(alone) < min(packed) else 0


def reads_groups(node: TileNode, access: Access) -> bool:
    """Whether vectors of a read are made of several groups' elements (`group_size`)."""
    size, vector = group_size(node), vector_axis(node)
    return vector is not None and 0 < size == _divides(access, vector)


def _divides(access: Access, axis: int) -> int:
    """By how much an access divides the axis, of which it uses nothing else (`x[o // 4, c]`); 0 if
    it does not."""
    used = [dim for dim in access.dims if dim is None or dim.uses(axis)]
    if len(used) != 1 or used[0] is None or used[0].mod:
        return 0
    return used[0].div if used[0].div > 1 else 0


def vectorisable(graph: TileGraph, node: TileNode) -> bool:
    """Whether neighbours along the vector axis read neighbours, or one element, of every input.

    A map stage always counts: at worst it gathers.
    """
    axis = vector_axis(node)
    if axis is None or (node.kind == "reduce" and node.axes[axis].extent == 1):
        return False
    strides = [access.stride(axis, graph.tensors[access.tensor].shape) for access in node.reads]
    return node.kind == "map" or all(stride in (0, 1) for stride in strides)


def is_flat(graph: TileGraph, node: TileNode) -> bool:
    """Whether every access walks its whole tensor in memory order, element by element."""
    if node.kind != "map" or not node.axes:
        return False
    for access in (*node.reads, node.write):
        shape = graph.tensors[access.tensor].shape
        step = 1
        for axis in range(len(node.axes) - 1, -1, -1):
            extent = node.axes[axis].extent
            if extent > 1 and access.stride(axis, shape) != step:
                return False
            step *= extent
    return True


@remembered
def transposed_axis(node: TileNode) -> int | None:
    """The axis that lies side by side in what a map reads but not in what it writes."""
    if node.kind != "map" or not is_affine(node) or not node.axes:
        return None
    last = len(node.axes) - 1
    found = set()
    for read in node.reads:
        dims = read.dims[-1:]
        along = [axis for axis in node.space if any(dim and dim.coeffs[axis] == 1 for dim in dims)]
        if len(along) == 1 and along[0] != last and read.uses(last):
            found.add(along[0])
    return found.pop() if len(found) == 1 else None


@remembered
def is_square(node: TileNode, tile: Tile, lanes: int) -> bool:
    """Whether a register tile of a transposition goes by squares of vectors (`tir.transpose`)."""
    across = transposed_axis(node)
    return (
        across is not None
        and lanes > 1
        and vector_axis(node) == len(node.axes) - 1
        and tile.extents[across] == tile.extents[-1] == lanes
    )


@remembered
def shares_index(node: TileNode, axis: int) -> bool:
    """Whether another axis moves the same index of what the node writes (`y[g * 12 + o]`)."""
    return any(
        dim is not None and dim.coeffs[axis] and any(dim.coeffs[a] for a in node.space if a != axis)
        for dim in node.write.dims
    )


@remembered
def is_affine(node: TileNode) -> bool:
    """Whether every index the node reads or writes is an affine map of its axes."""
    return all(dim is not None for access in (*node.reads, node.write) for dim in access.dims)


def has_reuse(node: TileNode) -> bool:
    """Whether some input element is read by many iterations: some read ignores a space axis."""
    return node.kind == "reduce" and any(
        node.axes[axis].extent > 1 and not access.uses(axis)
        for access in node.reads
        for axis in node.space
    )


def reuses_both(node: TileNode) -> bool:
    """Whether tiles of a reduction save reads along more than one axis: two of the inputs that it
    steps through are read again along different ones, as those of a product, or windows overlap. Of
    rows that are multiplied by a vector the vector alone is."""
    ignored = [
        {axis for axis in node.space if node.axes[axis].extent > 1 and not access.uses(axis)}
        for access in node.reads
        if any(map(access.uses, node.reduce))
    ]
    again = [axes for axes in ignored if axes]
    return node.kind == "reduce" and (overlaps(node) or any(axes != again[0] for axes in again))


def overlaps(node: TileNode) -> bool:
    """Whether neighbouring outputs read the same input elements (a sliding window)."""
    return any(slides(node, axis) for axis in node.reduce)


@remembered
def slides(node: TileNode, axis: int) -> bool:
    """Whether a reduce axis steps through a window: it moves an index further than a space axis
    does from one of its elements to the next (channels of a group, `x[16 * g + c]`, do not)."""
    return any(
        dim is not None
        and any(
            0 < abs(dim.coeffs[other]) < abs(dim.coeffs[axis]) * node.axes[axis].extent
            for other in node.space
        )
        for access in node.reads
        for dim in access.dims
        if node.axes[axis].extent > 1
    )


@remembered
def taps_along_vectors(node: TileNode, access: Access) -> tuple[int, ...]:
    """The reduce axes that slide a window along the vectors of an access."""
    vector, last = vector_axis(node), access.dims[-1] if access.dims else None
    if vector is None or last is None or not last.coeffs[vector]:
        return ()
    return tuple(a for a in node.reduce if last.coeffs[a] and node.axes[a].extent > 1)


def split_axis(node: TileNode) -> int | None:
    """The outermost reduction axis with more than one iteration; None without one."""
    return next((axis for axis in node.reduce if node.axes[axis].extent > 1), None)


def leaves_holes_out(node: TileNode, register: Tile) -> bool:
    """Whether it is known of each iteration of an unrolled register tile if it falls on a hole."""
    return all(
        register.extents[hole.space] % hole.step == 0
        and (taps % hole.step == 0 or taps == node.axes[hole.reduce].extent)
        for hole in node.holes
        for taps in [register.extents[hole.reduce]]
    )


WINDOW_TAPS = 9
"""Taps that are few enough to be unrolled together."""


@remembered
def is_window(node: TileNode) -> bool:
    """Whether the reduction is nothing but a window (depthwise convolution, pooling)."""
    taps = [axis for axis in node.reduce if node.axes[axis].extent > 1]
    return bool(taps) and all(slides(node, axis) for axis in taps)


def is_small_window(node: TileNode) -> bool:
    """Whether it is one of few taps."""
    return is_window(node) and prod(node.axes[a].extent for a in node.reduce) <= WINDOW_TAPS


@remembered
def window_weights(node: TileNode) -> int:
    """Taps of a window over vectors that have a weight, which all rows of outputs share; none of
    pooling."""
    vector = vector_axis(node)
    rows = [axis for axis in node.space if axis != vector]
    weighted = any(not any(read.uses(axis) for axis in rows) for read in node.reads)
    if vector is None or not weighted or not is_window(node):
        return 0
    return prod(node.axes[axis].extent for axis in node.reduce)


@remembered
def producers(graph: TileGraph, anchor: int) -> tuple[int, ...]:
    """The map stages whose results the anchor reads: padding, packing."""
    return tuple(sorted(p for p in graph.sources(anchor) if graph.nodes[p].kind == "map"))


def is_padding(graph: TileGraph, node: TileNode) -> bool:
    """Whether the node only sets what it reads into a larger tensor, element beside element."""
    if node.kind != "map" or node.flops_per_point or len(node.reads) != 1:
        return False
    source = graph.tensors[node.reads[0].tensor].shape
    units = [tuple(int(a == axis) for a in range(len(node.axes))) for axis in node.space]
    return len(source) == len(units) and all(
        read is not None
        and write is not None
        and read.coeffs == write.coeffs == unit
        and (write.offset, read.div, read.mod) == (0, 1, 0)
        for unit, read, write in zip(units, node.reads[0].dims, node.write.dims, strict=True)
    )


def pads_window(graph: TileGraph, stage: int) -> bool:
    """Whether a stage is the padding of what one window alone reads."""
    consumers = graph.consumers(stage)
    alone = len(consumers) == 1 and overlaps(graph.nodes[consumers[0]])
    return alone and is_padding(graph, graph.nodes[stage])


def pads_whole_vectors(graph: TileGraph, node: TileNode, padding: TileNode) -> bool:
    """Whether every vector the node reads of what `padding` writes is padding or is none: it reads
    them side by side, or those of several groups, along an index that is not padded."""
    vector, tensor = vector_axis(node), padding.write.tensor
    if vector is None or not is_padding(graph, padding):
        return False
    source, shape = graph.tensors[padding.reads[0].tensor].shape, graph.tensors[tensor].shape
    reads = [access for access in node.reads if access.tensor == tensor]
    return all(
        access.stride(vector, shape) == 1 or reads_groups(node, access) for access in reads
    ) and not any(
        dim is None or (dim.uses(vector) and before != after)
        for access in reads
        for dim, before, after in zip(access.dims, source, shape, strict=True)
    )


PANEL_COLUMNS = 64
"""Columns of a packed panel at most: four vectors of 16."""


@remembered
def packed_reads(node: TileNode) -> tuple[Access, ...]:
    """Reads of operands packed in panels: weights, `w[o // B, k, o % B]`, or `w[0, k, o]` where one
    panel has all columns."""
    return tuple(
        access
        for access in node.reads
        if any(dim and dim.mod for dim in access.dims) or _is_panel(node, access)
    )


def _is_panel(node: TileNode, access: Access) -> bool:
    """Whether a reduction reads the only panel of a packed operand: its number is a constant, what
    is added up and the columns, which are few, come last, and rows share it."""
    columns = vector_axis(node)
    if node.kind != "reduce" or columns is None or node.axes[columns].extent > PANEL_COLUMNS:
        return False
    every = range(len(node.axes))
    indices = [dim.coeffs if dim and dim.div == 1 and not dim.mod else None for dim in access.dims]
    panel = [tuple(int(axis == one) for axis in every) for one in (*node.reduce, columns)]
    rows = [axis for axis in node.space if node.axes[axis].extent > 1]
    numbered = (0,) * len(node.axes) in indices[: -len(panel)]
    shared = not all(access.uses(axis) for axis in rows)
    return indices[-len(panel) :] == panel and numbered and shared


def takes_whole_panels(node: TileNode, register: Tile) -> bool:
    """Whether a register tile takes packed operands in whole panels, not in parts of one."""
    columns = vector_axis(node)
    if columns is None:
        return True
    dims = [dim for access in packed_reads(node) for dim in access.dims if dim]
    within = [dim for dim in dims if dim.coeffs[columns] and (dim.mod or dim.div == 1)]
    panels = [dim.div * dim.mod or node.axes[columns].extent for dim in within]
    return not any(register.extents[columns] % panel for panel in panels)


def stageable(graph: TileGraph, node: TileNode, core: Tile, register: Tile) -> tuple[int, ...]:
    """Reads of inputs that several register tiles of a core tile go over, in rows of vectors that
    lie apart: side by side they would neither collide in cache nor share lines with others."""
    vector = vector_axis(node)
    if vector is None:
        return ()
    found = []
    for place, access in enumerate(node.reads):
        tensor = graph.tensors[access.tensor]
        shape = region(access, whole_reduction(node, core), tensor.shape)
        if (
            tensor.role == "input"
            and access.stride(vector, tensor.shape) == 1
            and shape[-1] < tensor.shape[-1]
            and not any(dim is None or dim.mod for dim in access.dims)
            and staged(node, access, core, register)
        ):
            found.append(place)
    return tuple(found)


@remembered
def whole_reduction(node: TileNode, core: Tile) -> Tile:
    """The core tile with all iterations of the reduction."""
    pairs = zip(node.axes, core.extents, strict=True)
    return Tile(tuple(a.extent if a.kind == "reduce" else c for a, c in pairs))


@remembered
def sharing_axes(node: TileNode) -> tuple[int, ...]:
    """Space axes along which all iterations use the same packed operands: the rows."""
    packed = packed_reads(node)
    return tuple(axis for axis in node.space if not any(read.uses(axis) for read in packed))


@remembered
def has_no_gaps(node: TileNode, tile: Tile) -> bool:
    """Whether the tile writes a box. Of two axes in one index (`y[4 * g + c]`) a tile may cut the
    inner one only where it takes a single element of the outer one: what follows works on boxes."""
    for dim in node.write.dims:
        if dim is None:
            continue
        inner_first = sorted(
            (abs(step), axis) for axis, step in enumerate(dim.coeffs) if step and axis in node.space
        )
        cut = False
        for _, axis in inner_first:
            if cut and tile.extents[axis] > 1:
                return False
            cut = cut or tile.extents[axis] < node.axes[axis].extent
    return True


def loops_in_use(node: TileNode, core: Tile, order: tuple[int, ...]) -> int:
    """How many of the leading space loops hold every one that steps through several core tiles."""
    counts = core.counts(node.axes)
    grid = [axis for axis in order if axis in node.space]
    used = [place for place, axis in enumerate(grid) if counts[axis] > 1]
    return used[-1] + 1 if used else 0


def cut_axis(tile: Tile) -> int:
    """The axis a contiguous box is cut on: the first it does not take one element of."""
    extents = tile.extents
    return next((axis for axis, extent in enumerate(extents) if extent > 1), len(extents) - 1)


def even_lanes(extent: int, lanes: int) -> int:
    """The widest vector, at most `lanes`, that divides the extent."""
    while lanes > 1 and extent % lanes:
        lanes //= 2
    return lanes


def staged(node: TileNode, access: Access, core: Tile, register: Tile) -> bool:
    """Whether several register tiles of one core tile read the same elements through `access`, so
    that a copy close to them saves traffic."""
    several = {axis for axis in node.space if core.extents[axis] > register.extents[axis]}
    return any(not access.uses(axis) for axis in several) or any(
        dim is not None
        and any(dim.coeffs[axis] for axis in several)
        and any(dim.coeffs[axis] and node.axes[axis].extent > 1 for axis in node.reduce)
        for dim in access.dims
    )
