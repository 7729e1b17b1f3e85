"""The stages of a product by seven products of quarters (Strassen)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import NamedTuple

import msgspec

from tvm_ext.errors import PlanError
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import MAX_UNROLLED, Attach, TilePlan
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


class StrassenForm(NamedTuple):
    """What plans say of their tasks."""

    order: tuple[int, ...]
    """Of the product's axes."""
    level: str
    """Where sums of quarters are made."""


SHARED = StrassenForm((QUARTER, COLUMNS, ROWS, STEPS), "root")
"""Tasks are blocks of columns, of parts of the rows; the sums are made once, by all cores."""
COLUMNS_FIRST = StrassenForm(SHARED.order, "core")
"""The same, each task with sums of its own: no core waits for what another has made."""
ROWS_FIRST = StrassenForm((ROWS, QUARTER, COLUMNS, STEPS), "core")
"""Tasks are parts of the rows, with their sums and all columns."""
FORMS = (SHARED, COLUMNS_FIRST, ROWS_FIRST)


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
    if found is None or strassen_form(plan, found) is None:
        raise PlanError("structure", "plan: rule strassen needs seven products of quarters")
    node, core, register = (
        graph.nodes[plan.anchor],
        plan.at("core").extents,
        plan.at("register").extents,
    )
    sizes = (node.extents[COLUMNS], core[COLUMNS], register[COLUMNS], plan.lanes)
    uneven = node.extents[ROWS] % core[ROWS] or node.extents[STEPS] % register[STEPS]
    uneven = uneven or register[ROWS] > core[ROWS]
    if uneven or any(whole % part for whole, part in pairwise(sizes)):
        raise PlanError("divide", f"plan for {node.name}: core {core} by register {register}")
    whole = core[QUARTER], core[STEPS]
    if whole != (node.extents[QUARTER], node.extents[STEPS]) or register[QUARTER] > 1:
        raise PlanError("order", f"plan for {node.name}: core tile {core} is not all products")
    if prod(register) // plan.lanes > MAX_UNROLLED:
        raise PlanError("unroll", f"plan for {node.name}: the register tile {register}")
    return found


def with_form(plan: TilePlan, found: Strassen, form: StrassenForm) -> TilePlan:
    """The plan in another form, all else as it is."""
    attach = (Attach(found.quarters, form.level), Attach(found.last, "core"))
    return msgspec.structs.replace(plan, order=form.order, attach=attach)


def strassen_form(plan: TilePlan, found: Strassen) -> StrassenForm | None:
    """The form of such a plan; None if it has none."""
    return next((form for form in FORMS if with_form(plan, found, form) == plan), None)
