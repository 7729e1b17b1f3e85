"""The stages of a product between two separable transforms over tiles (Winograd), and its tasks."""

from __future__ import annotations

from typing import NamedTuple

from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.remember import remembered


class TransformChain(NamedTuple):
    """Its stages, by place."""

    cols_in: int
    product: int
    last: int
    tile: tuple[int, int]
    """Outputs of a tile down and along the image."""
    groups: int
    """Of channels, which are the product's images: of one image, side by side in the others."""
    rows_in: int | None = None
    rows_out: int | None = None
    """None where a tile extends along one axis alone."""


class ChainForm(NamedTuple):
    """What plans of a chain say of its tasks."""

    order: tuple[int, ...]
    """Of the product's axes."""
    tasks: int
    """How many of them, from the outermost on, count tasks."""


IMAGE_FIRST = ChainForm((2, 3, 4, 5, 0, 1, 6), 3)
"""Tasks are parts of the image."""
IMAGE_IN_BLOCKS = ChainForm(IMAGE_FIRST.order, 4)
"""Tasks are blocks of the channels of parts of the image, those of one part side by side."""
CHANNELS_FIRST = ChainForm((5, 2, 3, 4, 0, 1, 6), 4)
"""Tasks are parts of the image for blocks of channels, those of one block side by side."""
PHASES = ChainForm((0, 1, 5, 2, 3, 4, 6), 3)
"""Every stage a phase of its own; tasks of the product are blocks of channels of its planes."""
INSIDE = (IMAGE_FIRST, IMAGE_IN_BLOCKS, CHANNELS_FIRST)
"""Forms of which a task does all stages."""

_BOTH = ("map", "map", "reduce", "map", "map")
_ONE = ("map", "reduce", "map")
"""Kinds of the stages, with transforms along both axes of the image and along one of them."""
_PRODUCT_RANK = 7
"""a, b (the transformed window), n, ty, tx (tiles), o and the reduced c."""


@remembered
def transform_chain(graph: TileGraph) -> TransformChain | None:
    """The group as map, map, product, map, map, or without the outer two, each feeding the next and
    none beside it, the last one stepping through tiles; None for any other group."""
    nodes = graph.nodes
    kinds = tuple(node.kind for node in nodes)
    if kinds not in (_BOTH, _ONE):
        return None
    product, last, both = len(nodes) // 2, nodes[-1], kinds == _BOTH
    rank, first = len(nodes[product].axes), 1 if both else 3
    if rank != _PRODUCT_RANK or len(last.axes) not in ((4,) if both else (3, 4)):
        return None
    if any(graph.consumers(index) != (index + 1,) for index in range(len(nodes) - 1)):
        return None
    tiles = {
        tuple(dim.div for dim in access.dims[first : first + 2] if dim is not None)
        for access in last.reads
        if access.tensor == nodes[-2].write.tensor
    }
    tile = tiles.pop() if len(tiles) == 1 else ()
    if len(tile) != 2 or max(tile) < 2 or (both and tile[0] != tile[1]) or both != (min(tile) > 1):
        return None
    groups = nodes[product].extents[2] // last.extents[0]
    found = TransformChain(product - 1, product, len(nodes) - 1, (tile[0], tile[1]), groups)
    return found._replace(rows_in=0, rows_out=3) if both else found


def chain_form(plan: TilePlan) -> ChainForm | None:
    """The form of a chain's plan; of one for a single core, which has no tasks, the first with its
    order; None if it has no form."""
    forms = (*INSIDE, PHASES)
    told = (form for form in forms if form.order == plan.order)
    return next((form for form in told if plan.parallel in (0, form.tasks)), None)
