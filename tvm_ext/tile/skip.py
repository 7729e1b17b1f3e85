"""Taps that lie in padding: what a tile multiplies by nothing but zeros is left out.

    for ky: for kx: for c: acc += pad(x)[y + 12 * ky, columns + 12 * kx, c] * w[ky, kx, c]
        →
    for ky if row y + 12 * ky is none of padding: for kx if some column is none: for c: ..

Of 33 x 33 points that a window of 3 x 3 taps, 12 apart, slides over (the pyramids of DeepLab) 57 %
of the taps are in the image, of 7 x 7 points under 7 x 7 taps (ConvNeXt's last layers) as many.
What lies in padding along rows that a register tile holds whole is known when it is written.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tvm_ext.tile.axis import Tile
from tvm_ext.tile.classify import is_padding, is_window
from tvm_ext.tile.graph import TileGraph, TileNode
from tvm_ext.tile.remember import remembered

WORTH = 0.12
"""Part of the taps from which asking every tile whether it needs them pays where channels are added
up. Of 7 x 7 points single rows leave out a tenth and pairs none, whose weights come half as often:
955 and 795 us."""


class Margin(NamedTuple):
    """An index `stride * space + step * reduce` into a tensor of which only `size` elements behind
    the first `before` are none of padding."""

    space: int
    reduce: int
    stride: int
    step: int
    before: int
    size: int

    def share(self, node: TileNode, register: Tile) -> float:
        """Part of the taps that tiles need along these axes."""
        extent, taps = node.extents[self.space], node.extents[self.reduce]
        width, unrolled = register.extents[self.space], register.extents[self.reduce]
        if unrolled == taps:
            if width < extent:
                return 1.0
            width = unrolled = 1  # every place is known
        begins = [min(at, extent - width) for at in range(0, extent, width)]
        firsts = [
            self.stride * at + self.step * tap for at in begins for tap in range(0, taps, unrolled)
        ]
        reach = self.stride * (width - 1) + self.step * (unrolled - 1)
        end = self.before + self.size
        needed = sum(first < end and first + reach >= self.before for first in firsts)
        return needed / len(firsts)


@remembered
def skipped(graph: TileGraph, node: TileNode, register: Tile) -> tuple[Margin, ...]:
    """The margins along which it pays to ask: any of a window that sums no channels."""
    if node.kind != "reduce" or len(node.reads) == 1:
        return ()
    saved = ((margin, 1 - margin.share(node, register)) for margin in _margins(graph, node))
    worth = 0.0 if is_window(node) else WORTH
    return tuple(margin for margin, part in saved if part > 0 and part >= worth)


@remembered
def needed_share(graph: TileGraph, node: TileNode, register: Tile) -> float:
    """Part of a stage's work that is left."""
    return prod(margin.share(node, register) for margin in skipped(graph, node, register))


def _margins(graph: TileGraph, node: TileNode) -> list[Margin]:
    found = []
    for access in node.reads:
        producer = graph.producer(access.tensor)
        if producer is None or not is_padding(graph, graph.nodes[producer]):
            continue
        (read,) = graph.nodes[producer].reads
        sizes = zip(access.dims, read.dims, graph.tensors[read.tensor].shape, strict=True)
        for dim, source, size in sizes:
            if dim is None or source is None or dim.div > 1 or dim.mod or dim.offset:
                continue
            axes = [axis for axis, step in enumerate(dim.coeffs) if step]
            space = [axis for axis in axes if axis in node.space]
            reduce = [axis for axis in axes if axis in node.reduce]
            if len(space) == len(reduce) == 1 and min(dim.coeffs) >= 0:
                stride, step = dim.coeffs[space[0]], dim.coeffs[reduce[0]]
                margin = Margin(space[0], reduce[0], stride, step, -source.offset, size)
                found.append(margin)
    return found
