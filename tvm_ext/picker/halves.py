"""Half vectors of a product, where units are half as wide as vectors (Zen 4): two of them cost what
a whole one does, and columns that end in the middle of a vector are padded less."""

from __future__ import annotations

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.align import MAX_VECTORS
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import vector_axis
from tvm_ext.tile.graph import TileNode

SIDE_BY_SIDE = 1.12
"""What one or two half vectors in a row, of more, take of the time of three or four (224 channels
to 56 of 28 x 28: 16 at a time 197 to 202 us, 24 to 56 at a time 170 to 178; to 24, 56 x 56: 220 and
196)."""


def are_as_fast(lanes: int, hw: HardwareModel) -> bool:
    """Whether vectors of so many float32 elements are such halves."""
    return hw.fmas_per_cycle(lanes) > hw.fma_per_cycle


def product_lanes(node: TileNode, lanes: int, hw: HardwareModel, dtype_bytes: int) -> int:
    """Elements in the vectors of a stage: half of the whole vectors of so many `lanes` where it is
    a product and its row is short and ends in the middle of one, as weights packed in them do."""
    vector = _row_of_product(node)
    if vector is None or dtype_bytes != 4 or are_as_fast(lanes, hw):
        return lanes
    half, extent = lanes // 2, node.axes[vector].extent
    ends = extent <= MAX_VECTORS * lanes and extent % lanes == half
    return half if ends and are_as_fast(half, hw) else lanes


def most_vectors(lanes: int, hw: HardwareModel) -> int:
    """Vectors of a register tile's row at most: more of those that are started together."""
    return MAX_VECTORS * hw.fmas_per_cycle(lanes) // hw.fma_per_cycle


def side_by_side(node: TileNode, tile: Tile, lanes: int, hw: HardwareModel) -> float:
    """The factor of issuing a register tile's multiply-adds for how few halves lie in its row."""
    vector = _row_of_product(node)
    if vector is None or not are_as_fast(lanes, hw):
        return 1.0
    few = tile.extents[vector] <= 2 * lanes < node.axes[vector].extent
    return SIDE_BY_SIDE if few else 1.0


def _row_of_product(node: TileNode) -> int | None:
    """The vector axis of a product, of which one side goes to every lane; None of other stages."""
    vector = vector_axis(node)
    if vector is None or node.kind != "reduce":
        return None
    return None if all(access.uses(vector) for access in node.reads) else vector
