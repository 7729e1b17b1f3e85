"""Register tiles: the few aligned ones whose accumulators fit the register file (Roller §3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import (
    even_extents,
    packed_divisor,
    reduce_steps,
    row_extents,
    takes_row,
    vector_extents,
)
from tvm_ext.picker.halves import most_vectors
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import (
    has_reuse,
    is_small_window,
    is_square,
    shares_index,
    transposed_axis,
    window_weights,
)
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import MAX_UNROLLED
from tvm_ext.tile.shift import shiftable

BODY_VECTORS = 128
"""Vector operations in an unrolled body: beyond it instruction fetch limits (461 against 518
GFLOP/s at 208 operations, 13 x 2 vectors by 8, on Zen 5)."""
SCRATCH_REGISTERS = 16
"""One register in so many is what LLVM's scheduler keeps operands in flight with. One accumulator
too many goes through memory at every step and bounds the loop (of 32 registers 14 x 2 vectors reach
99 % of peak, 7 x 4 vectors 55 %)."""
PRODUCT_REGISTERS = 2
"""Where products are no part of the addition, what holds one, and the copy it destroys; on Arm,
which multiplies by a lane of a register, the registers that rows are loaded into."""
WINDOW_ROWS = 2
"""Rows of outputs that share the taps of a small window. LLVM unrolls a window that is taken row by
row too, and keeps the weights of all of it: without registers for them it spills (3 x 3 over
56 x 56 x 144 with 16 registers: 105 us, one row of outputs 75)."""
WINDOW_EDGE = 2
"""Inputs of a row that a small window reads beyond its outputs."""
TAIL_STATEMENTS = 64
"""Statements of a register tile whose vectors may be cut: a cut vector runs lane by lane."""


def register_tiles(
    graph: TileGraph, node: TileNode, vector: int | None, lanes: int, hw: HardwareModel
) -> Iterator[Tile]:
    """Aligned register tiles whose accumulators fit the register file."""
    if hollow := list(hollow_tiles(node, vector, lanes, hw)):
        yield from hollow
        return
    squares = list(square_tiles(node, lanes))
    yield from squares
    rows = row_axes(node, vector)
    if vector is not None and not any(shares_index(node, axis) for axis in rows):
        alike = {axis for axis in rows if shares_vectors(graph, node, vector, axis)}
        rows.sort(key=lambda axis: axis in alike)
    last = rows[-1] if rows else None
    before = rows[-2] if len(rows) > 1 else None
    divisor = packed_divisor(node, vector) if vector is not None else 0
    wide = [1]
    if vector is not None:
        lone = has_reuse(node) and not rows and not divisor
        extent, most = node.axes[vector].extent, most_vectors(lanes, hw)
        wide = vector_extents(extent, lanes, divisor, most=most, lone=lone)
    steps = reduce_steps(node)
    weights = window_weights(node) if is_small_window(node) else 0
    usable = hw.vector_registers - hw.vector_registers // SCRATCH_REGISTERS
    if hw.kind == "arm" or "fma" not in hw.isa:
        usable -= PRODUCT_REGISTERS
    for width in wide:
        vectors = max(1, width // max(1, lanes))
        budget = max(1, (usable - vectors) // vectors)
        if node.kind == "map":
            budget = 4
        cut = vector is not None and node.axes[vector].extent % lanes
        if vector is not None and cut and not shiftable(graph, node, vector):
            budget = min(budget, max(1, TAIL_STATEMENTS // width))
        for height in row_extents(node.axes[last].extent, budget) if last is not None else [1]:
            stacks = [1]
            if before is not None and last is not None:
                whole = height == node.axes[last].extent
                most = budget // height if whole else min(WINDOW_ROWS, budget // height)
                if whole or is_small_window(node):
                    stacks = row_extents(node.axes[before].extent, max(1, most))
                if shares_index(node, before):
                    stacks = even_extents(node.axes[before].extent, max(1, most))
            for stack in stacks:
                accumulators = -(-width // lanes) * height * stack
                for step in steps:
                    unroll = prod(step.values())
                    longest = MAX_UNROLLED if takes_row(node, step) else BODY_VECTORS
                    if unroll > 1 and accumulators * unroll > longest:
                        continue
                    beside = (unroll + height + WINDOW_EDGE) * vectors
                    room = stack > 1 and accumulators + beside <= hw.vector_registers
                    if holds_window(node, step) and not room:
                        continue
                    if stack > 1 and accumulators + weights * vectors >= hw.vector_registers:
                        continue
                    extents = [1] * len(node.axes)
                    for axis, size in ((vector, width), (last, height), (before, stack)):
                        if axis is not None:
                            extents[axis] = size
                    for axis, size in step.items():
                        extents[axis] = size
                    tile = Tile(tuple(extents))
                    if tile not in squares:
                        yield tile


def square_tiles(node: TileNode, lanes: int) -> Iterator[Tile]:
    """The register tile of a transposition that goes by squares of vectors."""
    across = transposed_axis(node)
    if across is not None:
        sides = (across, len(node.axes) - 1)
        tile = Tile(tuple(lanes if axis in sides else 1 for axis in range(len(node.axes))))
        if tile.fits(node.axes) and is_square(node, tile, lanes):
            yield tile


def holds_window(node: TileNode, step: dict[int, int]) -> bool:
    """Whether one pass takes a small window whole: the compiler then keeps its weights in registers
    from one register tile to the next, beside a row of inputs."""
    return is_small_window(node) and all(
        step.get(axis, 1) == node.axes[axis].extent for axis in node.reduce
    )


def hollow_tiles(
    node: TileNode, vector: int | None, lanes: int, hw: HardwareModel
) -> Iterator[Tile]:
    """Register tiles in which it is known of each iteration whether it adds zero: unrolled along
    the taps, and along their space axes, in whole steps. One vector wide, and with registers for
    the weights of all taps beside the accumulators (16 x 16 x 128 points of 256 channels by 4 x 4
    taps: 6 x 4 points by all taps 875 us, by 2 x 2 of them 657; two vectors wide by all 1100)."""
    if vector is None or not node.holes:
        return
    sizes = [1] * len(node.axes)
    sizes[vector] = min(lanes, node.axes[vector].extent)
    usable = hw.vector_registers - hw.vector_registers // SCRATCH_REGISTERS
    extents = [(node.axes[hole.space].extent, node.axes[hole.reduce].extent) for hole in node.holes]
    points, taps = [], []
    for hole, (space, reduce) in zip(node.holes, extents, strict=True):
        points.append(range(hole.step, min(usable, space) + 1, hole.step))
        taps.append(sorted({reduce} | ({hole.step} if reduce % hole.step == 0 else set())))
    for unrolled in product(*taps):
        for chosen in product(*points):
            if prod(chosen) + prod(unrolled) <= usable:
                tile = list(sizes)
                for hole, point, tap in zip(node.holes, chosen, unrolled, strict=True):
                    tile[hole.space], tile[hole.reduce] = point, tap
                yield Tile(tuple(tile))


def shares_vectors(graph: TileGraph, node: TileNode, vector: int, axis: int) -> bool:
    """Whether neighbours along an axis read the same vectors of some input. Output channels of a
    convolution in planes do; its rows share weights only, which are elements."""
    return any(
        access.stride(vector, graph.tensors[access.tensor].shape) == 1 and not access.uses(axis)
        for access in node.reads
    )


def row_axes(node: TileNode, vector: int | None) -> list[int]:
    """Axes to stack vectors along: those whose neighbours share an operand, if there are any, and
    those that lie between these neighbours in what is written (`y[2 * h + phase]`)."""
    rows = [axis for axis in node.space if axis != vector and node.axes[axis].extent > 1]
    shared = [axis for axis in rows if not all(access.uses(axis) for access in node.reads)]
    between = {
        axis
        for dim in node.write.dims
        for axis in rows
        if dim and dim.uses(axis) and any(dim.coeffs[axis] < dim.coeffs[row] for row in shared)
    }
    return [axis for axis in rows if axis in between or axis in shared] or rows
