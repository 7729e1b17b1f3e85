"""Plans of a kernel between others of a model: what they cost the kernels before and after."""

from __future__ import annotations

from math import prod

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.chain import by_channels
from tvm_ext.picker.perf import Candidate, pieces
from tvm_ext.picker.traffic import gathered_us, handed_on_us
from tvm_ext.picker.weights import packed_bytes
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import packed_reads, transposed_axis
from tvm_ext.tile.fuse import sums_columns
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.strassen import COLUMNS

SHARED_OUT = ("tile", "split", "chain", "strassen")
"""Rules whose plans cut in different ways what cores share out."""
IN_ORDER = ("flat", "rows")
"""Rules whose plans go through memory once, on one core or on all."""
SEAM_CYCLES = 60.0
"""Of a line that two cores write: it goes there and back (512 channels of 7 x 7 back to planes 3 us
by channels, 21 by rows; 320 of 14 x 14 behind a convolution 58.3 and 56.5)."""
LATE = 0.05
"""Part of a task by which one core is later than another, of tasks that are not handed out anew."""
TOLD_APART = 1.002
"""Factor between predictions below which they say nothing."""


def in_company(
    graph: TileGraph, ranked: list[Candidate], hw: HardwareModel, *, alone: bool = False
) -> list[Candidate]:
    """The candidates with the one first that is best between other kernels, or `alone`; of those
    that the model does not tell apart, the one that writes fewest pieces of memory."""
    if not ranked or ranked[0].plan.rule not in SHARED_OUT:
        return ranked
    tiles = [candidate for candidate in ranked if candidate.plan.rule in SHARED_OUT]
    times = [one.estimate.latency_us for one in tiles]
    if not alone:
        times = [
            us + exchange_us(graph, one.plan, hw) for one, us in zip(tiles, times, strict=True)
        ]
    close = [one for one, us in zip(tiles, times, strict=True) if us <= TOLD_APART * min(times)]
    first = min(close, key=lambda one: _pieces(graph, one.plan))
    return [first, *(candidate for candidate in ranked if candidate is not first)]


def _pieces(graph: TileGraph, plan: TilePlan) -> int:
    """Pieces of memory that a task writes; those of products between other stages lie within it."""
    if plan.rule in ("chain", "strassen"):
        return 0
    return pieces(graph.nodes[plan.anchor], plan.at("core"))


def _kept(node: TileNode, long: list[int]) -> list[int]:
    """The axis along which a core keeps what is its own: the outermost one. Of a transposition that
    is either that of what it reads or that of what it writes, whichever lies along no rows: planes
    to channels last and back are both cut along the height."""
    across = transposed_axis(node)
    if across is None:
        return long[:1]
    return [axis for axis in long if axis not in (across, node.space[-1])][:1] or long[:1]


def _seams_us(node: TileNode, core: Tile, cut: list[int], hw: HardwareModel) -> float:
    """Time for the lines that two cores write a part of each, where pieces of theirs meet."""
    parts = prod(-(-node.axes[axis].extent // core.extents[axis]) for axis in cut)
    return pieces(node, core) * (parts - 1) * SEAM_CYCLES / hw.cores / hw.clock_ghz / 1e3


def exchange_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """What a plan costs the kernels before and after it: activations that other cores have or want,
    as far as caches of a core hold them.

    Kernels share their outermost axis out where they can, and what a core has written the next
    kernel finds in its cache: such plans cost nothing. Tasks cut otherwise hand on nearly all
    (27 x 27 by 1 x 1 cut across its rows: 72 us in a model, between: 50), and so do those that
    share out the columns of what is summed over its rows or of products of quarters, and a chain's
    blocks of channels. One core alone fetches it all.
    """
    if plan.rule in IN_ORDER and not plan.parallel:
        return gathered_us(min(graph.io_bytes, hw.own_cache_bytes * hw.cores), hw)
    if plan.rule == "chain" and by_channels(graph, plan, hw):
        kept_bytes = packed_bytes(graph, graph.nodes[plan.anchor])
        return handed_on_us(_exchanged(graph, kept_bytes, hw), hw.cores, hw)
    if plan.rule == "strassen":
        return _of_quarters_us(graph, plan, hw)
    if plan.rule != "tile" or plan.also:
        return 0.0
    node, core = graph.nodes[plan.anchor], plan.at("core")
    long = [axis for axis in node.space if node.axes[axis].extent > 1]
    cut = [axis for axis in long if core.extents[axis] < node.axes[axis].extent]
    if plan.parallel and cut == _kept(node, long) and not sums_columns(graph, node):
        return _seams_us(node, core, cut, hw) if cut != long[:1] else 0.0
    # weights come from memory, whoever reads them
    whole = [access for access in node.reads if len(long) > 1 and not access.uses(long[0])]
    weights = {access.tensor for access in (*packed_reads(node), *whole)}
    kept_bytes = sum(graph.tensors[tensor].size_bytes for tensor in weights)
    exchanged = _exchanged(graph, kept_bytes, hw)
    if not plan.parallel:
        return gathered_us(exchanged, hw)
    return handed_on_us(exchanged, hw.cores, hw)


def _of_quarters_us(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> float:
    """That of products of quarters: tasks that are columns want rows of all cores, the next kernel
    wants columns of all, and a core waits for one that is late with the last of a few tasks."""
    node, core = graph.nodes[plan.anchor], plan.at("core").extents
    late_us = LATE * prod(core) / plan.lanes / hw.fma_per_cycle / hw.clock_ghz / 1e3
    if core[COLUMNS] == node.extents[COLUMNS]:
        return late_us
    kept_bytes = packed_bytes(graph, node)
    if plan.attach[0].level == "root":  # sums of the rows that a core has
        read = {access.tensor for access in graph.nodes[plan.attach[0].stage].reads}
        kept_bytes += sum(graph.tensors[tensor].size_bytes for tensor in read)
    return late_us + handed_on_us(_exchanged(graph, kept_bytes, hw), hw.cores, hw)


def _exchanged(graph: TileGraph, kept_bytes: int, hw: HardwareModel) -> int:
    """Bytes that caches of cores hold of what a kernel reads and writes, but for those kept."""
    return max(0, min(graph.io_bytes - kept_bytes, hw.own_cache_bytes * hw.cores))
