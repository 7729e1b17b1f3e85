"""Permuting the axes of a tensor program, for operators an importer has already lowered."""

from __future__ import annotations

from tvm_ext.graph.layout_perm import Perm
from tvm_ext.tvm_api import PrimFunc, is_scheduled, schedule_of, tirx


def permute_program(func: PrimFunc, perm: Perm) -> PrimFunc | None:
    """The program with every buffer of rank `len(perm)` kept in layout `perm`, loops to match.

    None unless it is one unscheduled block without a reduction that walks over its output: an
    element-wise, padding or other data-moving program, for which any layout is as good.
    """
    schedule = schedule_of(func)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    block = schedule.get(blocks[0])
    spatial = all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)
    if len(blocks) != 1 or not spatial or is_scheduled(func) or len(block.writes) != 1:
        return None
    written = [axis.min for axis in block.writes[0].region]
    walked = [axis.var for axis in block.iter_vars]
    if len(written) != len(perm) or not all(
        place.same_as(axis) for place, axis in zip(written, walked, strict=False)
    ):
        return None

    rank = len(perm)
    index_map = tirx.IndexMap.from_func(lambda *axes: [axes[axis] for axis in perm], ndim=rank)
    permuted = set()
    for side, regions in (("read", block.reads), ("write", block.writes)):
        for index, region in enumerate(regions):
            buffer = region.source
            if len(buffer.shape) == rank and buffer not in permuted:
                permuted.add(buffer)
                schedule.transform_layout(blocks[0], (side, index), index_map)
    schedule.transform_block_layout(blocks[0], index_map)
    result = schedule.mod["main"]
    symbol = func.attrs.get("global_symbol") if func.attrs else None
    return result if symbol else result.without_attr("global_symbol")
