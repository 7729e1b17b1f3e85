"""Whether a plan can be a kernel of a group: all that can be told without TVM.

The writer asks before it schedules, and the search before it spends time on a plan.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from tvm_ext.errors import PlanError
from tvm_ext.tile.amx import INSTRUCTION, SIDE, cuts_panels, matrices
from tvm_ext.tile.attention import COLUMN, Attention, attention_stages
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.block import can_fetch_ahead, check_block, check_stream
from tvm_ext.tile.chain import IMAGE_FIRST, INSIDE, TransformChain, chain_form, transform_chain
from tvm_ext.tile.chunk import LEVEL as CHUNK
from tvm_ext.tile.chunk import chunk_of, chunk_tile
from tvm_ext.tile.classify import (
    cut_axis,
    even_lanes,
    has_no_gaps,
    shares_index,
    split_axis,
)
from tvm_ext.tile.cut import cut
from tvm_ext.tile.fuse import epilogue_of, tiles_of_row
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import MAX_UNROLLED, TilePlan
from tvm_ext.tile.shift import is_parted, plan_shifts
from tvm_ext.tile.strassen import check_strassen
from tvm_ext.tile.strip import PIECE_RULES, Strip, strip

LEVELS = {
    "tile": ("core", "register"),
    "chain": ("core", "register"),
    "strassen": ("core", "l2", "register"),
    "attention": ("core", "l2", "register"),
    "rows": ("core",),
    "strips": ("core",),
    "split": ("core",),
    "flat": ("core",),
    "loose": (),
    "block": ("core", "shared", "register"),
    "block_rows": ("core",),
    "block_flat": ("core",),
    "block_loose": (),
}
"""The rules, and the levels at which each needs a tile; `tile` may have one at `l2` (`chunk`)."""
CHAIN_LANES = 4
"""Vectors of a chain's transforms are at least so wide."""


def check_plan(graph: TileGraph, plan: TilePlan) -> None:
    """Raises PlanError for a plan that was made for another group, is damaged, or that no kernel
    can follow.

    Reasons: `rule` (unknown), `anchor` (a stage that does not exist), `level` (a missing tile),
    `extent` (a tile of another operator), `gaps` (a tile that writes no box), `lanes` (counts that
    mean nothing), `ahead` (no next task to ask for), and those of the rule: `divide`,
    `tail`, `order`, `unroll`, `amx`, `staged`, `chunk`, `space`, `structure`, `attach`, `rows`,
    `split`, `flat`.
    """
    if plan.rule not in LEVELS:
        raise PlanError("rule", f"plan: rule {plan.rule!r} is unknown; rules are {list(LEVELS)}")
    if plan.lanes < 1 or plan.parallel < 0:
        raise PlanError("lanes", f"plan: {plan.lanes} lanes, {plan.parallel} parallel loops")
    if plan.unroll < 1:
        raise PlanError("unroll", f"plan: {plan.unroll} iterations unrolled")
    count = len(graph.nodes)
    attached = [plan.anchor, *(entry.stage for entry in plan.attach)]
    for stage in attached:
        if not 0 <= stage < count:
            raise PlanError("anchor", f"plan: stage {stage} does not exist; there are {count}")
    if len(set(attached)) < len(attached):
        raise PlanError("attach", f"plan: stages {attached[1:]} attached to stage {plan.anchor}")
    node = graph.nodes[plan.anchor]
    tiles = {entry.level: entry.tile for entry in reversed(plan.tiles)}  # `at` takes the first
    for level in LEVELS[plan.rule]:
        if level not in tiles:
            raise PlanError("level", f"plan: rule {plan.rule} needs a tile at {level}")
        if not tiles[level].fits(node.axes):
            raise PlanError(
                "extent", f"plan: {level} tile {tiles[level].extents} in a stage of {node.extents}"
            )
        boxes = plan.rule in ("tile", "block") and level != "shared"
        if boxes and not has_no_gaps(node, tiles[level]):
            raise PlanError("gaps", f"plan: {level} tile {tiles[level].extents} leaves gaps")
    if plan.ahead and not can_ask_ahead(graph, plan):
        raise PlanError("ahead", f"plan: rule {plan.rule} has no next task here to ask for")
    if plan.rule == "tile":
        check_tile(graph, node, plan)
    elif plan.rule == "chain":
        check_chain(graph, plan)
    elif plan.rule == "strassen":
        check_strassen(graph, plan)
    elif plan.rule == "attention":
        check_attention(graph, plan)
    elif plan.rule == "rows":
        check_rows(graph, plan)
    elif plan.rule == "strips":
        check_strips(graph, plan)
    elif plan.rule == "split":
        check_split(node, plan)
    elif plan.rule == "block":
        check_block(graph, node, plan)
    elif plan.rule == "block_rows":
        check_stream(graph, node, plan)
        row_count(graph, plan)
    elif plan.rule == "block_flat":
        check_stream(graph, node, plan)
        contiguous_cut(node, plan.at("core"))
    elif plan.rule == "flat":
        contiguous_cut(node, plan.at("core"))


