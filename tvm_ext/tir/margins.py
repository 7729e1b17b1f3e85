"""Room beside a tensor inside a kernel for what a window reads of its padding.

    e[112, 112, c] = ..;  y[h, w, c] = sum over k, l of e[2h + k - 1, 2w + l - 1, c], 0 outside
        →
    e[113, 113, c], each element one further down and right;  .. e[2h + k, 2w + l, c] ..

What is read there is not chosen, but has to lie somewhere. With bounds on the index instead, TVM
cannot tell how few rows a strip holds at once, and would keep them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ext.tile.graph import AffineDim
from tvm_ext.tir.affine import linear
from tvm_ext.tvm_api import (
    PrimFunc,
    TensorLoad,
    ir,
    s_tir,
    structural_map,
    structural_walk,
    tirx,
)

Margin = tuple[int, int]
"""Elements before the first and behind the last."""


def block_with(block: Any, body: Any, allocated: Sequence[Any] | None = None) -> Any:
    """The block around another body, with other tensors of its own if they are given."""
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers if allocated is None else allocated,
        block.match_buffers,
        block.annotations,
    )


class Margins:
    """What is read beside the tensors that a function keeps for itself."""

    def __init__(self, func: PrimFunc) -> None:
        self._extents: dict[Any, int] = {}
        self._wanted: dict[Any, list[Margin]] = {}
        structural_walk(func.body, (s_tir.SBlock, self._note))

    def _note(self, block: Any) -> None:
        for axis in block.iter_vars:
            if isinstance(axis.dom.extent, tirx.IntImm):
                self._extents[axis.var] = int(axis.dom.extent)
        for buffer in block.alloc_buffers:
            self._wanted[buffer] = [(0, 0) for _ in buffer.shape]

    def cover(self, load: Any) -> bool:
        """Makes room for whatever a load may read; False if the tensor is not the function's own,
        or nothing is known of an index."""
        if load.source not in self._wanted:
            return False
        axes = {variable: place for place, variable in enumerate(self._extents)}
        forms = [linear(index, axes) for index in load.indices]
        found = []
        for form, extent in zip(forms, load.source.shape, strict=True):
            if form is None:
                return False
            coeffs, offset = form
            first, last = AffineDim(tuple(coeffs), offset).ends(tuple(self._extents.values()))
            found.append((max(0, -first), max(0, last - int(extent) + 1)))
        known = zip(self._wanted[load.source], found, strict=True)
        self._wanted[load.source] = [(max(a, c), max(b, d)) for (a, b), (c, d) in known]
        return True

    def made(self, func: PrimFunc) -> PrimFunc:
        """The function with that room."""
        new = {
            old: tirx.decl_buffer(
                [
                    int(n) + before + behind
                    for n, (before, behind) in zip(old.shape, margins, strict=True)
                ],
                old.dtype,
                old.name,
                scope=old.scope(),
            )
            for old, margins in self._wanted.items()
            if any(map(any, margins))
        }
        if not new:
            return func

        def at(old: Any, indices: Sequence[Any]) -> list[Any]:
            return [i + before for i, (before, _) in zip(indices, self._wanted[old], strict=True)]

        def load(node: Any) -> Any:
            old = node.source
            return tirx.BufferLoad(new[old], at(old, node.indices)) if old in new else node

        def store(node: Any) -> Any:
            old = node.buffer
            if old not in new:
                return node
            return tirx.BufferStore(new[old], node.value, at(old, node.indices))

        def region(node: Any) -> Any:
            old = node.source
            if old not in new:
                return node
            begins = at(old, [one.min for one in node.region])
            ranges = [
                ir.Range.from_min_extent(begin, one.extent)
                for begin, one in zip(begins, node.region, strict=True)
            ]
            return tirx.BufferRegion(new[old], ranges)

        def block(node: Any) -> Any:
            if not any(buffer in new for buffer in node.alloc_buffers):
                return node
            return block_with(node, node.body, [new.get(one, one) for one in node.alloc_buffers])

        kinds = [
            (TensorLoad, load),
            (tirx.BufferStore, store),
            (ir.TensorRegion, region),
            (s_tir.SBlock, block),
        ]
        return func.with_body(structural_map(func.body, kinds, order="post"))
