"""Modules whose kernels are scheduled, run on this machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tvm_ext import passes
from tvm_ext.hardware import resolve
from tvm_ext.passes import TIR_PIPELINE
from tvm_ext.tvm_api import IRModule, Target, relax, tvm


def runner(mod: IRModule) -> Callable[[np.ndarray], np.ndarray]:
    """What a module of one input makes of it."""
    target = Target(resolve("cpu").target)
    with target:
        lowest = tvm.transform.Sequential(passes.lowering_passes())(mod)
        executable = tvm.compile(lowest, target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(x: np.ndarray) -> np.ndarray:
        result: np.ndarray = main(tvm.runtime.tensor(x)).numpy()
        return result

    return run
