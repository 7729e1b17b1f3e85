"""Predicted time of any plan of a group, wherever the plan came from: picker, search or log."""

from __future__ import annotations

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.attention import attention_estimate
from tvm_ext.picker.chain import chain_estimate
from tvm_ext.picker.gpu import predict_blocks
from tvm_ext.picker.perf import Estimate, estimate, together
from tvm_ext.picker.split import split_estimate
from tvm_ext.picker.strassen import strassen_estimate
from tvm_ext.picker.stream import row_by_row, streaming
from tvm_ext.picker.strip import strip_estimate
from tvm_ext.picker.traffic import between_us
from tvm_ext.tile.attention import attention_stages
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tile.cut import cut, parted
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.strassen import strassen_stages


def predict(graph: TileGraph, plan: TilePlan, hw: HardwareModel) -> Estimate:
    """Predicted time of `plan` on `hw`, in microseconds, launch included."""
    if hw.kind == "cuda":
        return predict_blocks(graph, plan, hw)
    if plan.rule == "strips":
        return strip_estimate(graph, plan, hw, predict)
    if plan.also:
        pieces = cut(graph)
        plans = parted(pieces, plan)
        parts = zip(pieces, plans, strict=True)
        passing_us = between_us(graph, pieces, plans, hw)
        return together([predict(piece.graph, part, hw) for piece, part in parts], passing_us)
    if plan.rule == "tile":
        return estimate(graph, plan, hw)
    if plan.rule == "chain" and (chain := transform_chain(graph)):
        return chain_estimate(graph, chain, plan, hw)
    if plan.rule == "strassen" and (seven := strassen_stages(graph)):
        return strassen_estimate(graph, seven, plan, hw)
    if plan.rule == "attention" and (found := attention_stages(graph)):
        return attention_estimate(graph, found, plan, hw)
    if plan.rule == "split":
        return split_estimate(graph, plan, hw)
    if plan.rule == "rows":
        return row_by_row(graph, hw, plan)
    return streaming(graph, hw, plan.lanes, hw.cores if plan.parallel else 1)
