"""A product by seven products of quarters (Strassen): its stages, and what plans say of them.

Tasks are core tiles: parts of the rows by parts of the columns. A task goes through its columns in
blocks, the tile at `l2`, whose seven products its own cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple

import msgspec

from tvm_ext.errors import PlanError
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import MAX_UNROLLED, Attach, TilePlan, with_extent
from tvm_ext.tile.remember import remembered

QUARTER, ROWS, COLUMNS, STEPS = range(4)
"""The axes of the product that count products, pairs of rows, columns of a half, and what is summed
up."""
_PRODUCTS = 7


class Strassen(NamedTuple):
    """Its stages, by place: the first makes sums of quarters, the last takes sums of products."""

    quarters: int
    product: int
    last: int


def strassen_stages(graph: TileGraph) -> Strassen | None:
    """The stages of `compute.strassen` if they are the group; None for any other group."""
    found = products_of_quarters(graph)
    return found[0] if len(found) == 1 and len(graph.nodes) == len(found[0]) else None


@remembered
def products_of_quarters(graph: TileGraph) -> tuple[Strassen, ...]:
    """All such stages in a group, of which there may be others."""
    return tuple(_find(graph))


def _find(graph: TileGraph) -> Iterator[Strassen]:
    for place, node in enumerate(graph.nodes):
        sources, consumers = graph.sources(place), graph.consumers(place)
        if node.kind != "reduce" or len(node.axes) != 4 or node.extents[QUARTER] != _PRODUCTS:
            continue
        if len(sources) != 1 or len(consumers) != 1:
            continue
        (first,), (last,) = sources, consumers
        maps = graph.nodes[first].kind == graph.nodes[last].kind == "map"
        reads = [one.dims[0] for one in graph.nodes[last].reads if one.tensor == node.write.tensor]
        planes = {dim.offset for dim in reads if dim is not None and not any(dim.coeffs)}
        alone = graph.consumers(first) == (place,)
        if maps and alone and planes == set(range(_PRODUCTS)):
            yield Strassen(first, place, last)


def check_strassen(graph: TileGraph, plan: TilePlan) -> Strassen:
    """The stages of the group. Raises PlanError for another group, and for tiles that are not equal
    blocks of columns in whole vectors, with all seven products."""
    every = products_of_quarters(graph)
    found = next((one for one in every if one.product == plan.anchor), None)
    if found is None or plan.attach not in (attached(found, level) for level in ("root", "core")):
        raise PlanError("structure", "plan: rule strassen needs seven products of quarters")
    node = graph.nodes[plan.anchor]
    core, block, register = (plan.at(level).extents for level in ("core", "l2", "register"))
    for tile in (core, block):
        if (tile[QUARTER], tile[STEPS]) != (node.extents[QUARTER], node.extents[STEPS]):
            raise PlanError("order", f"plan for {node.name}: the tile {tile} is not all products")
    columns = (tile[COLUMNS] for tile in (node.extents, core, block, register))
    uneven = any(whole % part for whole, part in pairwise((*columns, plan.lanes)))
    uneven |= node.extents[ROWS] % core[ROWS] > 0 or node.extents[STEPS] % register[STEPS] > 0
    if uneven or block[ROWS] != core[ROWS] or register[ROWS] > core[ROWS]:
        raise PlanError("divide", f"plan for {node.name}: {core} by {block} by {register}")
    if register[QUARTER] > 1 or prod(register) // plan.lanes > MAX_UNROLLED:
        raise PlanError("unroll", f"plan for {node.name}: the register tile {register}")
    return found


def attached(found: Strassen, level: str) -> tuple[Attach, ...]:
    """The places of stages beside the product, with the sums of quarters at a level: `root`, once
    for all tasks, half of which another core then has, or `core`, in each task."""
    return Attach(found.quarters, level), Attach(found.last, "core")


def fitted(plan: TilePlan) -> TilePlan:
    """The plan with a block that is part of its core tile, as near to its own as that allows, and
    what its register tile unrolls."""
    core, register = plan.at("core").extents, plan.at("register").extents
    block = gcd(core[COLUMNS], plan.at("l2").extents[COLUMNS])
    block = block if block % register[COLUMNS] == 0 else register[COLUMNS]
    plan = with_extent(with_extent(plan, "l2", ROWS, core[ROWS]), "l2", COLUMNS, block)
    return msgspec.structs.replace(plan, unroll=register[STEPS])
