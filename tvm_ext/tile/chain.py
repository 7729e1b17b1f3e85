"""The stages of a product between two separable transforms over tiles (Winograd), and its tasks."""

from __future__ import annotations

from typing import NamedTuple

from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.remember import remembered


class TransformChain(NamedTuple):
    """Its stages, by place."""

    rows_in: int
    cols_in: int
    product: int
    rows_out: int
    last: int
    m: int
    """Outputs of a tile along each of the last stage's axes 1 and 2."""
    groups: int
    """Of channels, which are the product's images: of one image, side by side in the others."""


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

_KINDS = ("map", "map", "reduce", "map", "map")
_PRODUCT_RANK = 7
"""a, b (the transformed window), n, ty, tx (tiles), o and the reduced c."""


@remembered
def transform_chain(graph: TileGraph) -> TransformChain | None:
    """The group as map, map, product, map, map, each feeding the next and none beside it, the last
    one stepping through tiles of m x m; None for any other group."""
    nodes = graph.nodes
    if tuple(node.kind for node in nodes) != _KINDS or len(nodes[2].axes) != _PRODUCT_RANK:
        return None
    if any(graph.consumers(index) != (index + 1,) for index in range(len(nodes) - 1)):
        return None
    between = nodes[3].write.tensor
    steps = {
        tuple(dim.div for dim in access.dims[1:3] if dim is not None)
        for access in nodes[4].reads
        if access.tensor == between
    }
    sizes = {size for pair in steps for size in pair}
    if len(nodes[4].axes) != 4 or len(sizes) != 1 or (m := sizes.pop()) < 2:
        return None
    groups = nodes[2].extents[2] // nodes[4].extents[0]
    return TransformChain(0, 1, 2, 3, 4, m, groups)


def chain_form(plan: TilePlan) -> ChainForm | None:
    """The form of a chain's plan; of one for a single core, which has no tasks, the first with its
    order; None if it has no form."""
    forms = (*INSIDE, PHASES)
    told = (form for form in forms if form.order == plan.order)
    return next((form for form in told if plan.parallel in (0, form.tasks)), None)
