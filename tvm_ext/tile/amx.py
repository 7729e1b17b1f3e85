"""Products of bytes, or of bfloat16, on the matrix unit of x86 (AMX): the register tiles that it
can take.

An instruction adds to up to 16 x 16 sums the products of up to 16 rows of 16 `dot`s (`tvm_dots`,
`tvm_pairs`) and as many columns of them. Eight registers hold such matrices: sums, rows and
columns.

    register tile of 28 rows x 32 columns x 12 dots  →  2 x 2 matrices of 14 x 16 sums,
                                                        2 of 14 x 12 and 2 of 12 x 16 operands
"""

from __future__ import annotations

from collections.abc import Container
from math import prod
from typing import NamedTuple

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.graph import Access, TileGraph, TileNode
from tvm_ext.tile.remember import remembered

INSTRUCTION = "amx"
"""What plans for it say."""
ISA, HALVES_ISA = "amx-int8", "amx-bf16"
"""The instruction sets that have it, for dots of bytes and of bfloat16."""
SIDE = 16
"""Rows, columns and dots of a matrix at most; of columns there are never less."""
REGISTERS = 8


class Matrices(NamedTuple):
    """How a register tile falls into matrices, by axes of its node."""

    row: int
    column: int
    dot: int
    rows: int
    """Of one matrix of sums."""
    down: int
    """Matrices of sums, one above the other."""
    across: int
    """Matrices of sums side by side."""


def has_unit(node: TileNode, isa: Container[str]) -> bool:
    """Whether a machine of these instruction sets has one for a node."""
    return node.dots and (HALVES_ISA if node.halves else ISA) in isa


@remembered
def dot_axis(node: TileNode) -> int | None:
    """The reduce axis along which dots lie: channels, or of one word of channels a row of taps."""
    return next((axis for axis in reversed(node.reduce) if node.axes[axis].extent > 1), None)


@remembered
def row_axes(graph: TileGraph, node: TileNode) -> tuple[int, ...]:
    """Space axes that rows of matrices can lie along: neighbours read neighbours, or what lies
    equally far apart, and the same columns. None of what is not for the unit."""
    column = vector_axis(node)
    if not node.dots:
        return ()
    return tuple(axis for axis in node.space if axis != column and _has_operands(graph, node, axis))


@remembered
def matrices(graph: TileGraph, node: TileNode, register: Tile) -> Matrices | None:
    """Those of a register tile; None if it, or its node, is not for the matrix unit."""
    column, dot, sizes = vector_axis(node), dot_axis(node), register.extents
    if column is None or dot is None:
        return None
    others = [axis for axis in range(len(sizes)) if axis not in (column, dot) and sizes[axis] > 1]
    rows = [axis for axis in row_axes(graph, node) if axis in others]
    if not rows or any(axis in node.reduce for axis in others):
        return None
    row = rows[-1]
    parts = -(-sizes[row] // SIDE)
    if sizes[row] % parts or sizes[column] % SIDE or not 1 < sizes[dot] <= SIDE:
        return None
    height, across = sizes[row] // parts, sizes[column] // SIDE
    down = prod(sizes[axis] for axis in others) // height
    columns = across if down > 1 else 1
    if height == 1 or down * across + columns + 1 > REGISTERS:
        return None
    return Matrices(row, column, dot, height, down, across)


def cuts_panels(node: TileNode, core: Tile, unit: Matrices) -> bool:
    """Whether core tiles begin inside panels of columns, of which register tiles take a part: it is
    then not told from where a register tile lies that it stays in one."""
    width = unit.across * SIDE
    dims = (dim for access in node.reads for dim in access.dims if dim and dim.uses(unit.column))
    return (
        any(dim.mod and width % dim.mod and core.extents[unit.column] % dim.mod for dim in dims)
        and core.extents[unit.column] < node.extents[unit.column]
    )


def _has_operands(graph: TileGraph, node: TileNode, row: int) -> bool:
    """Whether one read has the rows, if they lie along an axis, and the other the columns."""
    column, dot = vector_axis(node), dot_axis(node)
    if column is None or dot is None or len(node.reads) != 2:
        return False
    found = set()
    for access in node.reads:
        shape = graph.tensors[access.tensor].shape
        if not all(_is_plain(access, axis) for axis in (row, dot)):
            return False
        if any(dim and dim.uses(column) and dim.mod % SIDE for dim in access.dims):
            return False
        along = tuple(access.stride(axis, shape) for axis in (row, column, dot))
        if any(stride is None for stride in along):
            return False
        if not access.uses(column) and along[2] == 1 and along[0]:
            found.add("rows")
        if not access.uses(row) and along[1] == 1 and along[2]:
            found.add("columns")
    return len(found) == 2


def _is_plain(access: Access, axis: int) -> bool:
    """Whether steps along an axis are equally long, all the way."""
    dims = [dim for dim in access.dims if dim is None or dim.uses(axis)]
    return all(dim is not None and dim.div == 1 and not dim.mod for dim in dims)