def check_parts(graph: TileGraph, plan: TilePlan) -> None:
    """Raises PlanError, as `check_plan` does, for the plan or one of those it has beside it."""
    for part in (plan,) if plan.rule == "strips" else plan.parts():
        check_plan(graph, part)


def is_legal(graph: TileGraph, plan: TilePlan, lanes: int) -> bool:
    """Whether a kernel can follow the plan, with vectors of at most `lanes` elements."""
    if plan.lanes > lanes:
        return False
    try:
        check_plan(graph, plan)
    except PlanError:
        return False
    return True


def check_tile(
    graph: TileGraph, node: TileNode, plan: TilePlan, *, tails_inside: bool = False
) -> None:
    """Raises PlanError unless register tiles divide core tiles (or `tails_inside` them have loops
    of their own) that leave a tail on one axis at most or are moved back, and the rest of the plan
    speaks of what there is."""
    core, register = plan.at("core"), plan.at("register")
    if not node.space:
        raise PlanError("space", f"plan for {node.name}: it has no space axis to tile")
    for axis, c, r in zip(node.axes, core.extents, register.extents, strict=True):
        if c != axis.extent and c % r and not tails_inside:
            raise PlanError("divide", f"plan for {node.name}: {axis.name} core {c} by register {r}")
        if axis.kind == "reduce" and axis.extent % r:
            raise PlanError("divide", f"plan for {node.name}: {axis.name} {axis.extent} by {r}")
    if plan_shifts(graph, plan) is None:
        check_tails(node, core, register)
    for place in node.space if plan.attach else ():
        own, c, r = node.axes[place], core.extents[place], register.extents[place]
        if shares_index(node, place) and (own.extent % c or c % r):
            raise PlanError("tail", f"plan for {node.name}: {own.name} leaves a tail")
    if sorted(plan.order) != list(range(len(node.axes))):
        raise PlanError("order", f"plan for {node.name}: {plan.order} is no order of its axes")
    if plan.instruction == INSTRUCTION:
        check_amx(graph, node, plan)
    elif prod(register.extents) // max(1, plan.lanes) > MAX_UNROLLED:
        raise PlanError("unroll", f"plan for {node.name}: the register tile {register.extents}")
    level = "register" if chunk_of(node, plan) is None else "core"
    for entry in plan.attach if plan.rule == "tile" else ():
        later = entry.level != "root" and entry.stage > plan.anchor
        if later and (entry.level, entry.stage) != (level, epilogue_of(graph, plan.anchor)):
            raise PlanError("attach", f"plan: stage {entry.stage} is no epilogue of {node.name}")
    for read in plan.staged:
        if not 0 <= read < len(node.reads):
            raise PlanError("staged", f"plan: stage {plan.anchor} has no read {read}")
    if any(entry.level == CHUNK for entry in plan.tiles):
        check_chunk(graph, node, plan)


def check_amx(graph: TileGraph, node: TileNode, plan: TilePlan) -> None:
    """Raises PlanError unless all register tiles fall into equal matrices of the matrix unit, of
    what lies in memory."""
    core, register = plan.at("core"), plan.at("register")
    unit = matrices(graph, node, register)
    if plan.lanes != SIDE or unit is None or cuts_panels(node, core, unit):
        raise PlanError("amx", f"plan for {node.name}: {register.extents} is not for the unit")
    parted = any(is_parted(node, axis, core, register, plan.lanes) for axis in node.space)
    if parted or plan_shifts(graph, plan) is None:
        raise PlanError("amx", f"plan for {node.name}: a tail of {core.extents}")
    if any(entry.stage < plan.anchor and entry.level == "register" for entry in plan.attach):
        raise PlanError("amx", f"plan for {node.name}: what it reads is nowhere")


def check_chunk(graph: TileGraph, node: TileNode, plan: TilePlan) -> None:
    """Raises PlanError unless the tile at `l2` is the core tile with equal parts of one axis of the
    reduction, and nothing is summed twice or finished before its last part."""
    core, chunk = plan.at("core"), chunk_of(node, plan)
    if chunk is None or chunk_tile(node, core, chunk) != plan.at(CHUNK):
        raise PlanError(
            "chunk", f"plan for {node.name}: {plan.at(CHUNK).extents} of {core.extents}"
        )
    axis, step = node.axes[chunk.axis], plan.at("register").extents[chunk.axis]
    if axis.extent % chunk.size or chunk.size % step or chunk.size == 1:
        raise PlanError("chunk", f"plan for {node.name}: {axis.name} {axis.extent} by {chunk.size}")
    if plan_shifts(graph, plan):
        raise PlanError("chunk", f"plan for {node.name}: what is moved back is summed twice")
    if plan.staged:
        raise PlanError("chunk", f"plan for {node.name}: copies in each chunk")


