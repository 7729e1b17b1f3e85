"""Permuting the axes of a tensor program, for operators an importer has already lowered."""

from __future__ import annotations

from typing import Any

from tvm_ext.graph.layout_perm import Perm
from tvm_ext.tvm_api import PrimFunc, is_scheduled, s_tir, schedule_of, tirx, written_cycles


def permute_program(func: PrimFunc, perm: Perm) -> PrimFunc | None:
    """The program with every parameter of rank `len(perm)` kept in layout `perm`, loops to match.

    None unless it is one unscheduled block without a reduction that walks over its output: an
    element-wise, padding or other data-moving program, for which any layout is as good.
    """
    rank = len(perm)
    if is_scheduled(func) or written_cycles(func):
        return None
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    schedule = schedule_of(func)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    block = schedule.get(blocks[0]) if len(blocks) == 1 else None
    if block is None or not _walks_over_output(block, rank):
        return None

    touched = {"read": block.reads, "write": block.writes}
    places: dict[Any, tuple[str, int]] = {
        region.source: (side, index)
        for side, regions in touched.items()
        for index, region in enumerate(regions)
    }
    buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    movable = [buffer for buffer in buffers if len(buffer.shape) == rank]
    if any(buffer not in places for buffer in movable):
        return None
    index_map = tirx.IndexMap.from_func(lambda *axes: [axes[axis] for axis in perm], ndim=rank)
    for buffer in movable:
        schedule.transform_layout(blocks[0], places[buffer], index_map)
    schedule.transform_block_layout(blocks[0], index_map)
    result = schedule.mod["main"]
    symbol = func.attrs.get("global_symbol") if func.attrs else None
    return result if symbol else result.without_attr("global_symbol")


def _walks_over_output(block: s_tir.SBlock, rank: int) -> bool:
    """Whether each step of the block writes one element, the one its own axes point at."""
    if len(block.writes) != 1 or len(block.iter_vars) != rank:
        return False
    written = block.writes[0].region
    return len(written) == rank and all(
        axis.iter_type == tirx.IterVar.DataPar and place.min.same_as(axis.var)
        for axis, place in zip(block.iter_vars, written, strict=True)
    )
