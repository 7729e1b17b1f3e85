"""Modules as a single kernel, planned by strips, and modules of scheduled kernels, run here."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from tvm_ext import passes
from tvm_ext.costs import predicted_us
from tvm_ext.graph.fuse_tiles import FuseTiles
from tvm_ext.hardware import resolve
from tvm_ext.passes import TIR_PIPELINE
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, relax, tvm

HARDWARE = resolve("cpu")


def one_kernel(mod: IRModule) -> IRModule:
    """The module as far as plans are made, with what can be computed by strips as one kernel."""

    def shorter(func: PrimFunc, rule: str = "") -> float:
        return 1.0 if predicted_us(func, HARDWARE, rule) < inf else inf

    with Target(HARDWARE.target):
        for step in passes.graph_passes(HARDWARE):
            mod = (FuseTiles(shorter) if step.info.name == "FuseTiles" else step)(mod)
    return mod


def runner(mod: IRModule) -> Callable[[np.ndarray], np.ndarray]:
    """What a module of one input makes of it."""
    target = Target(HARDWARE.target)
    with target:
        lowest = tvm.transform.Sequential(passes.lowering_passes())(mod)
        executable = tvm.compile(lowest, target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(x: np.ndarray) -> np.ndarray:
        result: np.ndarray = main(tvm.runtime.tensor(x)).numpy()
        return result

    return run