def check_tails(node: TileNode, core: Tile, register: Tile) -> None:
    """Raises PlanError for tails that would need loops of their own inside others'."""
    tails = [a.extent % c for a, c in zip(node.axes, core.extents, strict=True) if c < a.extent]
    if len(tails) > 1 and any(tails):
        raise PlanError("tail", f"plan for {node.name}: {core.extents} leaves tails on two axes")
    for axis, c, r in zip(node.axes, core.extents, register.extents, strict=True):
        if axis.kind == "space" and axis.extent % c % r:
            raise PlanError(
                "tail", f"plan for {node.name}: {axis.name} {axis.extent} leaves a tail in a tail"
            )


def can_ask_ahead(graph: TileGraph, plan: TilePlan) -> bool:
    """Whether a plan has steps that could ask for the data of what comes next: those of a reduction
    to register tiles, of a GPU's block, and of a chain with all of its stages inside its tasks."""
    if plan.rule == "block":
        return can_fetch_ahead(graph, plan)
    if plan.rule == "tile":
        node = graph.nodes[plan.anchor]
        return node.kind == "reduce" and chunk_of(node, plan) is None
    inside = all(entry.level == "core" for entry in plan.attach)
    return plan.rule == "chain" and plan.parallel > 0 and inside


def check_chain(graph: TileGraph, plan: TilePlan) -> TransformChain:
    """The chain of the group. Raises PlanError for another group, and for core tiles that are not
    equal parts of the image and of the channels."""
    chain = transform_chain(graph)
    if chain is None or plan.anchor != chain.product:
        raise PlanError("structure", "plan: rule chain needs a product between two transforms")
    levels = {entry.level for entry in plan.attach}
    if len(plan.attach) != len(graph.nodes) - 1 or levels not in ({"core"}, {"root"}):
        raise PlanError("attach", f"plan: rule chain with stages attached at {sorted(levels)}")
    form = chain_form(plan)
    if form is None or (form in INSIDE) != (levels == {"core"}):
        raise PlanError("order", f"plan: order {plan.order} with {plan.parallel} loops of tasks")
    product, last = graph.nodes[chain.product], graph.nodes[chain.last]
    check_tile(graph, product, plan, tails_inside=levels == {"core"})
    lanes_in = even_lanes(product.extents[-1], plan.lanes)
    lanes_out = even_lanes(last.extents[-1], plan.lanes)
    if min(lanes_in, lanes_out) < CHAIN_LANES:
        raise PlanError("lanes", f"plan: vectors of {lanes_in} and {lanes_out} channels")
    if levels == {"root"}:
        return chain
    core = plan.at("core").extents
    if core[:2] != product.extents[:2]:
        raise PlanError("extent", f"plan: core tile {core} cuts the window")
    if product.extents[5] % core[5] or core[5] % lanes_out:
        raise PlanError("tail", f"plan: core tile {core} leaves a tail of the channels")
    if chain.groups > 1 and form != IMAGE_FIRST and core[5] < product.extents[5]:
        raise PlanError("tail", f"plan: core tile {core} cuts a group of channels")
    for axis in (3, 4):
        if product.extents[axis] % core[axis]:
            raise PlanError("tail", f"plan: core tile {core} cuts the image into unequal parts")
    return chain


def check_attention(graph: TileGraph, plan: TilePlan) -> Attention:
    """The stages of the group. Raises PlanError for another group, and for tiles that are not whole
    vectors of queries, or steps that leave a tail."""
    found = attention_stages(graph)
    if found is None or plan.anchor != found.scores:
        raise PlanError("structure", "plan: rule attention needs a softmax between two products")
    columns, held = (plan.at(level).extents[COLUMN] for level in ("core", "l2"))
    lanes = plan.lanes
    for stage, level in ((found.scores, "register"), (found.mixed, "second")):
        node = graph.nodes[stage]
        if not any(e.level == level and e.tile.fits(node.axes) for e in plan.tiles):
            raise PlanError("level", f"plan for {node.name}: no tile at {level} that fits it")
        tile = plan.at(level).extents
        *_, count, steps = node.extents
        sizes = (count, columns, held, tile[COLUMN], lanes)
        if any(whole % part for whole, part in pairwise(sizes)):
            raise PlanError("divide", f"plan for {node.name}: queries {sizes} are no multiples")
        if steps % tile[-1]:
            raise PlanError("divide", f"plan for {node.name}: {steps} steps by {tile[-1]}")
        if prod(tile) // lanes > MAX_UNROLLED:
            raise PlanError("unroll", f"plan for {node.name}: the register tile {tile}")
    if plan.staged not in found.copies:
        raise PlanError("staged", f"plan: attention has no operands {plan.staged} to copy")
    return found


