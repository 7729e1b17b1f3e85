"""Register tiles for the matrix unit (`tile.amx`), and what they cost.

A product of 16 x 16 sums takes the unit 16 cycles whatever it adds up, and one of few rows hardly
less; two loads of a row end in a cycle. With 2 x 2 matrices of sums each operand is used twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import packed_divisor, vector_extents
from tvm_ext.tile.amx import REGISTERS, SIDE, Matrices, dot_axis, has_unit, matrices, row_axes
from tvm_ext.tile.axis import Tile, divisors
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.shift import shiftable

LEAST_CYCLES = 10.0
"""A product of few rows (of 16, 14, 8, 7 and 1: 16, 15.6, 10, 9.3 and 9.3 cycles)."""
LATENCY_CYCLES = 52.0
"""Until a sum can be added to again."""
ROWS_PER_CYCLE = 2.0
"""Loaded from the first level, 64 bytes each."""
AMX_WAITS = 0.5
"""Part of the time of what comes from the second level that holds a busy unit up: a matrix is
loaded at once, not line by line as it is needed (128 rows of 768 bytes by 384 columns: 16 lines for
each product, and 27 cycles where they lie in the first level 16)."""
LEAVING_CYCLES = 2.0
"""A row of sums on its way through memory to an epilogue."""


def amx_tiles(graph: TileGraph, node: TileNode, lanes: int, hw: HardwareModel) -> Iterator[Tile]:
    """Register tiles that fall into matrices; none for other stages and machines."""
    column, dot, rows = vector_axis(node), dot_axis(node), row_axes(graph, node)
    if not has_unit(node, hw.isa) or lanes != SIDE or not rows or column is None or dot is None:
        return
    row = rows[-1]
    others = [axis for axis in node.space if axis not in (column, row)]
    before = next((axis for axis in reversed(others) if node.axes[axis].extent > 1), None)
    extent = node.axes[row].extent
    step = max(divisors(node.axes[dot].extent, SIDE))
    for width in vector_extents(node.axes[column].extent, SIDE, packed_divisor(node, column)):
        for height in _heights(extent, shiftable(graph, node, row)):
            whole = before is not None and height == extent
            for stack in range(1, REGISTERS if whole else 2):
                extents = [1] * len(node.axes)
                extents[column], extents[row], extents[dot] = width, height, step
                if before is not None:
                    extents[before] = stack
                tile = Tile(tuple(extents))
                if tile.fits(node.axes) and matrices(graph, node, tile):
                    yield tile


def _heights(extent: int, free: bool) -> list[int]:
    """Rows of a register tile: for each count of matrices those that leave the shortest tail, which
    is moved back where rows are `free` to be, and those that leave none."""
    sizes = set()
    for parts in range(1, REGISTERS):
        even = [n for n in divisors(extent, SIDE * parts) if n % parts == 0 and n // parts > 1]
        sizes |= {max(even)} if even else set()
        tiles = -(-extent // (SIDE * parts))
        height = -(-extent // (tiles * parts)) * parts
        sizes |= {height} if free and height <= extent else set()
    return sorted(sizes)


def amx_cycles(unit: Matrices, register: Tile) -> float:
    """Cycles of one pass over a register tile."""
    loads = unit.down * unit.rows + unit.across * register.extents[unit.dot]
    return max(_issued(unit), LATENCY_CYCLES, loads / ROWS_PER_CYCLE)


def _issued(unit: Matrices) -> float:
    """Cycles in which the unit multiplies in one pass."""
    return unit.down * unit.across * max(LEAST_CYCLES, float(unit.rows))


def amx_busy(unit: Matrices) -> float:
    """Part of a pass in which the unit is not waiting for its own sums."""
    return min(1.0, _issued(unit) / LATENCY_CYCLES)


def amx_entry_cycles(unit: Matrices) -> float:
    """Cycles of taking sums out of the unit."""
    return LEAVING_CYCLES * unit.down * unit.across * unit.rows
