"""Aligned sizes: the few tile extents worth considering on a machine (Roller §3.2, alignment).

On a CPU the execution unit is a vector register and the transaction a cache line, so a vector axis
grows by whole vectors and a register tile is bounded by the register file.
"""

from __future__ import annotations

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tile.classify import group_size, is_small_window, reads_groups, shares_index, slides
from tvm_ext.tile.graph import TileNode

MAX_VECTORS = 4
LONE_VECTORS = 8
"""Vectors of a single row, which no other row stacks up."""
MAX_ROWS = 16
MAX_TAPS = 8
MAX_ROW_TAPS = 32
"""Taps of a row of a depthwise window that are unrolled together (31 x 31 over 32 x 32 x 64: 1.35
ms, one by one 1.7)."""


def lanes_for(extent: int, hardware: HardwareModel, dtype_bytes: int, divisor: int = 0) -> int:
    """Widest vector, in elements, that the axis can fill at least once.

    With `divisor` (a packed or grouped axis) no vector crosses the border of two blocks.
    """
    lanes = hardware.lanes(dtype_bytes)
    while lanes > 1 and (lanes > extent or (divisor and divisor % lanes)):
        lanes //= 2
    return lanes


def tile_lanes(extent: int, hardware: HardwareModel, dtype_bytes: int, divisor: int = 0) -> int:
    """`lanes_for` accumulators, of which a short axis is a vector of its own: LLVM fills it up
    (64 channels to the 3 of an image, three of four lanes: 71 us; by twos, the last moved back over
    the first: 131)."""
    short = 0 < extent < hardware.lanes(dtype_bytes)
    if short and not (divisor and divisor % extent):
        return extent
    return lanes_for(extent, hardware, dtype_bytes, divisor)


def vector_extents(
    extent: int, lanes: int, divisor: int = 0, *, most: int = MAX_VECTORS, lone: bool = False
) -> list[int]:
    """Register extents of the vector axis: one to four whole vectors, or the `most` given; eight
    for a `lone` row.

    With `divisor` (a packed or grouped axis) only extents that divide it or are divided by it.
    """
    counts = [*range(1, most + 1), *([LONE_VECTORS] if lone else [])]
    sizes = [lanes * n for n in counts if lanes * n <= extent] or [min(lanes, extent)]
    if divisor:
        sizes = [s for s in sizes if divisor % s == 0 or s % divisor == 0] or sizes[:1]
    return sizes


def row_extents(extent: int, limit: int) -> list[int]:
    """Register extents of a row axis, at most `limit`, those with the shortest tail per size first.

    Every extent is kept that no larger or equal extent beats in both reuse and tail.
    """
    limit = max(1, min(limit, MAX_ROWS, extent))
    tiles = {size: -(-extent // size) for size in range(1, limit + 1)}
    best: dict[int, int] = {}
    for size, count in tiles.items():
        best[count] = min(best.get(count, size), size)
    return sorted({*best.values(), limit}, reverse=True)


def even_extents(extent: int, limit: int) -> list[int]:
    """Register extents of a row axis that may have no tail, the longest first."""
    return [size for size in range(min(limit, MAX_ROWS, extent), 0, -1) if extent % size == 0]


def unroll_extents(extent: int) -> list[int]:
    """Unroll factors of a reduce axis: small divisors, so that no tail is needed, and the whole
    axis if it is short (the taps of a window: neighbours then share loads).

    Two iterations of a large register tile compile in 0.85 of the time of four and are as fast in
    most of 140 kernels; but with 28 accumulators and a GELU behind them LLVM spills (2.2 times as
    long), which of four it does not."""
    sizes = [size for size in (4, 8, 2, 1) if extent % size == 0][:2]
    return sizes if extent > MAX_TAPS or extent in sizes else [extent, *sizes]


def reduce_steps(node: TileNode) -> list[dict[int, int]]:
    """What one pass over a register tile takes of the reduction: a few iterations of its innermost
    axis, a small window whole, or a long row of a window, whose taps share what they read. Of
    groups narrower than a vector all channels, whose elements are picked from the same vectors."""
    if not node.reduce:
        return [{}]
    inner = node.reduce[-1]
    if group_size(node):
        channels = {a: node.axes[a].extent for a in node.reduce if not slides(node, a)}
        row = {inner: node.axes[inner].extent}
        return [channels | row, channels] if slides(node, inner) else [channels]
    steps = [{inner: size} for size in unroll_extents(node.axes[inner].extent)]
    whole = {axis: node.axes[axis].extent for axis in node.reduce}
    if is_small_window(node) and whole not in steps:
        steps.append(whole)
    row = {inner: node.axes[inner].extent}
    if takes_row(node, row):
        steps.append(row)
    return steps


def takes_row(node: TileNode, step: dict[int, int]) -> bool:
    """Whether a step is one whole long row of the taps of a window, and nothing else is added
    up."""
    windows = all(slides(node, axis) for axis in node.reduce if node.axes[axis].extent > 1)
    return windows and any(
        MAX_TAPS < size <= MAX_ROW_TAPS and size == node.axes[axis].extent
        for axis, size in step.items()
    )


def core_extents(extent: int, register: int, cores: int) -> list[int]:
    """Core-tile extents of an axis: multiples of the register tile that share it out evenly.

    Rounded up, all tiles of an axis are near equal; rounded down, a short tail is left over.
    """
    steps = -(-extent // register)
    sizes = {extent}
    for parts in (cores, 2 * cores, 4 * cores, 8 * cores, steps):
        sizes.add(min(extent, -(-steps // parts) * register))
        sizes.add(max(1, extent // register // parts) * register)
    return sorted(size for size in sizes if size <= extent)


def packed_divisor(node: TileNode, axis: int) -> int:
    """The block by which some read splits the axis (`w[o // 32, k, o % 32]`), or the whole axis if
    it is the inner one of two that index the output (channels of a group); 0 for any other. Groups
    of which a vector takes several split nothing."""
    sizes = [
        dim.mod if dim.mod and dim.div == 1 else dim.div
        for access in node.reads
        if not reads_groups(node, access)
        for dim in access.dims
        if dim is not None and dim.uses(axis) and (dim.mod or dim.div > 1)
    ]
    if shares_index(node, axis):
        sizes.append(node.axes[axis].extent)
    return min(sizes, default=0)
