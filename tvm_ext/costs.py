"""Predicted times of PrimFuncs, by which graph passes decide; nothing is measured."""

from __future__ import annotations

from math import inf, prod

from tvm_ext.graph.fuse_tiles import STRIPS
from tvm_ext.graph.unify import Point, of_one
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import exchange_us, pick, pick_strips
from tvm_ext.shield import shield
from tvm_ext.tir import prepare, write
from tvm_ext.tir.symbolic import cuts, symbols
from tvm_ext.tvm_api import PrimFunc


def sliced_us(func: PrimFunc, hardware: HardwareModel, extents: Point, rule: str = "") -> float:
    """Predicted time of a PrimFunc by so many runs of what it does for one slice."""
    return prod(extents) * predicted_us(of_one(func, extents), hardware, rule)


def predicted_us(func: PrimFunc, hardware: HardwareModel, rule: str = "") -> float:
    """Predicted time of a PrimFunc by its best plan between other kernels, infinite where there is
    none, or none of the `rule` asked for: compares algorithms for one operator, and a kernel with
    those it replaces. What one core does alone it has to fetch from all."""
    if symbols(func) and cuts(func) is None:
        return inf
    prepared = prepare(func)
    picked = pick_strips if rule == STRIPS else pick
    found = picked(prepared.graph, hardware) if prepared else []
    if prepared is None or not found or (rule and found[0].plan.rule != rule):
        return inf
    best = found[0]
    fetching_us = 0.0 if best.plan.parallel else exchange_us(prepared.graph, best.plan, hardware)
    return best.estimate.latency_us + fetching_us


def why_no_strips(func: PrimFunc, hardware: HardwareModel, extents: Point = ()) -> str:
    """Why TVM does not take the best plan by strips, of one slice along `extents` if there are
    some; empty if it does. Kernels that are merged for one have no other that is as fast."""
    func = of_one(func, extents)
    prepared = prepare(func)
    found = pick_strips(prepared.graph, hardware) if prepared else []
    if not found:
        return "no plan for one kernel"
    reasons: list[str] = []
    with shield("strips", reasons):
        write(func, found[0].plan)
    return "; ".join(reasons)