def row_count(graph: TileGraph, plan: TilePlan) -> int:
    """How many leading axes of the anchor count rows. Raises PlanError unless the core tile is
    whole rows.

    Of several results axes of one element at the end of the rows are none: another may not have
    them (a sum that keeps its axis, beside what is summed).
    """
    node, core = graph.nodes[plan.anchor], plan.at("core").extents
    rows = next((i for i, axis in enumerate(node.space) if core[axis] > 1), len(node.space))
    if any(core[axis] != node.axes[axis].extent for axis in range(rows, len(node.axes))):
        raise PlanError("rows", f"plan for {node.name}: core tile {core} is not whole rows")
    while len(graph.results) > 1 and rows and node.axes[rows - 1].extent == 1:
        rows -= 1
    return rows


def check_rows(graph: TileGraph, plan: TilePlan) -> int:
    """How many leading axes of the anchor count rows. Raises PlanError unless the core tile is
    whole rows, which those stages share that write results, if there are several: of a group that
    is cut into pieces those of the plan's own."""
    pieces = cut(graph) if len(graph.results) > 1 else ()
    if len(pieces) > 1:
        own = next(piece for piece in pieces if plan.anchor in piece.stages)
        try:
            graph, plan = own.graph, own.inside(plan)
        except KeyError:
            raise PlanError("attach", "plan: rows of stages that are in several pieces") from None
    rows = row_count(graph, plan)
    if len(graph.results) > 1:
        inside = {plan.anchor, *(entry.stage for entry in plan.attach if entry.level == "core")}
        last = plan.anchor == len(graph.nodes) - 1
        alike = last and tiles_of_row(graph, plan.at("core"), rows) is not None
        if not inside.issuperset(graph.results) or not alike:
            raise PlanError("rows", "plan: stages that write results do not share its rows")
    return rows


def check_strips(graph: TileGraph, plan: TilePlan) -> Strip:
    """The strips of the plan. Raises PlanError for a group without rows that all stages share, for
    strips that are not equal, and for plans of other pieces."""
    core = plan.at("core")
    strips = strip(graph, core)
    if strips is None or plan.anchor != len(graph.nodes) - 1:
        raise PlanError(
            "rows", f"plan: core tile {core.extents} is no strip of rows that all share"
        )
    if len(plan.also) != len(strips.pieces):
        raise PlanError("attach", f"plan: {len(plan.also)} plans for {len(strips.pieces)} pieces")
    for piece, part in zip(strips.pieces, plan.also, strict=True):
        if part.rule not in PIECE_RULES or part.parallel:
            raise PlanError("rule", f"plan: a piece of a strip by {part.rule}")
        try:
            inside = piece.inside(part)
        except KeyError:
            raise PlanError("anchor", f"plan: stage {part.anchor} is in another piece") from None
        check_plan(piece.graph, inside)
        node = piece.graph.nodes[inside.anchor]
        if inside.rule == "tile" and _has_parted_tails(node, inside):
            raise PlanError("tail", f"plan: stage {part.anchor} of a strip leaves a tail")
        if chunk_of(node, inside) is not None:
            raise PlanError("chunk", f"plan: stage {part.anchor} of a strip in chunks")
    return strips


def _has_parted_tails(node: TileNode, plan: TilePlan) -> bool:
    """Whether a tail has a loop of its own: TVM bounds the epilogue of such a loop by the axis, not
    by the strip, and it would write what the next strip does."""
    core, register = plan.at("core"), plan.at("register")
    return any(is_parted(node, axis, core, register, plan.lanes) for axis in node.space)


def check_split(node: TileNode, plan: TilePlan) -> int:
    """The reduction axis that is shared out. Raises PlanError unless the core tile is one of equal
    parts of it."""
    axis, core = split_axis(node), plan.at("core").extents
    if axis is None or any(
        core[place] != other.extent for place, other in enumerate(node.axes) if place != axis
    ):
        raise PlanError("split", f"plan for {node.name}: core tile {core} cuts other axes")
    if node.axes[axis].extent % core[axis]:
        raise PlanError("split", f"plan for {node.name}: core tile {core} leaves a tail")
    return axis


def contiguous_cut(node: TileNode, core: Tile) -> int:
    """The axis a contiguous core tile is cut on. Raises PlanError for any other tile."""
    cut = cut_axis(core)
    if any(node.axes[axis].extent != core.extents[axis] for axis in range(cut + 1, len(node.axes))):
        raise PlanError("flat", f"plan for {node.name}: core tile {core.extents} is not contiguous")
    return cut
